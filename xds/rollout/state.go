// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"time"

	"evenkeel.dev/xds"
)

// Times of the state. What both sides keep to is in package xds.
const (
	// keepSilent is how long a sidecar that says nothing is remembered.
	keepSilent = 10 * time.Minute
	// keepGone and maxGone bound the pods that are gone, for people.
	keepGone = 10 * time.Minute
	maxGone  = 1000
	// heldUp is the pause between two ticks after which the state does not trust
	// silence: the Reports of that time may be unread.
	heldUp = xds.Lease / 2
)

// state is everything that is known. It is pure: every input takes now.
type state struct {
	cfg *Config

	// calm is before when nothing is claimed; zero: not serving yet.
	calm   time.Time
	ticked time.Time
	swept  time.Time

	sidecars map[string]*sidecar // by key
	aliases  map[string]*sidecar // by the UID of the Pod, of those that did not know it themselves
	streams  map[uint64]*adsStream
	tracks   map[uint64]*sidecar
	services map[xds.Service]map[*sidecar]*use // who subscribes
	direct   map[*sidecar]struct{}             // who reports addresses without a service
	dialling map[*sidecar]struct{}             // who has connections past its sidecar
	gone     []*sidecar                        // oldest first
	learned  learned
	tallies  map[string]*tally // by UID

	epoch   uint64 // numbers the judgements, for sidecar.mark
	reports uint64 // numbers the Reports, so that it is known what came before what
	out     effects
}

// effects are what is to be done outside, in order.
type effects struct {
	drains     []drainChange
	holds      []heldPod
	propagated []time.Duration
	overflows  []overflow
}

// sidecar is one sidecar: a client, and the pod that it is in.
type sidecar struct {
	key  string
	name string // "namespace/pod"
	node xds.Node

	// The lease.
	adsStreams int
	adsOpened  time.Time // of the newest ADS stream, zero without one
	heard      time.Time // the last Report
	spoke      uint64    // its number
	left       bool      // it said so, or its Pod is gone

	// The Track stream: the newest one's word counts.
	track  uint64 // 0: none
	sink   Sink
	opened time.Time
	fresh  bool // its first Report is still to come

	uses      map[xds.Service]*use
	direct    map[endpointID]endpoint
	dialled   []dialled
	kept      int  // endpoints, for the bound
	overflown bool // logged once

	pod pod

	// Scratch of one judgement.
	mark    uint64
	waiting bool
}

// use is a service that a sidecar subscribes to, here or elsewhere.
type use struct {
	ads          int // streams of this replica
	reported     bool
	stale        bool      // by the stream before, not by this one yet
	since        time.Time // when it was first reported
	active       bool
	used         bool // it was active once
	excused      bool
	destinations []string // that the workload has learnt from it
	endpoints    map[endpointID]endpoint
}

type adsStream struct {
	sidecar  *sidecar
	services map[xds.Service]struct{}
}

func newState(cfg *Config) *state {
	return &state{
		cfg:      cfg,
		sidecars: map[string]*sidecar{},
		aliases:  map[string]*sidecar{},
		streams:  map[uint64]*adsStream{},
		tracks:   map[uint64]*sidecar{},
		services: map[xds.Service]map[*sidecar]*use{},
		direct:   map[*sidecar]struct{}{},
		dialling: map[*sidecar]struct{}{},
		learned:  learned{workloads: map[string]*workload{}},
		tallies:  map[string]*tally{},
	}
}

// serving begins the time after which something is claimed.
func (st *state) serving(now time.Time) {
	if st.calm.IsZero() {
		st.calm = now.Add(st.cfg.Settle)
	}
}

func (st *state) settled(now time.Time) bool { return !st.calm.IsZero() && !now.Before(st.calm) }

