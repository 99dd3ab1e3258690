// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"maps"
	"slices"

	"evenkeel.dev/xds"
)

// clone copies a state, so that a test can go on from it in several ways. What a
// workload has learnt and the tallies are left out: no claim depends on them.
func (st *state) clone() *state {
	n := newState(st.cfg)
	n.calm, n.ticked, n.swept, n.epoch, n.reports = st.calm, st.ticked, st.swept, st.epoch, st.reports
	to := make(map[*sidecar]*sidecar, len(st.sidecars))
	for key, c := range st.sidecars {
		d := *c
		d.uses = make(map[xds.Service]*use, len(c.uses))
		d.direct = maps.Clone(c.direct)
		d.pod.places = maps.Clone(c.pod.places)
		d.pod.holds = slices.Clone(c.pod.holds)
		d.pod.ready.missing = slices.Clone(c.pod.ready.missing)
		d.pod.drain.missing = slices.Clone(c.pod.drain.missing)
		for svc, u := range c.uses {
			v := *u
			v.endpoints = maps.Clone(u.endpoints)
			d.uses[svc] = &v
			if n.services[svc] == nil {
				n.services[svc] = map[*sidecar]*use{}
			}
			n.services[svc][&d] = &v
		}
		n.sidecars[key], to[c] = &d, &d
	}
	for id, s := range st.streams {
		n.streams[id] = &adsStream{to[s.sidecar], maps.Clone(s.services)}
	}
	for id, c := range st.tracks {
		n.tracks[id] = to[c]
	}
	for c := range st.direct {
		n.direct[to[c]] = struct{}{}
	}
	for c := range st.dialling {
		n.dialling[to[c]] = struct{}{}
	}
	return n
}
