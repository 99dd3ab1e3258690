// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// mailbox brings functions of other goroutines into the loop.
type mailbox struct {
	mu     sync.Mutex
	posted []func(now time.Time)
	fd     int // eventfd; -1 when the loop has ended

	// The loop's own.
	bell  *FD
	taken []func(now time.Time) // kept for its capacity
}

// Post has fn called in the loop, in the order of posting. False: the loop has
// ended and fn will not be called. It never blocks for long, on any goroutine, the loop's included.
func (l *Loop) Post(fn func(now time.Time)) bool {
	m := &l.mail
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return false
	}
	m.posted = append(m.posted, fn)
	if len(m.posted) == 1 {
		// The write stays under the lock: the descriptor must not be closed,
		// and its number taken by another, in between.
		one := [8]byte{1}
		_, _ = unix.Write(m.fd, one[:])
	}
	return true
}

func (l *Loop) openMailbox() error {
	l.mail.fd = -1
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("loop: eventfd: %w", err)
	}
	if l.mail.bell, err = l.Register(fd, rung{}); err != nil {
		unix.Close(fd)
		return err
	}
	l.mail.fd = fd
	return nil
}

// deliver runs what was posted until now; what these functions post comes next turn.
func (l *Loop) deliver(now time.Time) {
	m := &l.mail
	if !slices.ContainsFunc(l.events[:l.ready], func(ev unix.EpollEvent) bool { return int(ev.Fd) == m.bell.fd }) {
		return
	}
	m.mu.Lock()
	m.posted, m.taken = m.taken[:0], m.posted
	m.mu.Unlock()
	for i, fn := range m.taken {
		m.taken[i] = nil
		fn(now)
	}
}

// close refuses further mail. Functions that are left are dropped: whoever
// waits for one watches the end of Run as well.
func (m *mailbox) close() {
	m.mu.Lock()
	m.fd, m.posted = -1, nil
	m.mu.Unlock()
}
