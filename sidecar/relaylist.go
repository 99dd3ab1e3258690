// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "iter"

// relayList is a list of relays that costs no allocation: the links are in the relays.
type relayList struct {
	first, last *relayLink
	n           int
}

// relayLink is a relay's place in one list.
type relayLink struct {
	prev, next *relayLink
	r          *relay
}

// push appends r, by its link for this list.
func (l *relayList) push(k *relayLink, r *relay) {
	k.r, k.prev, k.next = r, l.last, nil
	if l.last != nil {
		l.last.next = k
	} else {
		l.first = k
	}
	l.last = k
	l.n++
}

func (l *relayList) remove(k *relayLink) {
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.last = k.prev
	}
	*k = relayLink{}
	l.n--
}

// all are the relays in order. The one that was yielded last may be removed.
func (l *relayList) all() iter.Seq[*relay] {
	return func(yield func(*relay) bool) {
		for k := l.first; k != nil; {
			next := k.next
			if !yield(k.r) {
				return
			}
			k = next
		}
	}
}
