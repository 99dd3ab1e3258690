// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"time"

	"evenkeel.dev/xds"
)

// judgeReady decides whether the pod is propagated.
func (st *state) judgeReady(c *sidecar, now time.Time) {
	p := &c.pod
	poll := st.newPoll()
	if p.known {
		for i := range p.member.Services {
			svc := p.member.Services[i].Service
			pl := p.places[svc]
			for client, u := range st.services[svc] {
				if client == c || u.excused || !client.inLease(now) || !client.sees(p, pl.local) {
					continue
				}
				poll.add(client, pl.listed && u.answered(pl.id))
			}
		}
	}
	p.ready = poll.verdict()
	p.propagated = st.settled(now) && p.ready.all() && p.mayPropagate(c, now)
	if p.propagated && !p.measured && !p.warm.IsZero() {
		p.measured = true
		st.out.propagated = append(st.out.propagated, now.Sub(p.warm))
	}
}

// mayPropagate is what must be true whoever subscribes.
func (p *pod) mayPropagate(c *sidecar, now time.Time) bool {
	if !p.known {
		return c.podless(now) // then nobody can be waited for
	}
	return p.member.AppReady || len(p.member.Services) == 0
}

// podless: only without an API server is a sidecar served whose Pod does not
// exist, and never will; but the watch may be behind.
func (c *sidecar) podless(now time.Time) bool { return !c.pod.known && now.Sub(c.opened) > xds.Lease }

// answered reports whether the client has said what is waited for of an endpoint.
func (u *use) answered(id endpointID) bool {
	e, known := u.endpoints[id]
	if !known {
		return false // it was not told of the pod yet, or not of this one
	}
	// An idle one only acknowledges receipt: it connects when it is used.
	return !u.active || e.answer == connected || e.answer == failed
}
