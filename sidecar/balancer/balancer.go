// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Balancer chooses among the endpoints of one service.
type Balancer struct {
	service string
	rnd     *rand.Rand
	policy  Policy
	version string
	seq     uint64 // picks so far: the clock of "least recently picked"

	byAddr   map[netip.AddrPort]*Endpoint
	states   [Draining + 1]int // endpoints by the control plane's state
	ready    set
	draining set
	backoff  backoff
}

// New makes a balancer without endpoints. rnd must not be shared with another
// goroutine.
func New(service string, rnd *rand.Rand) *Balancer {
	return &Balancer{service: service, rnd: rnd, byAddr: map[netip.AddrPort]*Endpoint{}}
}

// Service is the name that the balancer was made for.
func (b *Balancer) Service() string { return b.service }

// Policy is the policy of the latest update.
func (b *Balancer) Policy() Policy { return b.policy }

// Version is the version of the latest update.
func (b *Balancer) Version() string { return b.version }

// Len is the number of endpoints in any state.
func (b *Balancer) Len() int { return len(b.byAddr) }

// Count is the number of endpoints in a state, failing or not.
func (b *Balancer) Count(s State) int { return b.states[s] }

// NoneReady reports whether no ready endpoint can be picked now, so that draining
// ones are.
func (b *Balancer) NoneReady() bool { return len(b.ready.list) == 0 }

// Endpoint finds an endpoint by its address.
func (b *Balancer) Endpoint(a netip.AddrPort) (*Endpoint, bool) {
	e, ok := b.byAddr[a]
	return e, ok
}

// Endpoints lists all endpoints by address. It is made for people to look at:
// it sorts.
func (b *Balancer) Endpoints() []*Endpoint {
	all := make([]*Endpoint, 0, len(b.byAddr))
	for _, e := range b.byAddr {
		all = append(all, e)
	}
	slices.SortFunc(all, func(x, y *Endpoint) int { return x.spec.Addr.Compare(y.spec.Addr) })
	return all
}

// Changes are what an update did.
type Changes struct {
	Added []*Endpoint
	// Removed are picked no more; their RPCs in flight still have to be ended with Done.
	Removed []*Endpoint
	// Moved were there before and have another State now.
	Moved []*Endpoint
}

// removed notes that e was replaced. When the same address is twice in one list, it
// is in c already.
func (c *Changes) removed(e *Endpoint) {
	if i := slices.Index(c.Moved, e); i >= 0 {
		c.Moved = slices.Delete(c.Moved, i, i+1)
	}
	if i := slices.Index(c.Added, e); i >= 0 {
		c.Added = slices.Delete(c.Added, i, i+1)
		return
	}
	c.Removed = append(c.Removed, e)
}

// Update makes the balancer follow spec. An endpoint whose address and UID stay
// keeps its *Endpoint; another UID at the same address is another pod, so the
// old endpoint is removed and a new one added.
func (b *Balancer) Update(spec *Spec) Changes {
	var c Changes
	b.policy = spec.Policy
	if d := spec.Delta; d != nil && d.Base != "" && d.Base == b.version {
		for _, a := range d.Removes {
			if e, ok := b.byAddr[a]; ok {
				c.Removed = append(c.Removed, b.remove(e))
			}
		}
		for i := range d.Upserts {
			b.upsert(&d.Upserts[i], &c)
		}
		b.version = spec.Version
		return c
	}

	keep := make(map[netip.AddrPort]struct{}, len(spec.Endpoints))
	for i := range spec.Endpoints {
		keep[spec.Endpoints[i].Addr] = struct{}{}
		b.upsert(&spec.Endpoints[i], &c)
	}
	if len(keep) != len(b.byAddr) {
		for a, e := range b.byAddr {
			if _, ok := keep[a]; !ok {
				c.Removed = append(c.Removed, b.remove(e))
			}
		}
	}
	b.version = spec.Version
	return c
}

