// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"slices"
	"time"

	"evenkeel.dev/xds"
)

// promptly is how long an answer FAILED may take without having slowed a rollout.
const promptly = time.Second

// excuseLate excuses a client whose failure came late from what is to come: a
// subscriber that is cut off must not slow every pod of a rollout.
func (st *state) excuseLate(u *use, svc xds.Service, id endpointID, now time.Time) {
	c := st.podOf(id.Value().uid)
	if c == nil || c.pod.own.ready {
		return
	}
	pl, ok := c.pod.places[svc]
	if !ok || pl.id != id || pl.since.IsZero() {
		return
	}
	known := pl.since
	if u.since.After(known) {
		known = u.since // it began to use the service when the pod was there already
	}
	if now.Sub(known) > promptly {
		u.excused = true
	}
}

// excuseMissing excuses those for whom the pod's ready hold timed out. The pod
// names those that it was told of by all replicas, at most some; who of them has
// answered here meanwhile needs no excuse.
func (st *state) excuseMissing(c *sidecar, now time.Time) {
	p := &c.pod
	if !p.excuse || !p.known {
		return
	}
	p.excuse = false
	for i := range p.member.Services {
		svc := p.member.Services[i].Service
		pl := p.places[svc]
		for client, u := range st.services[svc] {
			if client == c || !client.inLease(now) || !client.sees(p, pl.local) || pl.listed && u.answered(pl.id) {
				continue
			}
			if len(p.timedOut) >= maxNamed || slices.Contains(p.timedOut, client.name) {
				u.excused = true
			}
		}
	}
	p.timedOut = nil
}
