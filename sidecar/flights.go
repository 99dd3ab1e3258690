// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "time"

// flights are the attempts in flight at one endpoint, or at one address without a
// service, in the order in which they began: the last one is the youngest.
type flights struct {
	first, last *relay
	n           int
}

func (f *flights) push(r *relay) {
	r.older, r.younger = f.last, nil
	if f.last != nil {
		f.last.younger = r
	} else {
		f.first = r
	}
	f.last = r
	f.n++
}

func (f *flights) remove(r *relay) {
	if r.older != nil {
		r.older.younger = r.younger
	} else {
		f.first = r.younger
	}
	if r.younger != nil {
		r.younger.older = r.older
	} else {
		f.last = r.older
	}
	r.older, r.younger = nil, nil
	f.n--
}

// began moves an attempt that had to wait for a stream behind those which began
// meanwhile.
func (f *flights) began(r *relay) {
	if f.last != r {
		f.remove(r)
		f.push(r)
	}
}

// youngest is how old the youngest attempt was at a moment; 0 if it was not there
// yet, or if there is none.
func (f *flights) youngest(at time.Time) time.Duration {
	if f.last == nil {
		return 0
	}
	return max(0, at.Sub(f.last.attemptAt))
}

// queued lists those that wait for a stream: nothing of them was sent.
func (f *flights) queued() (all []*relay) {
	for r := f.first; r != nil; r = r.younger {
		if r.ticket.Waiting() {
			all = append(all, r)
		}
	}
	return all
}
