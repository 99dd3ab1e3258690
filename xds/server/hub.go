// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// hub joins the snapshot to the streams: it knows which stream subscribes to
// what, computes each subscribed resource once per change, and marks it in the
// mailboxes of those who are to get it. It never sends and never waits for a
// stream.
//
// mu guards everything below it. It is held for map operations and for
// computing what a change touched, never during I/O.
type hub struct {
	metrics *metrics
	synced  chan struct{} // closed by setSynced

	mu      sync.Mutex
	done    bool // synced is closed
	store   *snapshot.Store
	entries map[subscription]*entry
	topics  map[snapshot.Topic]map[*entry]struct{}
	pods    map[string]*podWatch // by UID
}

// subscription is a canonical resource name of a type.
type subscription struct {
	typeURL string
	name    string
}

// entry is a resource, or a collection, that somebody subscribes to.
type entry struct {
	key  subscription
	dest xds.DestinationName // DestinationType
	svc  xds.Service         // EndpointType
	// One of these is the current value; nil means unknown or gone.
	destination *snapshot.Resource
	collection  *snapshot.Collection

	topics []snapshot.Topic
	subs   map[*mailbox]struct{}
}

// value is what a stream is to have of a subscription.
type value struct {
	destination *snapshot.Resource
	set         *snapshot.Set
	// since is when the change was seen that led to it; zero for a subscription.
	since time.Time
}

// podWatch is who waits for a Pod to be seen, and who ends with it.
type podWatch struct {
	waiting map[chan struct{}]struct{}
	bound   map[*outlet]struct{}
}

func newHub(store *snapshot.Store, m *metrics) *hub {
	return &hub{
		metrics: m,
		synced:  make(chan struct{}),
		store:   store,
		entries: map[subscription]*entry{},
		topics:  map[snapshot.Topic]map[*entry]struct{}{},
		pods:    map[string]*podWatch{},
	}
}

func (h *hub) setSynced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.done {
		h.done = true
		close(h.synced)
	}
}

func (h *hub) apply(changes []snapshot.Change, seen time.Time) snapshot.Delta {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		h.store.Apply(c)
	}
	h.metrics.objects(h.store.Counts())
	return h.spread(seen)
}

// spread tells those who subscribe to what changed, and those who wait for Pods
// or end with them.
func (h *hub) spread(seen time.Time) snapshot.Delta {
	delta := h.store.Drain()
	for _, uid := range delta.PodsLeft {
		h.podLeft(uid)
	}
	for _, uid := range delta.PodsCame {
		h.podCame(uid)
	}
	dirty := map[*entry]struct{}{}
	for t := range delta.Topics {
		for e := range h.topics[t] {
			dirty[e] = struct{}{}
		}
	}
	for e := range dirty {
		h.update(e, seen)
	}
	return delta
}

// membership, setDraining and servicesAt ask or change the store.
func (h *hub) membership(pod snapshot.ObjectKey) (snapshot.Membership, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.store.Membership(pod)
}

func (h *hub) setDraining(uid string, d snapshot.Drain, seen time.Time) snapshot.Delta {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.store.SetDraining(uid, d)
	return h.spread(seen)
}

func (h *hub) servicesAt(dst netip.AddrPort) []snapshot.ObjectKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.store.ServicesAt(dst)
}

// update computes e anew and tells its subscribers if it differs.
func (h *hub) update(e *entry, seen time.Time) {
	if e.key.typeURL == xds.EndpointType {
		old := e.collection
		e.collection = h.store.Collection(e.svc, old)
		if e.collection == old {
			return
		}
		for mb := range e.subs {
			if set := e.view(mb); set != viewOf(old, mb) {
				mb.put(e.key, value{set: set, since: seen})
			}
		}
		return
	}
	old := e.destination
	res, topics := h.store.Destination(e.dest)
	h.setTopics(e, topics)
	if res != nil && old != nil && res.Version == old.Version || res == nil && old == nil {
		return
	}
	e.destination = res
	for mb := range e.subs {
		mb.put(e.key, value{destination: res, since: seen})
	}
}