// tick is called often, and reports whether the process was held up: then leases
// look over that are not.
func (st *state) tick(now time.Time) (late time.Duration) {
	if late = now.Sub(st.ticked); st.ticked.IsZero() || late < heldUp {
		late = 0
	} else if t := now.Add(xds.Lease); !st.calm.IsZero() && t.After(st.calm) {
		st.calm = t
	}
	st.ticked = now
	if now.Sub(st.swept) >= time.Second {
		st.swept = now
		st.sweep(now)
	}
	return late
}

// sweep forgets who has long been silent.
func (st *state) sweep(now time.Time) {
	for _, c := range st.sidecars {
		if c.adsStreams == 0 && c.track == 0 && now.Sub(c.heard) > keepSilent {
			st.forget(c, now)
		}
	}
	for len(st.gone) > 0 && (len(st.gone) > maxGone || now.Sub(st.gone[0].pod.goneAt) > keepGone) {
		st.dropGone(0)
	}
}

// keyOf tells sidecars apart: by the Pod's UID. On a unix socket it may be missing.
func keyOf(n xds.Node) string {
	if n.UID != "" {
		return n.UID
	}
	return n.ID()
}

// meet returns the sidecar of a stream that was opened.
func (st *state) meet(n xds.Node) *sidecar {
	key := keyOf(n)
	c := st.sidecars[key]
	if c == nil {
		c = &sidecar{key: key, name: n.ID(), uses: map[xds.Service]*use{}, direct: map[endpointID]endpoint{}}
		st.sidecars[key] = c
		for i, g := range st.gone { // a watch that starts anew may show a Pod again whose end it had reported
			if g.key == key {
				st.dropGone(i)
				break
			}
		}
	}
	if c.node.Workload == "" { // a name is never taken back, so that what was learnt can be
		c.node.Workload = n.Workload
	}
	n.Workload = c.node.Workload
	c.node, c.left = n, false
	return c
}

// inLease reports whether c is waited for.
func (c *sidecar) inLease(now time.Time) bool {
	if c.left {
		return false
	}
	return within(c.heard, now) || c.adsOpened.After(c.heard) && within(c.adsOpened, now)
}

func within(t, now time.Time) bool { return !t.IsZero() && now.Sub(t) <= xds.Lease }

// openADS, subscribed, unsubscribed and closeADS follow the ADS streams of
// this replica.
func (st *state) openADS(id uint64, n xds.Node, now time.Time) {
	c := st.meet(n)
	c.adsStreams++
	c.adsOpened = now
	st.streams[id] = &adsStream{c, map[xds.Service]struct{}{}}
}

func (st *state) subscribed(id uint64, svc xds.Service) {
	s := st.streams[id]
	if s == nil {
		return
	}
	if _, has := s.services[svc]; has {
		return
	}
	s.services[svc] = struct{}{}
	st.useOf(s.sidecar, svc).ads++
}

func (st *state) unsubscribed(id uint64, svc xds.Service) {
	s := st.streams[id]
	if s == nil {
		return
	}
	if _, has := s.services[svc]; !has {
		return
	}
	delete(s.services, svc)
	if u := s.sidecar.uses[svc]; u != nil {
		u.ads--
		st.dropUnused(s.sidecar, svc)
	}
}

func (st *state) closeADS(id uint64, now time.Time) {
	s := st.streams[id]
	if s == nil {
		return
	}
	for svc := range s.services {
		st.unsubscribed(id, svc)
	}
	delete(st.streams, id)
	c := s.sidecar
	if c.adsStreams--; c.adsStreams == 0 {
		c.adsOpened = time.Time{}
		if c.heard.IsZero() && c.track == 0 {
			st.forget(c, now) // nothing but the stream was known of it
		}
	}
}

func (st *state) useOf(c *sidecar, svc xds.Service) *use {
	u := c.uses[svc]
	if u == nil {
		u = &use{endpoints: map[endpointID]endpoint{}}
		c.uses[svc] = u
		if st.services[svc] == nil {
			st.services[svc] = map[*sidecar]*use{}
		}
		st.services[svc][c] = u
	}
	return u
}

