// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"evenkeel.dev/xds"
)

// Tracker knows who subscribes to what. The zero value is not usable.
type Tracker struct {
	mu       sync.Mutex
	streams  map[uint64]*stream
	services map[xds.Service]map[uint64]struct{} // the streams that subscribe
}

type stream struct {
	node     xds.Node
	services map[xds.Service]struct{}
}

// NewTracker returns a Tracker that knows of nobody.
func NewTracker() *Tracker {
	return &Tracker{streams: map[uint64]*stream{}, services: map[xds.Service]map[uint64]struct{}{}}
}

// StreamOpened is called first for each stream.
func (t *Tracker) StreamOpened(id uint64, n xds.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams[id] = &stream{node: n, services: map[xds.Service]struct{}{}}
}

// Subscribed notes that the stream is to have the endpoints of svc.
func (t *Tracker) Subscribed(id uint64, svc xds.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.streams[id]
	if s == nil {
		return
	}
	s.services[svc] = struct{}{}
	if t.services[svc] == nil {
		t.services[svc] = map[uint64]struct{}{}
	}
	t.services[svc][id] = struct{}{}
}

// Unsubscribed notes that the stream no longer has them.
func (t *Tracker) Unsubscribed(id uint64, svc xds.Service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.streams[id]; s != nil {
		delete(s.services, svc)
		t.drop(id, svc)
	}
}

// StreamClosed is called last for each stream.
func (t *Tracker) StreamClosed(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.streams[id]
	if s == nil {
		return
	}
	for svc := range s.services {
		t.drop(id, svc)
	}
	delete(t.streams, id)
}

func (t *Tracker) drop(id uint64, svc xds.Service) {
	delete(t.services[svc], id)
	if len(t.services[svc]) == 0 {
		delete(t.services, svc)
	}
}

// Subscribers returns the sidecars that subscribe to svc, each once, sorted.
func (t *Tracker) Subscribers(svc xds.Service) []xds.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]xds.Node{}
	for id := range t.services[svc] {
		n := t.streams[id].node
		seen[n.ID()+"/"+n.UID] = n
	}
	return slices.SortedFunc(maps.Values(seen), compareNodes)
}

// Services returns what somebody subscribes to, with the number of sidecars.
func (t *Tracker) Services() map[xds.Service]int {
	t.mu.Lock()
	services := slices.Collect(maps.Keys(t.services))
	t.mu.Unlock()
	counts := make(map[xds.Service]int, len(services))
	for _, svc := range services {
		if n := len(t.Subscribers(svc)); n > 0 {
			counts[svc] = n
		}
	}
	return counts
}

func compareNodes(a, b xds.Node) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
}
