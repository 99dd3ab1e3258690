// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "time"

// waitList holds relays that wait for something, in order of arrival.
type waitList struct{ relayList }

func (l *waitList) push(r *relay) {
	r.list = l
	l.relayList.push(&r.waits, r)
}

func (l *waitList) remove(r *relay) {
	r.list = nil
	l.relayList.remove(&r.waits)
}

// wake dispatches those who wait now; who waits again waits for the next time.
func (l *waitList) wake(now time.Time) {
	for n := l.n; n > 0 && l.first != nil; n-- {
		r := l.first.r
		l.remove(r)
		r.dispatch(now)
	}
}