func (e *entry) view(mb *mailbox) *snapshot.Set { return viewOf(e.collection, mb) }

func viewOf(c *snapshot.Collection, mb *mailbox) *snapshot.Set {
	if c == nil {
		return nil
	}
	return c.View(mb.node)
}

// subscribe adds mb to those who are told about e, and puts its current value
// into the mailbox. e carries the parsed name.
func (h *hub) subscribe(mb *mailbox, want *entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[want.key]
	if e == nil {
		e = want
		e.subs = map[*mailbox]struct{}{}
		h.entries[e.key] = e
		if e.key.typeURL == xds.EndpointType {
			h.setTopics(e, h.store.CollectionTopics(e.svc))
			e.collection = h.store.Collection(e.svc, nil)
		} else {
			var topics []snapshot.Topic
			e.destination, topics = h.store.Destination(e.dest)
			h.setTopics(e, topics)
		}
	}
	e.subs[mb] = struct{}{}
	mb.put(e.key, value{destination: e.destination, set: e.view(mb)})
}

func (h *hub) unsubscribe(mb *mailbox, keys ...subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		e := h.entries[k]
		if e == nil {
			continue
		}
		delete(e.subs, mb)
		if len(e.subs) == 0 { // nobody's: forget it, it can be computed again
			h.setTopics(e, nil)
			delete(h.entries, k)
		}
	}
}

func (h *hub) setTopics(e *entry, topics []snapshot.Topic) {
	for _, t := range e.topics {
		delete(h.topics[t], e)
		if len(h.topics[t]) == 0 {
			delete(h.topics, t)
		}
	}
	e.topics = topics
	for _, t := range topics {
		if h.topics[t] == nil {
			h.topics[t] = map[*entry]struct{}{}
		}
		h.topics[t][e] = struct{}{}
	}
}

// bindPod ends the stream of o with the Pod, and returns the node that it runs on.
// It waits until the Pod is seen, at most until ctx is done.
func (h *hub) bindPod(ctx context.Context, o *outlet, pod snapshot.ObjectKey, uid string) (node string, ok bool) {
	for {
		h.mu.Lock()
		if have, found := h.store.PodUID(pod); found && have == uid {
			w := h.podWatch(uid)
			w.bound[o] = struct{}{}
			node := h.store.PodNode(pod)
			h.mu.Unlock()
			return node, true
		}
		came := make(chan struct{})
		h.podWatch(uid).waiting[came] = struct{}{}
		h.mu.Unlock()
		select {
		case <-came:
		case <-ctx.Done():
			h.mu.Lock()
			if w := h.pods[uid]; w != nil {
				delete(w.waiting, came)
			}
			h.forgetPod(uid)
			h.mu.Unlock()
			return "", false
		}
	}
}

func (h *hub) unbindPod(o *outlet, uid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.pods[uid]; w != nil {
		delete(w.bound, o)
		h.forgetPod(uid)
	}
}

func (h *hub) podWatch(uid string) *podWatch {
	w := h.pods[uid]
	if w == nil {
		w = &podWatch{waiting: map[chan struct{}]struct{}{}, bound: map[*outlet]struct{}{}}
		h.pods[uid] = w
	}
	return w
}

func (h *hub) forgetPod(uid string) {
	if w := h.pods[uid]; w != nil && len(w.waiting) == 0 && len(w.bound) == 0 {
		delete(h.pods, uid)
	}
}

func (h *hub) podCame(uid string) {
	w := h.pods[uid]
	if w == nil {
		return
	}
	for c := range w.waiting {
		close(c)
	}
	clear(w.waiting)
	h.forgetPod(uid)
}

func (h *hub) podLeft(uid string) {
	w := h.pods[uid]
	if w == nil {
		return
	}
	for o := range w.bound {
		o.end(errPodGone)
	}
}
