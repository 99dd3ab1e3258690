// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "time"

// waitList holds relays that wait for something, in order of arrival.
type waitList struct {
	first, last *relay
	n           int
}

func (l *waitList) push(r *relay) {
	r.list, r.prev, r.next = l, l.last, nil
	if l.last != nil {
		l.last.next = r
	} else {
		l.first = r
	}
	l.last = r
	l.n++
}

func (l *waitList) remove(r *relay) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.last = r.prev
	}
	r.list, r.prev, r.next = nil, nil, nil
	l.n--
}

// wake dispatches those who wait now; who waits again waits for the next time.
func (l *waitList) wake(now time.Time) {
	for n := l.n; n > 0 && l.first != nil; n-- {
		r := l.first
		l.remove(r)
		r.dispatch(now)
	}
}
