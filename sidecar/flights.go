// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "time"

// flights are the attempts in flight at one endpoint, or at one address without a
// service, in the order in which they began: the last one is the youngest.
type flights struct{ relayList }

func (f *flights) push(r *relay) { f.relayList.push(&r.flies, r) }

func (f *flights) remove(r *relay) { f.relayList.remove(&r.flies) }

// began moves an attempt that had to wait for a stream behind those which began
// meanwhile.
func (f *flights) began(r *relay) {
	if f.last != &r.flies {
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
	return max(0, at.Sub(f.last.r.attemptAt))
}

// queued lists those that wait for a stream: nothing of them was sent.
func (f *flights) queued() (all []*relay) {
	for r := range f.all() {
		if r.ticket.Waiting() {
			all = append(all, r)
		}
	}
	return all
}
