// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"cmp"
	"slices"
	"time"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// maxTallies bounds the pods of which failures are counted without ever having
// heard of them.
const maxTallies = 10000

// tally is what became of the RPCs that a pod did not serve.
type tally struct{ failed, replayed uint64 }

// overflow is a bound that was hit.
type overflow struct {
	what  string // services, endpoints, workloads, upstreams
	who   string
	first bool // for the log
}

// report takes in a Report of a Track stream. changed is false when it did
// nothing but renew a lease that was not over.
func (st *state) report(id uint64, r *report, now time.Time) (changed bool, err error) {
	c := st.tracks[id]
	switch {
	case c == nil:
		return false, ErrGone
	case c.track != id:
		return false, nil // a leftover stream: a newer one speaks for the sidecar
	}
	whole := c.fresh
	changed = whole || !c.inLease(now) || r.leaving || r.own != nil || r.dialled != nil ||
		len(r.services) > 0 || len(r.direct) > 0 || len(r.holds) > 0
	st.reports++
	c.heard, c.spoke, c.fresh = now, st.reports, false
	switch {
	case whole:
		for _, u := range c.uses {
			u.stale = u.reported
		}
	case now.Sub(c.opened) >= firstPage:
		changed = st.dropStale(c, now) || changed
	}
	if !changed {
		return false, nil
	}
	for i := range r.services {
		st.takeService(c, &r.services[i], now)
	}
	st.takeDirect(c, r.direct, whole)
	if r.dialled != nil || whole {
		c.dialled = r.dialled
		setMember(st.dialling, c, len(c.dialled) > 0)
	}
	if r.own != nil {
		c.pod.own = *r.own
	} else if whole {
		c.pod.own = own{}
	}
	for i := range r.holds {
		st.takeHold(c, &r.holds[i])
	}
	if r.leaving {
		st.leave(c, now)
	}
	return true, nil
}

// firstPage is how long after its first Report a stream may still bring what
// stood in the one before it: everything at once may be too much for one message.
const firstPage = 500 * time.Millisecond

// dropStale drops the services that the stream before this one had told of, and
// this one has not.
func (st *state) dropStale(c *sidecar, now time.Time) (dropped bool) {
	for svc, u := range c.uses {
		if u.stale {
			st.unreport(c, svc, now)
			dropped = true
		}
	}
	return dropped
}

// unreport forgets what c said of svc; an ADS stream may still subscribe to it.
func (st *state) unreport(c *sidecar, svc xds.Service, now time.Time) {
	u := c.uses[svc]
	st.learned.set(st, c, u, nil, now)
	c.kept -= len(u.endpoints)
	*u = use{ads: u.ads, endpoints: map[endpointID]endpoint{}}
	st.dropUnused(c, svc)
}

func (st *state) takeService(c *sidecar, r *serviceReport, now time.Time) {
	if r.gone {
		if u := c.uses[r.svc]; u != nil && u.reported {
			st.unreport(c, r.svc, now)
		}
		return
	}
	full := func() bool { return c.uses[r.svc] == nil && len(c.uses) >= st.cfg.MaxServices }
	if full() {
		st.dropStale(c, now) // at a bound, what is about to go makes room at once
	}
	if full() {
		st.overflow("services", c)
		return
	}
	u := st.useOf(c, r.svc)
	if !u.reported {
		u.reported, u.since = true, now
	}
	u.active = r.active
	u.used = u.used || r.active
	st.learned.set(st, c, u, r.destinations, now)
	old := u.endpoints
	if u.stale { // this stream speaks of it for the first time
		u.stale = false
		c.kept -= len(old)
		u.endpoints = make(map[endpointID]endpoint, len(r.endpoints))
	}
	for i := range r.endpoints {
		e := &r.endpoints[i]
		was := old[e.id] // its zero value is: nothing said yet
		if !e.gone && c.kept >= st.cfg.MaxEndpoints {
			st.dropStale(c, now)
		}
		if !st.keep(c, u.endpoints, e, was) {
			continue
		}
		switch {
		case e.answer == connected && was.answer != connected:
			u.excused = false
		case e.answer == failed && was.answer == none:
			st.excuseLate(u, r.svc, e.id, now)
		}
	}
}

// keep stores what was said of an endpoint, within the bound.
func (st *state) keep(c *sidecar, in map[endpointID]endpoint, e *endpointReport, was endpoint) bool {
	st.count(e.id.Value().uid, &was, &e.endpoint)
	_, had := in[e.id]
	if e.gone {
		if had {
			delete(in, e.id)
			c.kept--
		}
		return false
	}
	if !had {
		if c.kept >= st.cfg.MaxEndpoints {
			st.overflow("endpoints", c)
			return false
		}
		c.kept++
	}
	in[e.id] = e.endpoint
	return true
}

func (st *state) takeDirect(c *sidecar, reports []endpointReport, whole bool) {
	old := c.direct
	if whole {
		c.kept -= len(old)
		c.direct = make(map[endpointID]endpoint, len(reports))
	}
	for i := range reports {
		st.keep(c, c.direct, &reports[i], old[reports[i].id])
	}
	setMember(st.direct, c, len(c.direct) > 0)
}

// count adds to the tally of a pod what its counters grew by. A sidecar that was
// restarted counts from zero.
func (st *state) count(uid string, was, is *endpoint) {
	grown := func(was, is uint64) uint64 {
		if is < was {
			return is
		}
		return is - was
	}
	failed, replayed := grown(was.failed, is.failed), grown(was.replayed, is.replayed)
	if uid == "" || failed == 0 && replayed == 0 {
		return
	}
	t := st.tallies[uid]
	if t == nil {
		if len(st.tallies) >= maxTallies {
			return
		}
		t = &tally{}
		st.tallies[uid] = t
	}
	t.failed += failed
	t.replayed += replayed
}

// maxHoldsKept bounds the holds of one pod: each liveness restart adds one.
const maxHoldsKept = 16

// heldPod is a hold that ended, to be counted and told.
type heldPod struct {
	pod snapshot.ObjectKey
	uid string
	end holdEnd
}

// takeHold notes the end of a hold; a new stream brings all of them again.
func (st *state) takeHold(c *sidecar, h *holdEnd) {
	p := &c.pod
	if h.reason == reasonWaiting { // not an end: for people alone
		if h.record && !p.waitTold {
			p.waitTold = true
			st.out.holds = append(st.out.holds, heldPod{c.objectKey(), cmp.Or(c.node.UID, p.member.UID), *h})
		}
		return
	}
	i := slices.IndexFunc(p.holds, func(o holdEnd) bool { return o.hold == h.hold && o.waited == h.waited && o.reason == h.reason })
	isNew := i < 0
	if isNew {
		if len(p.holds) == maxHoldsKept {
			p.holds = slices.Delete(p.holds, 0, 1)
		}
		i = len(p.holds)
		p.holds = append(p.holds, *h)
		p.holds[i].record = false
	}
	if h.record && !p.holds[i].record {
		p.holds[i].record = true
		st.out.holds = append(st.out.holds, heldPod{c.objectKey(), cmp.Or(c.node.UID, p.member.UID), *h})
	}
	if isNew && h.hold == holdReady && h.reason == reasonTimeout {
		p.timedOut = h.missing
		p.excuse = true
	}
}

func (st *state) overflow(what string, c *sidecar) {
	st.out.overflows = append(st.out.overflows, overflow{what, c.name, !c.overflown})
	c.overflown = true
}

func setMember(set map[*sidecar]struct{}, c *sidecar, in bool) {
	if in {
		set[c] = struct{}{}
	} else {
		delete(set, c)
	}
}
