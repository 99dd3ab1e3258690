// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/sidecar/listener"
	"evenkeel.dev/sidecar/loop"
)

// rawConn relays bytes between the app and where it meant to connect: TLS, HTTP/1,
// protocols whose server speaks first. Nothing is looked at.
//
// Each direction is read only while the other side takes what was read: at most one
// buffer is kept, and the rest waits in the kernel, whose window slows the sender.
type rawConn struct {
	s       *Sidecar
	peer    netip.AddrPort // the app
	orig    netip.AddrPort
	app     rawSide
	server  rawSide
	dialing *loop.Dialing
	closed  bool
	heard   *heard // nil: it is no HTTP/2
}

// rawSide is one of the two sockets, and what waits to be written to it.
type rawSide struct {
	c     *rawConn
	fd    *loop.FD
	peer  *rawSide
	count *uint64 // bytes read from it

	pending []byte // read from peer, not yet taken by the kernel
	ended   bool   // it sends no more
	shut    bool   // we told it that peer sends no more
}

// rawDialTimeout is longer than any SYN retry that still makes sense to an app.
const rawDialTimeout = 10 * time.Second

// Raw implements listener.Handler.
func (s *Sidecar) Raw(now time.Time, c listener.Conn) {
	if !c.Orig.IsValid() || s.listensOn(c.Orig) {
		if c.Silent { // there is but one thing that it can be
			s.late(now, c)
			return
		}
		s.stats.RawFailed++
		s.cfg.Logger.Warn("closed a connection that is not HTTP/2 and came to the sidecar directly: only :authority could say where it goes",
			"peer", c.Peer.String())
		c.FD.Close()
		return
	}
	r := &rawConn{s: s, peer: c.Peer, orig: c.Orig}
	r.app = rawSide{c: r, fd: c.FD, peer: &r.server, count: &s.stats.RawBytesUp, ended: c.Ended}
	r.server = rawSide{c: r, peer: &r.app, count: &s.stats.RawBytesDown}
	if c.Silent {
		r.heard = &heard{app: bytes.Clone(c.First)}
		c.FD.Again() // it may have spoken since
	} else {
		r.begin(c.First)
	}
	c.FD.SetHandler(&r.app)
	s.raws[r] = struct{}{}
	r.dialing = s.loop.Dial(c.Orig, rawDialTimeout, r)
}

// begin notes that it is no HTTP/2, and what the app has said so far.
func (r *rawConn) begin(first []byte) {
	r.s.stats.RawConns++
	r.s.stats.RawBytesUp += uint64(len(first))
	r.server.pending = append(r.server.pending, first...)
}

// Dialed implements loop.DialHandler.
func (r *rawConn) Dialed(now time.Time, fd *loop.FD, err error) {
	r.dialing = nil
	if err != nil {
		r.s.stats.RawFailed++
		r.s.cfg.Logger.Info("cannot reach where the app meant to connect", "destination", r.orig.String(), "error", err)
		r.reset()
		return
	}
	r.server.fd = fd
	fd.SetHandler(&r.server)
	_ = unix.SetsockoptInt(fd.Raw(), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	if r.heard != nil {
		fd.Again()
		return
	}
	r.server.write(nil)
	// Edges may have passed on either side.
	r.app.fd.Again()
	fd.Again()
}

// Ready implements loop.Handler.
func (a *rawSide) Ready(now time.Time, ev loop.Events) {
	if a.c.heard != nil {
		a.hear(now, ev)
		return
	}
	if a.c.server.fd == nil {
		if ev&loop.HungUp != 0 && ev&unix.EPOLLERR != 0 {
			a.c.reset() // the app has gone before the server was reached
		}
		return
	}
	if ev&(loop.Writable|loop.HungUp) != 0 {
		a.write(nil)
	}
	if !a.c.closed && ev&(loop.Readable|loop.HungUp) != 0 {
		a.read()
	}
}

// read moves bytes to the peer while it takes them.
func (a *rawSide) read() {
	buf := a.c.s.loop.Buffer()
	for range 4 {
		if a.ended || len(a.peer.pending) > 0 || a.c.closed {
			return // peer.write reads on
		}
		n, errno := a.fd.Read(buf)
		switch {
		case n > 0:
			*a.count += uint64(n)
			a.peer.write(buf[:n])
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			a.c.reset() // a reset goes on as a reset
			return
		default:
			a.ended = true
			a.peer.write(nil)
			return
		}
	}
	a.fd.Again() // others first
}

// write sends what is pending and then p; what the kernel does not take is kept.
// With all of it gone and the peer at its end, it passes the end on.
func (a *rawSide) write(p []byte) {
	if a.c.closed {
		return
	}
	waited := len(a.pending) > 0
	if waited {
		n, ok := a.send(a.pending)
		if !ok {
			return
		}
		a.pending = a.pending[:copy(a.pending, a.pending[n:])]
	}
	if len(a.pending) == 0 && len(p) > 0 {
		n, ok := a.send(p)
		if !ok {
			return
		}
		p = p[n:]
	}
	a.pending = append(a.pending, p...)
	if len(a.pending) > 0 {
		return
	}
	if waited {
		a.pending = nil
		a.peer.fd.Again()
	}
	if a.peer.ended && !a.shut {
		a.shut = true
		if a.fd.ShutdownWrite() != nil {
			a.c.reset()
			return
		}
	}
	if a.shut && a.peer.shut {
		a.c.close()
	}
}

func (a *rawSide) send(p []byte) (n int, ok bool) {
	n, errno := a.fd.Write(p)
	if errno != 0 && errno != unix.EAGAIN {
		a.c.reset()
		return 0, false
	}
	return n, true
}

// reset ends both sides at once: SO_LINGER of zero turns close into RST.
func (r *rawConn) reset() {
	for _, a := range []*rawSide{&r.app, &r.server} {
		if a.fd != nil && a.fd.Raw() >= 0 {
			_ = unix.SetsockoptLinger(a.fd.Raw(), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
	}
	r.close()
}

func (r *rawConn) close() {
	if r.closed {
		return
	}
	r.closed = true
	if r.dialing != nil {
		r.dialing.Cancel()
	}
	r.app.fd.Close()
	if r.server.fd != nil {
		r.server.fd.Close()
	}
	delete(r.s.raws, r)
	r.s.drained()
}
