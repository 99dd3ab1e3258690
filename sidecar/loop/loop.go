// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config of a Loop.
type Config struct {
	// Logger; required.
	Logger *slog.Logger
	// ReadBuffer is the size of the one buffer that all sockets are read
	// into. Zero: 64 KiB.
	ReadBuffer int
	// ReadBudget is how many bytes one Conn may read in one turn before the
	// others have theirs. Zero: four times ReadBuffer.
	ReadBudget int
	// MaxEvents is how many ready descriptors one turn handles. Zero: 256.
	MaxEvents int
	// Heartbeat is the longest time between two turns, so that an idle loop
	// can be told from a hung one. Zero: 250 ms.
	Heartbeat time.Duration
}

func (c Config) withDefaults() Config {
	if c.ReadBuffer <= 0 {
		c.ReadBuffer = 64 << 10
	}
	if c.ReadBudget <= 0 {
		c.ReadBudget = 4 * c.ReadBuffer
	}
	if c.MaxEvents <= 0 {
		c.MaxEvents = 256
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 250 * time.Millisecond
	}
	return c
}

// Flusher has output to write at the end of the turn.
type Flusher interface{ Flush(now time.Time) }

// Loop is the event loop. Only New, Post, Turns and Run may be called from
// outside of it; all else belongs to the goroutine in Run.
type Loop struct {
	// Fixed after New.
	cfg  Config
	ep   *os.File // the epoll set, registered with Go's netpoller
	epfd int
	raw  syscall.RawConn
	poll func(uintptr) bool // bound once: a method value per wait would allocate

	// Any goroutine.
	turns atomic.Uint64
	mail  mailbox

	// The loop's own.
	fds     []*FD // by descriptor number
	open    int
	gen     int32
	events  []unix.EpollEvent
	ready   int
	waitErr error
	again   []*FD
	busy    []*FD // the previous again list, kept for its capacity
	dirty   []Flusher
	buf     []byte
	now     time.Time
	epoch   time.Time
	timers  timerHeap
	timerfd *FD
	armed   int64 // when the timerfd fires; nanoseconds since epoch
	beat    Timer
	stopped bool
}

// New makes a loop. It holds descriptors until Run has returned, or Close.
func New(cfg Config) (*Loop, error) {
	if cfg.Logger == nil {
		return nil, errors.New("loop: Config.Logger is required")
	}
	l := &Loop{cfg: cfg.withDefaults(), now: time.Now()}
	l.epoch = l.now
	l.events = make([]unix.EpollEvent, l.cfg.MaxEvents)
	l.buf = make([]byte, l.cfg.ReadBuffer)
	l.poll = l.pollOnce
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("loop: epoll_create1: %w", err)
	}
	// os.NewFile hands a descriptor to the netpoller only when it is
	// non-blocking; epoll_create1 has no flag for it.
	if err := unix.SetNonblock(epfd, true); err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("loop: make the epoll set non-blocking: %w", err)
	}
	l.epfd, l.ep = epfd, os.NewFile(uintptr(epfd), "epoll")
	if l.raw, err = l.ep.SyscallConn(); err != nil {
		l.ep.Close()
		return nil, fmt.Errorf("loop: reach the epoll set: %w", err)
	}
	if err := l.openTimer(); err != nil {
		l.Close()
		return nil, err
	}
	if err := l.openMailbox(); err != nil {
		l.Close()
		return nil, err
	}
	l.SetTimer(&l.beat, l.now.Add(l.cfg.Heartbeat), heartbeat{l})
	l.arm()
	return l, nil
}

// Turns counts the turns of the loop: a number that no longer grows is a loop
// that hangs. Any goroutine may call it.
func (l *Loop) Turns() uint64 { return l.turns.Load() }

// Now is the clock of this turn.
func (l *Loop) Now() time.Time { return l.now }

// Buffer is the buffer that sockets are read into. It belongs to whoever is
// being called, until he returns.
func (l *Loop) Buffer() []byte { return l.buf }

// Dirty puts f on the list that is flushed at the end of the turn. The caller
// keeps himself from being on it twice.
func (l *Loop) Dirty(f Flusher) { l.dirty = append(l.dirty, f) }

// Stop ends Run after this turn.
func (l *Loop) Stop() { l.stopped = true }

// Run turns the loop until ctx ends or Stop is called, then closes every
// descriptor that is still registered. It returns nil in both cases.
func (l *Loop) Run(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { l.Post(func(time.Time) { l.Stop() }) })
	defer unhook()
	defer l.Close()
	for !l.stopped {
		if err := l.wait(); err != nil {
			return err
		}
		l.turn()
	}
	return nil
}

// wait parks until a descriptor is ready, unless work is left from the last turn.
func (l *Loop) wait() error {
	if len(l.again) > 0 {
		l.pollOnce(0)
		return l.waitErr
	}
	if err := l.raw.Read(l.poll); err != nil {
		return fmt.Errorf("loop: park in the netpoller: %w", err)
	}
	return l.waitErr
}

// pollOnce asks which descriptors are ready, without blocking. False tells
// the runtime to park: nothing was ready, and as the set is edge-triggered for the
// netpoller, only an empty answer may end the asking.
func (l *Loop) pollOnce(uintptr) bool {
	for {
		n, errno := epollWait(l.epfd, l.events)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			l.ready, l.waitErr = 0, fmt.Errorf("loop: epoll_wait: %w", errno)
			return true
		}
		l.ready = n
		return n > 0
	}
}

func (l *Loop) turn() {
	now := time.Now()
	l.now = now
	l.again, l.busy = l.busy[:0], l.again
	// Mail first: who posts and then writes to a socket wants that order.
	l.deliver(now)
	for i := range l.events[:l.ready] {
		ev := &l.events[i]
		// The generation: an event of this batch may be for a descriptor that
		// an earlier one closed, and whose number is taken again.
		if f := l.fds[ev.Fd]; f != nil && f.gen == ev.Pad {
			f.hung |= Events(ev.Events) & HungUp
			f.h.Ready(now, Events(ev.Events)|f.hung)
		}
	}
	for _, f := range l.busy {
		if f.fd >= 0 && f.queued {
			f.queued = false
			f.h.Ready(now, Readable|f.hung)
		}
	}
	clear(l.busy)
	l.expire(now)
	l.flush(now)
	l.arm()
	l.turns.Add(1)
}

// flush runs until nobody is dirty: what one session wrote gives credit to
// another, whose WINDOW_UPDATE then belongs in this turn too.
func (l *Loop) flush(now time.Time) {
	for i := 0; i < len(l.dirty); i++ {
		f := l.dirty[i]
		l.dirty[i] = nil
		f.Flush(now)
	}
	l.dirty = l.dirty[:0]
}

// Close closes every descriptor. Run does so by itself; Close is for a loop that
// is not going to run.
func (l *Loop) Close() {
	for _, f := range l.fds {
		if f != nil {
			f.Close()
		}
	}
	l.mail.close()
	l.ep.Close()
}

// heartbeat makes an idle loop turn.
type heartbeat struct{ l *Loop }

func (h heartbeat) Expired(now time.Time, t *Timer) {
	h.l.SetTimer(t, now.Add(h.l.cfg.Heartbeat), h)
}
