// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/xds/api"
)

// Report takes what became of endpoints; Client is a [report.Sink].
func (c *Client) Report(b report.Batch) { c.ledger.report(b) }

// SetOwn says what the pod has decided about itself. Any goroutine may call it;
// own must not be changed afterwards.
func (c *Client) SetOwn(own *api.OwnPod) { c.ledger.setOwn(own) }

// SetDirect says which connections pass by the sidecar, all of them. As SetOwn.
func (c *Client) SetDirect(d *api.DirectConnections) { c.ledger.setOutside(d) }

// HoldEnded tells every replica of the end of a hold, and one of them to write
// it down. As SetOwn; Record is set here.
func (c *Client) HoldEnded(end *api.HoldEnd) { c.ledger.holdEnded(end) }

// Leave says to every replica that can be reached that this sidecar ends and is
// not to be waited for. It returns when they have it, or when ctx ends, or
// after half a second.
func (c *Client) Leave(ctx context.Context) {
	c.ledger.leave()
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for c.stats.tracks.Load() > 0 {
		t := time.NewTimer(5 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// followReplicas makes a stream to each replica, and ends those to others.
func (c *Client) followReplicas(ctx context.Context) {
	targets, known := c.state.replicaTargets(c.cfg.Target)
	if !known {
		return
	}
	for target, tr := range c.tracks {
		if !slices.Contains(targets, target) {
			tr.cancel()
			delete(c.tracks, target)
			c.lost(tr)
		}
	}
	for _, target := range targets {
		if c.tracks[target] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		tr := &track{target: target, cancel: cancel}
		c.tracks[target] = tr
		rnd := rand.New(rand.NewPCG(c.cfg.Rand.Uint64(), c.cfg.Rand.Uint64()))
		c.running.Go(func() { c.tracker.run(ctx, tr, rnd) })
	}
	c.stats.replicas.Store(int64(len(c.tracks)))
}

func (c *Client) endTracks() {
	for _, tr := range c.tracks {
		tr.cancel()
	}
	c.running.Wait()
}

// hear takes a replica's word.
func (c *Client) hear(h heard, now time.Time) {
	switch {
	case c.tracks[h.from.target] != h.from:
		// It was let go meanwhile.
	case h.status == nil:
		c.lost(h.from)
	default:
		h.from.live = true
		if c.learned.take(h.status.GetUpstreams(), c.state, now) {
			c.cfg.Learned(Learned{Missing: []string{"the learned upstreams"}})
			c.learned.last = Learned{}
			c.flush()
		}
		c.cfg.Pod(h.from.target, h.status)
	}
}

func (c *Client) lost(tr *track) {
	if tr.live {
		tr.live = false
		c.cfg.Pod(tr.target, nil)
	}
}
