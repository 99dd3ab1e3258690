// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// Protocol is a sans-I/O state machine: bytes in, bytes out, no clock of its own.
type Protocol interface {
	// Receive takes bytes that are only valid during the call. After an error
	// the output is written once more and the connection closed.
	Receive(now time.Time, p []byte) error
	// Output is what to write now; Wrote says how much of it was taken.
	Output() []byte
	Wrote(now time.Time, n int)
	// Tick is called at NextDeadline (zero: none).
	Tick(now time.Time) error
	NextDeadline() time.Time
	// Finished says that all is said and done: nothing is left but to close.
	Finished() bool
	// Abort says that the connection is gone.
	Abort(cause error)
}

// ErrFinished is the cause when the Protocol was Finished.
var ErrFinished = errors.New("loop: the connection has served its purpose")

// Owner is told once when a Conn has ended for him. Bytes may still be leaving.
type Owner interface {
	ConnEnded(now time.Time, cause error)
}

// lingerTime is how long a connection that we end waits for the peer's end.
const lingerTime = time.Second

type connState uint8

const (
	connOpen connState = iota
	connFlushing
	connLingering
	connClosed
)

// Conn drives a Protocol over a socket.
type Conn struct {
	loop  *Loop
	fd    *FD
	proto Protocol
	owner Owner
	state connState
	dirty bool // on the loop's list
	full  bool // the kernel took not all: wait for the edge
	timer Timer

	// Read and Written count bytes.
	Read, Written uint64
}

// NewConn takes over fd, and writes at once what p has to say. first are bytes
// that were read from fd before, nil if none.
func (l *Loop) NewConn(fd *FD, p Protocol, o Owner) *Conn {
	c := &Conn{loop: l, fd: fd, proto: p, owner: o}
	fd.SetHandler(c)
	// An edge may have passed before this handler was there.
	fd.Again()
	c.MarkDirty()
	return c
}

// FD is the Conn's descriptor, for socket options.
func (c *Conn) FD() *FD { return c.fd }

// Open reports whether the Conn still carries its Protocol.
func (c *Conn) Open() bool { return c.state == connOpen }

// MarkDirty has the Conn flushed at the end of the turn.
func (c *Conn) MarkDirty() {
	if !c.dirty && c.state != connClosed {
		c.dirty = true
		c.loop.Dirty(c)
	}
}

// Ready implements Handler.
func (c *Conn) Ready(now time.Time, ev Events) {
	if ev&(Writable|HungUp) != 0 && c.full {
		c.full = false
		c.MarkDirty()
	}
	if ev&(Readable|HungUp) == 0 {
		return
	}
	switch c.state {
	case connOpen:
		c.read(now, ev)
	case connFlushing, connLingering:
		c.discard(now)
	}
}

// Inject hands bytes to the Protocol that were read from the socket before the Conn was there.
func (c *Conn) Inject(now time.Time, p []byte) {
	if len(p) > 0 && c.state == connOpen {
		c.receive(now, p)
	}
}

func (c *Conn) receive(now time.Time, p []byte) {
	c.Read += uint64(len(p))
	if err := c.proto.Receive(now, p); err != nil {
		c.fail(now, err)
	} else if c.proto.Finished() {
		c.CloseAfterFlush(now, ErrFinished)
	} else if !c.dirty {
		c.rearm() // what asks for no answer may have a deadline too; Flush does it otherwise
	}
}

func (c *Conn) read(now time.Time, ev Events) {
	buf := c.loop.buf
	for budget := c.loop.cfg.ReadBudget; budget > 0; {
		n, errno := c.fd.Read(buf)
		if n == 0 {
			if errno != unix.EAGAIN {
				c.end(now, errno)
			}
			return
		}
		c.receive(now, buf[:n])
		if c.state != connOpen {
			return
		}
		// Less than asked is all there was, epoll(7); but the end of the
		// stream has no edge of its own when it came with these bytes.
		if n < len(buf) && ev&HungUp == 0 {
			return
		}
		budget -= n
	}
	c.fd.Again()
}

