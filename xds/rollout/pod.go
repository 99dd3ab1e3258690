// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// pod is a sidecar's own pod, as a server.
type pod struct {
	// What the Directory said last.
	member snapshot.Membership
	known  bool
	places map[xds.Service]place // where it is an endpoint, or was

	own      own
	holds    []holdEnd
	excuse   bool     // its ready hold timed out; those who were missing are still to be excused
	timedOut []string // their names, as the pod was told
	waitTold bool     // the Event that it waits was written

	hook      hook
	announced bool // Terminating was passed on

	ready, drain verdict
	propagated   bool
	drained      bool
	warm         time.Time // when the app was first seen ready; zero: not yet
	measured     bool      // the time from then was told

	beat   time.Time      // when the next status is due in any case
	sent   *api.PodStatus // the last one
	goneAt time.Time
}

// place is the pod as an endpoint of a service.
type place struct {
	id     endpointID
	since  time.Time
	listed bool // it is in the collection now
	local  bool // internalTrafficPolicy Local
	// left is the number of the last Report before it left the collection.
	left uint64
}

// look is what the Directory says of a pod.
type look struct {
	member snapshot.Membership
	known  bool
}

// see takes in what the Directory says.
func (st *state) see(c *sidecar, l look, now time.Time) {
	p := &c.pod
	if l.known && c.node.UID != "" && l.member.UID != c.node.UID {
		l = look{} // another Pod of that name
	}
	p.known = l.known
	if !l.known {
		st.unlist(p)
		return
	}
	if c.node.UID == "" && l.member.UID != p.member.UID {
		delete(st.aliases, p.member.UID)
		if l.member.UID != "" {
			st.aliases[l.member.UID] = c
		}
		p.places = nil
	}
	p.member = l.member
	if p.places == nil {
		p.places = map[xds.Service]place{}
	}
	for i := range l.member.Services {
		ps := &l.member.Services[i]
		pl, seen := p.places[ps.Service]
		if !seen {
			pl.left = st.reports // it may have been in it before
		}
		pl.local = ps.LocalOnly
		if ps.Addr.IsValid() {
			if id := idOf(unmap(ps.Addr), l.member.UID); id != pl.id {
				pl.id, pl.since = id, time.Time{}
			}
		}
		listed := ps.Addr.IsValid() && ps.State != corepb.HealthStatus_UNKNOWN
		switch {
		case listed && pl.since.IsZero():
			pl.since = now
		case !listed && pl.listed:
			pl.left = st.reports
		}
		pl.listed = listed
		p.places[ps.Service] = pl
	}
	if len(p.places) > len(l.member.Services) {
		st.unlist(p, l.member.Services...) // it is in fewer than it was
	}
	if l.member.AppReady && p.warm.IsZero() {
		p.warm = now
	}
}

// unlist notes that the pod is in no collection but these.
func (st *state) unlist(p *pod, but ...snapshot.PodService) {
	for svc, pl := range p.places {
		if pl.listed && !slices.ContainsFunc(but, func(ps snapshot.PodService) bool { return ps.Service == svc }) {
			pl.listed, pl.left = false, st.reports
			p.places[svc] = pl
		}
	}
}

// sees reports whether a client is in the pod's collection's view at all.
func (c *sidecar) sees(p *pod, local bool) bool {
	return !local || c.node.Node != "" && c.node.Node == p.member.Node
}

// inTransition reports whether the pod is to be judged at every change.
func (c *sidecar) inTransition() bool {
	p := &c.pod
	if p.hook.on {
		return true // it is to be closed, whoever listens
	}
	if c.sink == nil || c.fresh {
		return false
	}
	// What the pod says of its drain is seen by judging it.
	return !p.own.ready || p.own.draining != p.hook.seen || p.draining() && !p.own.drained
}
