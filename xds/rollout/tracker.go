// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// Tracker knows who subscribes to what and what became of it. Its methods do not
// block, but for View, and may be called from any goroutine.
type Tracker struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{} // capacity 1: something changed
	asks    chan ask
	stopped chan struct{} // closed when Run has returned

	// mu guards what follows. It is held for map operations and for judging one
	// pod, never during I/O nor while the Directory is asked.
	mu    sync.Mutex
	state *state
	dirty bool
}

// New returns a Tracker that knows of nobody.
func New(cfg Config) (*Tracker, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("rollout: %w", err)
	}
	t := &Tracker{cfg: cfg, metrics: newMetrics(), wake: make(chan struct{}, 1), asks: make(chan ask), stopped: make(chan struct{})}
	t.state = newState(&t.cfg)
	if cfg.Registerer != nil {
		if err := t.metrics.register(cfg.Registerer); err != nil {
			return nil, fmt.Errorf("rollout: metrics: %w", err)
		}
	}
	return t, nil
}

// change runs f with the lock held; f reports whether pods are to be judged.
func (t *Tracker) change(f func(st *state, now time.Time) bool) {
	t.mu.Lock()
	tell := f(t.state, time.Now()) && !t.dirty
	t.dirty = t.dirty || tell
	t.mu.Unlock()
	if tell {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// Serving is called when sidecars can connect: Config.Settle later the replica
// begins to claim something. Only the first call counts.
func (t *Tracker) Serving() {
	t.change(func(st *state, now time.Time) bool { st.serving(now); return false })
}

// Changed is called after what the Directory knows has changed, with the UIDs of
// the Pods that are new and of those that are gone.
func (t *Tracker) Changed(came, left []string) {
	t.change(func(st *state, now time.Time) bool {
		// One that is in both was replaced by another of its name; the UIDs differ.
		st.podsLeft(left, now)
		st.podsCame(came)
		return true
	})
}

// StreamOpened is called first for each ADS stream.
func (t *Tracker) StreamOpened(id uint64, n xds.Node) {
	t.change(func(st *state, now time.Time) bool { st.openADS(id, n, now); return true })
}

// Subscribed notes that the stream is to have the endpoints of svc.
func (t *Tracker) Subscribed(id uint64, svc xds.Service) {
	t.change(func(st *state, _ time.Time) bool { st.subscribed(id, svc); return true })
}

// Unsubscribed notes that the stream no longer has them.
func (t *Tracker) Unsubscribed(id uint64, svc xds.Service) {
	t.change(func(st *state, _ time.Time) bool { st.unsubscribed(id, svc); return true })
}

// StreamClosed is called last for each ADS stream.
func (t *Tracker) StreamClosed(id uint64) {
	t.change(func(st *state, now time.Time) bool { st.closeADS(id, now); return true })
}

// TrackOpened is called first for each Track stream, with what its first Report
// says of the sidecar. Its numbers and those of ADS streams are of one series.
func (t *Tracker) TrackOpened(id uint64, n xds.Node, sink Sink) {
	t.change(func(st *state, now time.Time) bool { st.trackOpened(id, n, sink, now); return false })
}

// ErrGone is returned for a stream whose Pod is gone.
var ErrGone = errors.New("the pod that this stream belongs to is gone")

// TrackReport takes in a Report. After an error nothing of it was, and the stream
// is to be ended: it wraps ErrReport and names the field, or is ErrGone.
func (t *Tracker) TrackReport(id uint64, r *api.Report) error {
	d, err := decode(r)
	if err != nil {
		return err
	}
	t.change(func(st *state, now time.Time) (changed bool) {
		changed, err = st.report(id, d, now)
		return changed
	})
	return err
}

// TrackClosed is called last for each Track stream. The sidecar is waited for
// until its lease is over.
func (t *Tracker) TrackClosed(id uint64) {
	t.change(func(st *state, _ time.Time) bool { st.trackClosed(id); return false })
}

// Subscribers returns the sidecars that subscribe to svc on this replica, each
// once, sorted.
func (t *Tracker) Subscribers(svc xds.Service) []xds.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	var nodes []xds.Node
	for c, u := range t.state.services[svc] {
		if u.ads > 0 {
			nodes = append(nodes, c.node)
		}
	}
	slices.SortFunc(nodes, compareNodes)
	return nodes
}

// Services returns what somebody subscribes to on this replica, with the number
// of sidecars.
func (t *Tracker) Services() map[xds.Service]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := map[xds.Service]int{}
	for svc, uses := range t.state.services {
		for _, u := range uses {
			if u.ads > 0 {
				counts[svc]++
			}
		}
	}
	return counts
}

func compareNodes(a, b xds.Node) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
}

// ErrStopped is returned by View when Run has ended.
var ErrStopped = errors.New("the rollout tracker has stopped")

// ask is a question of View to Run.
type ask struct {
	namespace, workload string
	answer              chan *View // capacity 1
}

// View returns the pods of a namespace that report or did, and are gone since at
// most ten minutes; of one workload if that is not empty. It waits for Run.
func (t *Tracker) View(ctx context.Context, namespace, workload string) (*View, error) {
	q := ask{namespace, workload, make(chan *View, 1)}
	select {
	case t.asks <- q:
	case <-t.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case v := <-q.answer:
		return v, nil
	case <-t.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
