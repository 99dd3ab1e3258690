// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"time"

	"evenkeel.dev/sidecar/h2"
)

// Waiter is told how its wait for a stream ended. It is called in the loop, with
// the pool in a state that allows all of its methods.
type Waiter interface {
	StreamReady(now time.Time, st *h2.Stream)
	StreamRefused(now time.Time, err error)
}

// Ticket is a place in a pool's queue. It is part of the object that waits.
type Ticket struct {
	next, prev *Ticket
	pool       *Pool
	h          h2.StreamHandler
	w          Waiter
}

// Waiting reports whether the ticket is in a queue.
func (t *Ticket) Waiting() bool { return t.pool != nil }

// Cancel leaves the queue; the waiter is not called any more.
func (t *Ticket) Cancel() {
	if t.pool != nil {
		t.pool.unqueue(t)
	}
}

// queue is first in, first out, and can be left from any place: a deadline or
// a cancel ends a wait at once.
type queue struct {
	first, last *Ticket
	n           int
}

func (q *queue) push(t *Ticket) {
	t.prev, t.next = q.last, nil
	if q.last != nil {
		q.last.next = t
	} else {
		q.first = t
	}
	q.last = t
	q.n++
}

func (q *queue) remove(t *Ticket) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		q.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		q.last = t.prev
	}
	t.next, t.prev = nil, nil
	q.n--
}
