// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"sync"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// keepTransitions bounds the cache. A transition is asked for by all who make
// it at nearly the same time; few are under way at once.
const keepTransitions = 512

// keepBytes bounds it too: a new subscriber's first list of 5,000 endpoints is more
// than a megabyte, and a rollout makes another one with each pod.
const keepBytes = 64 << 20

// memberBytes is about what a member costs in a Set that is held by nothing else.
const memberBytes = 40

// transitions encodes the way from one set of endpoints to another, once for all
// streams that go it: thousands of sidecars that have the same and are to have
// the same are sent the same bytes.
type transitions struct {
	nonces nonces
	limit  int

	mu    sync.Mutex
	known map[step]*transition
	order []step // oldest first
	bytes int    // of known
}

// step is a way. From nothing to something is the answer to a subscription and
// ends with the marker; from something to nothing names the collection itself.
type step struct {
	kind     stepKind
	from, to *snapshot.Set
	name     string // of the collection when both are nil
}

type stepKind uint8

const (
	stepChange stepKind = iota + 1
	stepAnswer          // with the marker, or the collection's name as removed
)

type transition struct {
	once   sync.Once
	frames []*frame
	bytes  int // guarded by transitions.mu; 0 until encoded
}

func newTransitions(limit int) *transitions {
	return &transitions{limit: limit, known: map[step]*transition{}}
}

func (t *transitions) of(st step) []*frame {
	t.mu.Lock()
	tr := t.known[st]
	if tr == nil {
		tr = &transition{}
		t.known[st] = tr
		t.order = append(t.order, st)
		t.evict()
	}
	t.mu.Unlock()
	// Outside of the lock: one stream encodes, those who go the same way wait
	// for it, the others do not.
	tr.once.Do(func() {
		tr.frames = t.encode(st)
		t.charge(st, tr)
	})
	return tr.frames
}

// charge accounts for a transition whose size is known now.
func (t *transitions) charge(st step, tr *transition) {
	n := 0
	for _, f := range tr.frames {
		n += len(f.wire)
	}
	for _, s := range []*snapshot.Set{st.from, st.to} {
		if s != nil {
			n += memberBytes * len(s.Members)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[st] != tr {
		return // evicted meanwhile
	}
	tr.bytes = n
	t.bytes += n
	t.evict()
}

// evict forgets the oldest until the bounds are kept; the newest stays in any case.
func (t *transitions) evict() {
	for len(t.order) > keepTransitions || t.bytes > keepBytes && len(t.order) > 1 {
		st := t.order[0]
		t.order[0] = step{}
		t.order = t.order[1:]
		t.bytes -= t.known[st].bytes
		delete(t.known, st)
	}
}

func (t *transitions) encode(st step) []*frame {
	changed, removed := st.to.Diff(st.from)
	switch {
	case st.to == nil:
		removed = append(removed, st.name)
	case st.kind == stepAnswer:
		changed = append(changed, st.to.Marker)
	}
	if len(changed) == 0 && len(removed) == 0 {
		return nil
	}
	return encode(&t.nonces, xds.EndpointType, t.limit, changed, removed)
}

// resume encodes for one stream what differs from the versions that it brought
// along. Members are named; what it has and the set has not is removed.
func (t *transitions) resume(name string, to *snapshot.Set, have map[string]string) []*frame {
	var changed []*snapshot.Resource
	var removed []string
	if to != nil {
		left := make(map[string]struct{}, len(to.Members))
		for _, r := range to.Members {
			left[r.Name] = struct{}{}
			if have[r.Name] != r.Version {
				changed = append(changed, r)
			}
		}
		for n := range have {
			if _, ok := left[n]; !ok && n != name {
				removed = append(removed, n)
			}
		}
		if len(changed) == 0 && len(removed) == 0 {
			return t.of(step{kind: stepAnswer, from: to, to: to}) // shared: the marker alone
		}
		changed = append(changed, to.Marker)
	} else {
		for n := range have {
			if n != name {
				removed = append(removed, n)
			}
		}
		removed = append(removed, name)
	}
	return encode(&t.nonces, xds.EndpointType, t.limit, changed, removed)
}
