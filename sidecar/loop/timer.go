// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// TimerHandler is told when its timer expires. The timer is unset by then and
// may be set again.
type TimerHandler interface{ Expired(now time.Time, t *Timer) }

// Timer is part of the object that it wakes; its zero value is ready for SetTimer.
type Timer struct {
	h     TimerHandler
	at    int64 // nanoseconds since the loop's epoch
	place int   // index in the heap + 1; zero: not set
}

// Set reports whether the timer is running.
func (t *Timer) Set() bool { return t.place > 0 }

// SetTimer starts t, or moves it.
func (l *Loop) SetTimer(t *Timer, at time.Time, h TimerHandler) {
	t.h, t.at = h, int64(at.Sub(l.epoch))
	if t.place == 0 {
		l.timers = append(l.timers, t)
		t.place = len(l.timers)
		l.timers.up(len(l.timers) - 1)
		return
	}
	i := t.place - 1
	if !l.timers.up(i) {
		l.timers.down(i)
	}
}

// At is when t expires; the zero time when it is not set.
func (l *Loop) At(t *Timer) time.Time {
	if t.place == 0 {
		return time.Time{}
	}
	return l.epoch.Add(time.Duration(t.at))
}

// StopTimer stops t. It may be called on one that is not set.
func (l *Loop) StopTimer(t *Timer) {
	if t.place == 0 {
		return
	}
	i, last := t.place-1, len(l.timers)-1
	l.timers.swap(i, last)
	l.timers[last] = nil
	l.timers = l.timers[:last]
	t.place, t.h = 0, nil
	if i < last && !l.timers.up(i) {
		l.timers.down(i)
	}
}

func (l *Loop) expire(now time.Time) {
	t := int64(now.Sub(l.epoch))
	// A handler that sets a timer for now or earlier is served in the next
	// turn: else it could keep the loop here for ever.
	for n := len(l.timers); n > 0 && len(l.timers) > 0 && l.timers[0].at <= t; n-- {
		top := l.timers[0]
		h := top.h
		l.StopTimer(top)
		h.Expired(now, top)
	}
}

func (l *Loop) openTimer() error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("loop: timerfd_create: %w", err)
	}
	l.armed = math.MaxInt64
	if l.timerfd, err = l.Register(fd, rung{}); err != nil {
		unix.Close(fd)
		return err
	}
	return nil
}

// rung handles the loop's own descriptors: to be woken is all there is to it. They
// are never read, since in an edge-triggered set each expiry or write is a new edge.
type rung struct{}

func (rung) Ready(time.Time, Events) {}

// arm sets the timerfd to the earliest timer. It is a system call, so it is
// skipped while the descriptor fires early enough: with the heartbeat always set,
// timers beyond it, such as most deadlines of RPCs, cost none.
func (l *Loop) arm() {
	now := int64(l.now.Sub(l.epoch))
	if l.armed <= now {
		l.armed = math.MaxInt64 // it has fired, or will at once: either way this turn saw it
	}
	next := l.timers[0].at
	if next >= l.armed {
		return
	}
	l.armed = next
	wait := max(next-now, 1)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(wait)}
	if err := unix.TimerfdSettime(l.timerfd.fd, 0, &spec, nil); err != nil {
		l.waitErr = fmt.Errorf("loop: timerfd_settime: %w", err)
	}
}

// timerHeap is a binary heap by time in which each timer knows its place, so
// that one can be stopped without being searched for.
type timerHeap []*Timer

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h timerHeap) up(i int) (moved bool) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].at <= h[i].at {
			return moved
		}
		h.swap(p, i)
		i, moved = p, true
	}
	return moved
}

func (h timerHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if r := c + 1; r < len(h) && h[r].at < h[c].at {
			c = r
		}
		if h[i].at <= h[c].at {
			return
		}
		h.swap(i, c)
		i = c
	}
}
