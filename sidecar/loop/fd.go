// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Events says what a descriptor is ready for.
type Events uint32

// Readable includes the end of the stream and errors: reading tells which.
const (
	Readable Events = unix.EPOLLIN
	Writable Events = unix.EPOLLOUT
	// HungUp: the peer will send no more. After it, reads go on until they
	// return nothing; no further edge announces the end.
	HungUp Events = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
)

// interest is the same for each descriptor, set once: edge-triggered, so no
// epoll_ctl follows for as long as it lives. Write readiness comes free with it, since the
// kernel only wakes writers that have met a full buffer (SOCK_NOSPACE).
const interest = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// Handler is told when its descriptor becomes ready: each change once. It must
// read until the kernel has no more (a read shorter than asked will do, unless HungUp), or
// call FD.Again.
type Handler interface {
	Ready(now time.Time, ev Events)
}

// FD is a descriptor in the loop.
type FD struct {
	loop   *Loop
	h      Handler
	fd     int // -1 once closed
	gen    int32
	queued bool // on the again list
	// hung is what was seen of HungUp. It has one edge only, which may come while bytes
	// are left to be read in a later turn, or by another handler.
	hung Events
}

// Register takes a non-blocking descriptor into the loop, which owns it from
// now on. On error it still belongs to the caller.
func (l *Loop) Register(fd int, h Handler) (*FD, error) {
	if fd < 0 {
		return nil, fmt.Errorf("loop: register descriptor %d: not a descriptor", fd)
	}
	l.gen++
	ev := unix.EpollEvent{Events: interest, Fd: int32(fd), Pad: l.gen}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, fmt.Errorf("loop: epoll_ctl add descriptor %d: %w", fd, err)
	}
	for len(l.fds) <= fd {
		l.fds = append(l.fds, nil)
	}
	f := &FD{loop: l, h: h, fd: fd, gen: l.gen}
	l.fds[fd] = f
	l.open++
	return f, nil
}

// Descriptors that are registered, the loop's own two included.
func (l *Loop) Descriptors() int { return l.open }

// Raw is the descriptor's number, -1 once closed.
func (f *FD) Raw() int { return f.fd }

// SetHandler gives the descriptor to another handler. One that may have left
// bytes unread calls Again too.
func (f *FD) SetHandler(h Handler) { f.h = h }

// Again has the handler called in the next turn as if the descriptor had become readable.
func (f *FD) Again() {
	if f.fd >= 0 && !f.queued {
		f.queued = true
		f.loop.again = append(f.loop.again, f)
	}
}

// Close takes the descriptor out of the loop and closes it. Safe to call twice and within Ready.
func (f *FD) Close() {
	if fd := f.forget(); fd >= 0 {
		unix.Close(fd)
	}
}

// Release takes the descriptor out of the loop without closing it, and returns its number.
func (f *FD) Release() int {
	fd := f.forget()
	if fd >= 0 {
		// Not left to close(2): the open file may be shared with another
		// process (the supervisor's listeners), and would stay in the set.
		_ = unix.EpollCtl(f.loop.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	}
	return fd
}

func (f *FD) forget() int {
	fd := f.fd
	if fd < 0 {
		return -1
	}
	f.fd, f.queued = -1, false
	f.loop.fds[fd] = nil
	f.loop.open--
	return fd
}