func (st *state) dropUnused(c *sidecar, svc xds.Service) {
	if u := c.uses[svc]; u == nil || u.ads > 0 || u.reported {
		return
	}
	delete(c.uses, svc)
	delete(st.services[svc], c)
	if len(st.services[svc]) == 0 {
		delete(st.services, svc)
	}
}

// trackOpened makes the stream the one whose word counts.
func (st *state) trackOpened(id uint64, n xds.Node, sink Sink, now time.Time) {
	c := st.meet(n)
	st.tracks[id] = c
	c.track, c.sink, c.opened, c.fresh = id, sink, now, true
	c.pod.beat = time.Time{} // a status at once
	c.pod.sent = nil
}

func (st *state) trackClosed(id uint64) {
	c := st.tracks[id]
	if c == nil {
		return
	}
	delete(st.tracks, id)
	if c.track == id {
		c.track, c.sink = 0, nil
	}
}

// podsCame and podsLeft follow the watch.
func (st *state) podsCame(uids []string) {
	for _, uid := range uids {
		if c := st.podOf(uid); c != nil {
			c.left = false
		}
	}
}

func (st *state) podsLeft(uids []string, now time.Time) {
	for _, uid := range uids {
		if c := st.podOf(uid); c != nil {
			st.leave(c, now)
			c.pod.goneAt = now
			st.forget(c, now)
		} else {
			delete(st.tallies, uid)
		}
	}
}

// podOf finds the pod of a UID.
func (st *state) podOf(uid string) *sidecar {
	if uid == "" {
		return nil
	}
	if c := st.sidecars[uid]; c != nil {
		return c
	}
	return st.aliases[uid]
}

// leave drops what c reported: it is not waited for any more.
func (st *state) leave(c *sidecar, now time.Time) {
	c.left = true
	for svc := range c.uses {
		st.unreport(c, svc, now)
	}
	clear(c.direct)
	c.dialled, c.kept = nil, 0
	delete(st.direct, c)
	delete(st.dialling, c)
}

// forget drops c as a whole; if it was a pod that is gone, people can still see it.
func (st *state) forget(c *sidecar, now time.Time) {
	st.leave(c, now)
	for svc, u := range c.uses {
		u.ads = 0
		st.dropUnused(c, svc)
	}
	for id, s := range st.streams { // streams that outlive their Pod end in a moment
		if c.adsStreams > 0 && s.sidecar == c {
			delete(st.streams, id)
		}
	}
	if c.track != 0 {
		delete(st.tracks, c.track)
	}
	c.adsStreams, c.track, c.sink = 0, 0, nil
	delete(st.sidecars, c.key)
	uid := c.pod.member.UID
	if st.aliases[uid] == c {
		delete(st.aliases, uid)
	}
	if c.pod.goneAt.IsZero() || c.heard.IsZero() {
		delete(st.tallies, uid)
		return
	}
	st.gone = append(st.gone, c)
	if len(st.gone) > maxGone {
		st.dropGone(0)
	}
}

func (st *state) dropGone(i int) {
	delete(st.tallies, st.gone[i].pod.member.UID)
	st.gone = append(st.gone[:i], st.gone[i+1:]...)
}

// reporters counts the sidecars that report and are in their lease.
func (st *state) reporters(now time.Time) (n int) {
	for _, c := range st.sidecars {
		if !c.left && within(c.heard, now) {
			n++
		}
	}
	return n
}

// toJudge are the pods whose heartbeat is due and, if asked for, those in transition.
func (st *state) toJudge(now time.Time, transition bool) (pods []*sidecar) {
	for _, c := range st.sidecars {
		if c.sink != nil && !c.fresh && !now.Before(c.pod.beat) || transition && c.inTransition() {
			pods = append(pods, c)
		}
	}
	return pods
}
