// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"sync"
	"time"

	"evenkeel.dev/xds/snapshot"
)

// Sink is where a source delivers. Apply is called by one goroutine and may take
// its time: what happens meanwhile is coalesced by object.
type Sink interface {
	// Apply takes a batch, the first change of which was seen at that time.
	Apply(changes []snapshot.Change, seen time.Time)
	// Synced is called once, after all that existed at the start was applied.
	Synced()
}

// queue holds at most one change for each object, the newest, so it is bounded
// by what exists and put never blocks.
type queue struct {
	notify chan struct{} // capacity 1

	mu      sync.Mutex
	pending map[ref]snapshot.Change
	first   time.Time
}

// ref names an object.
type ref struct {
	kind snapshot.Kind
	key  snapshot.ObjectKey
}

func newQueue() *queue {
	return &queue{notify: make(chan struct{}, 1), pending: map[ref]snapshot.Change{}}
}

func (q *queue) put(c snapshot.Change, now time.Time) {
	q.mu.Lock()
	if len(q.pending) == 0 {
		q.first = now
	}
	q.pending[ref{c.Kind, c.Key}] = c
	q.mu.Unlock()
	select {
	case q.notify <- struct{}{}:
	default:
	}
}

func (q *queue) take() ([]snapshot.Change, time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes := make([]snapshot.Change, 0, len(q.pending))
	for _, c := range q.pending {
		changes = append(changes, c)
	}
	clear(q.pending)
	return changes, q.first
}

// deliver hands everything to the sink until ctx is done. What is queued when it
// starts is all that existed.
func (q *queue) deliver(ctx context.Context, sink Sink) {
	synced := false
	for {
		if changes, first := q.take(); len(changes) > 0 {
			sink.Apply(changes, first)
		}
		if !synced {
			synced = true
			sink.Synced()
		}
		select {
		case <-q.notify:
		case <-ctx.Done():
			return
		}
	}
}