// discard reads what nobody wants any more, so that close does not turn into a
// reset that destroys our last bytes on their way (RFC 1122, 4.2.2.13).
func (c *Conn) discard(now time.Time) {
	for range 16 {
		n, errno := c.fd.Read(c.loop.buf)
		if n > 0 {
			continue
		}
		if errno != unix.EAGAIN {
			c.close(now)
		}
		return
	}
	c.fd.Again()
}

// Flush implements Flusher.
func (c *Conn) Flush(now time.Time) {
	c.dirty = false
	if c.state == connClosed || c.state == connLingering {
		return
	}
	for !c.full {
		out := c.proto.Output()
		if len(out) == 0 {
			break
		}
		n, errno := c.fd.Write(out)
		if n == 0 {
			if errno == unix.EAGAIN {
				c.full = true
				break
			}
			c.writeFailed(now, errno)
			return
		}
		c.Written += uint64(n)
		c.proto.Wrote(now, n)
		if n < len(out) {
			c.full = true
		}
	}
	if c.state == connOpen {
		if !c.proto.Finished() {
			c.rearm()
			return
		}
		c.CloseAfterFlush(now, ErrFinished)
	}
	if !c.full {
		c.linger(now)
	}
}

// writeFailed reads what the peer sent before it went, then ends. What it said
// last, a GOAWAY perhaps, decides which streams may be sent elsewhere.
func (c *Conn) writeFailed(now time.Time, errno unix.Errno) {
	if c.state != connOpen {
		c.close(now)
		return
	}
	c.full = true // no more writing
	for c.state == connOpen {
		n, _ := c.fd.Read(c.loop.buf)
		if n == 0 {
			break
		}
		c.receive(now, c.loop.buf[:n])
	}
	if c.state == connOpen {
		c.end(now, errno)
	} else {
		c.close(now)
	}
}

// rearm keeps the timer at or before the Protocol's deadline. One that is too
// early is left: it costs one Tick, and moving it at each frame would cost more.
func (c *Conn) rearm() {
	d := c.proto.NextDeadline()
	if d.IsZero() {
		return
	}
	if !c.timer.Set() || d.Before(c.loop.At(&c.timer)) {
		c.loop.SetTimer(&c.timer, d, c)
	}
}

// Expired implements TimerHandler.
func (c *Conn) Expired(now time.Time, _ *Timer) {
	if c.state != connOpen {
		c.close(now)
		return
	}
	if d := c.proto.NextDeadline(); !d.IsZero() && !now.Before(d) {
		if err := c.proto.Tick(now); err != nil {
			c.fail(now, err)
			return
		}
		c.MarkDirty()
	}
	c.rearm()
}

// end is the connection's end from outside: the peer's FIN (errno zero), or an error.
func (c *Conn) end(now time.Time, errno unix.Errno) {
	cause := io.EOF
	if errno != 0 {
		cause = fmt.Errorf("connection lost: %w", errno)
	}
	c.Close(now, cause)
}

// Close ends the connection at once; the Protocol is told by Abort.
func (c *Conn) Close(now time.Time, cause error) {
	if c.state == connOpen {
		c.proto.Abort(cause)
		c.ended(now, cause)
	}
	c.close(now)
}

// fail: the Protocol has given up and has told its streams; its last words are written.
func (c *Conn) fail(now time.Time, cause error) {
	c.state = connFlushing
	c.ended(now, cause)
	c.loop.SetTimer(&c.timer, now.Add(lingerTime), c)
	c.MarkDirty()
}

// CloseAfterFlush ends a connection that has nothing more to do, once its output is written.
func (c *Conn) CloseAfterFlush(now time.Time, cause error) {
	if c.state == connOpen {
		c.fail(now, cause)
	}
}

func (c *Conn) ended(now time.Time, cause error) {
	if c.owner != nil {
		o := c.owner
		c.owner = nil
		o.ConnEnded(now, cause)
	}
}

func (c *Conn) linger(now time.Time) {
	c.state = connLingering
	if c.fd.ShutdownWrite() != nil {
		c.close(now)
		return
	}
	c.loop.SetTimer(&c.timer, now.Add(lingerTime), c)
	c.fd.Again() // what is there already has had its edge
}

func (c *Conn) close(time.Time) {
	if c.state == connClosed {
		return
	}
	c.state = connClosed
	c.loop.StopTimer(&c.timer)
	c.fd.Close()
}