func (b *Balancer) upsert(s *EndpointSpec, c *Changes) {
	e, known := b.byAddr[s.Addr]
	if known && e.spec.UID != s.UID {
		b.remove(e)
		known = false
		c.removed(e)
	}
	if !known {
		e = &Endpoint{b: b, spec: *s, heapPos: -1}
		b.byAddr[s.Addr] = e
		b.states[s.State]++
		b.place(e)
		c.Added = append(c.Added, e)
		return
	}
	// Another pod at the same address owes nothing for what its predecessor
	// failed at.
	if e.spec.Pod != s.Pod {
		e.failing = false
	}
	was := e.spec.State
	b.states[was]--
	b.states[s.State]++
	e.spec = *s
	b.place(e)
	if was != s.State {
		c.Moved = append(c.Moved, e)
	}
}

func (b *Balancer) remove(e *Endpoint) *Endpoint {
	delete(b.byAddr, e.spec.Addr)
	b.states[e.spec.State]--
	b.unplace(e)
	e.b = nil
	return e
}

// place puts e where its state and connectivity say. It is the only place that
// decides about membership.
func (b *Balancer) place(e *Endpoint) {
	var want *set
	waits := false
	switch {
	case e.spec.State == Warming: // in no set: its backoff matters once it is ready
	case e.failing:
		waits = true
	case e.spec.State == Ready:
		want = &b.ready
	case e.spec.State == Draining:
		want = &b.draining
	}
	switch {
	case waits && e.heapPos >= 0:
		heap.Fix(&b.backoff, e.heapPos) // until may have moved
		return
	case want != nil && e.set == want:
		return
	}
	b.unplace(e)
	if want != nil {
		want.insert(e, b.rnd)
	}
	if waits {
		heap.Push(&b.backoff, e)
	}
}

func (b *Balancer) unplace(e *Endpoint) {
	if e.set != nil {
		e.set.remove(e)
	}
	if e.heapPos >= 0 {
		heap.Remove(&b.backoff, e.heapPos)
	}
}

// expire brings back the endpoints whose backoff is over. Each costs O(log
// failing), and only once for each failure.
func (b *Balancer) expire(now time.Time) {
	for len(b.backoff) > 0 && !now.Before(b.backoff[0].until) {
		e := b.backoff[0]
		e.failing = false
		b.place(e)
	}
}

// set is a list of endpoints from which one is taken in O(1). Each endpoint
// knows its place, so that leaving is O(1) too.
type set struct {
	list   []*Endpoint
	cursor int // round_robin: the place of the next pick
}

// insert puts e at a random place: the order is a permutation of this client
// alone, so clients that get the same updates do not march in step.
func (s *set) insert(e *Endpoint, rnd *rand.Rand) {
	at := rnd.IntN(len(s.list) + 1)
	s.list = append(s.list, e)
	last := len(s.list) - 1
	s.list[last] = s.list[at]
	s.list[last].pos = last
	s.list[at], e.pos, e.set = e, at, s
	if last == 0 {
		s.cursor = 0
	}
}

func (s *set) remove(e *Endpoint) {
	last := len(s.list) - 1
	s.list[e.pos] = s.list[last]
	s.list[e.pos].pos = e.pos
	s.list[last] = nil
	s.list = s.list[:last]
	e.set, e.pos = nil, 0
	if s.cursor >= last {
		s.cursor = 0
	}
}

// backoff is a heap of failing endpoints by the end of their backoff.
type backoff []*Endpoint

func (h backoff) Len() int           { return len(h) }
func (h backoff) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h backoff) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapPos, h[j].heapPos = i, j
}

// Push and Pop are called by container/heap only.
func (h *backoff) Push(x any) {
	e := x.(*Endpoint)
	e.heapPos = len(*h)
	*h = append(*h, e)
}

func (h *backoff) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.heapPos = -1
	return e
}
