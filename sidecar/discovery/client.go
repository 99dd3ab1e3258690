// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"errors"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// Client keeps one stream to the control plane and follows what it says, and
// one to each of its replicas, to report.
type Client struct {
	cfg    Config
	node   *corev3.Node
	stats  stats
	ledger *ledger

	// Any goroutine: what Resolve was asked for and Run has not seen yet.
	mu   sync.Mutex
	want map[router.Key]struct{}
	wake chan struct{} // capacity 1

	// Run's goroutine alone.
	out     outbox
	state   *state
	learned learning
	tracker tracker
	tracks  map[string]*track // by target
	running sync.WaitGroup    // of the tracks
}

// New checks cfg and makes a client; nothing is dialled before Run.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	c := &Client{
		cfg:  cfg,
		node: nodeMessage(cfg.Node),
		want: map[router.Key]struct{}{},
		wake: make(chan struct{}, 1),
	}
	c.ledger = newLedger()
	c.state = newState(cfg.Logger, cfg.Node.Namespace, &c.out)
	c.learned = learning{
		log: cfg.Logger, namespace: cfg.Node.Namespace, ownUID: cfg.Node.UID,
		taken: map[string]struct{}{}, last: Learned{Complete: true},
	}
	c.tracks = map[string]*track{}
	c.tracker = tracker{
		cfg: &c.cfg, ledger: c.ledger, stats: &c.stats, heard: make(chan heard),
		who: &api.Sidecar{
			Namespace: cfg.Node.Namespace, Pod: cfg.Node.Pod, Uid: cfg.Node.UID,
			Workload: cfg.Node.Workload, Node: cfg.Node.NodeName, Zone: cfg.Node.Zone,
		},
	}
	if err := c.stats.register(cfg.Registerer); err != nil {
		return nil, err
	}
	return c, nil
}

// Resolve asks the control plane about k, unless that was done. It never
// blocks; any goroutine may call it. The answer comes through the Sink.
func (c *Client) Resolve(k router.Key) {
	c.mu.Lock()
	c.want[k] = struct{}{}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // Run has yet to look: it will find k too
	}
}

// Synced reports whether the stream is up and the control plane has answered
// on it.
func (c *Client) Synced() bool { return c.stats.synced.Load() }

// Answered reports whether the control plane has ever answered.
func (c *Client) Answered() bool { return c.stats.lastAnswer.Load() != 0 }

// Run follows the control plane until ctx ends. It returns when everything that
// it started has stopped, with nil: an unreachable control plane is a state, not
// an error.
func (c *Client) Run(ctx context.Context) error {
	defer c.stats.synced.Store(false)
	defer c.endTracks()
	if k, ok := c.cfg.targetKey(); ok {
		c.state.findReplicas(k, time.Now())
	}
	c.cfg.Learned(c.learned.last)
	c.followReplicas(ctx)
	sweep := time.NewTicker(min(time.Minute, c.cfg.IdleAfter))
	defer sweep.Stop()
	retry := time.NewTimer(0) // the first attempt: at once
	defer retry.Stop()

	var (
		at       *attempt // nil between attempts
		events   <-chan event
		toSend   chan<- *discoveryv3.DeltaDiscoveryRequest // nil: no stream
		request  *discoveryv3.DeltaDiscoveryRequest        // taken from out, not sent yet
		failures int
		pause    = pauses{min: c.cfg.MinBackoff, max: c.cfg.MaxBackoff, rnd: c.cfg.Rand}
		quiet    complaint
	)
	for {
		send := toSend
		if toSend != nil && request == nil {
			if request = c.out.next(); request != nil {
				c.state.sent(request)
			}
		}
		if request == nil {
			send = nil
		}
		select {
		case <-ctx.Done():
			if at != nil {
				at.stop()
			}
			return nil

		case <-c.wake:
			c.resolveWanted(time.Now())

		case h := <-c.tracker.heard:
			c.hear(h, time.Now())

		case <-c.ledger.moved:
			c.state.seeUse(time.Now())
			c.flush()

		case now := <-sweep.C:
			c.state.sweep(now, c.cfg.IdleAfter, c.cfg.MaxDestinations, c.ledger.active)
			c.flush()

		case <-retry.C:
			at = c.connect(ctx)
			events = at.events

		case send <- request:
			request = nil

		case ev, open := <-events:
			switch {
			case !open:
				at.stop()
				err := at.err
				at, events, toSend, request = nil, nil, nil, nil
				if c.stats.synced.Swap(false) {
					failures = 0 // it was healthy: a restart of the control plane, most likely
				}
				failures++
				wait := pause.next(failures)
				quiet.disconnected(ctx, c.cfg.Logger, time.Now(), c.cfg.Target, err, wait)
				c.stats.disconnects.Add(1)
				retry.Reset(wait)

			case ev.opened:
				c.out.reset(c.node, c.heldAndProbe())
				request, toSend = nil, at.requests

			default:
				now := time.Now()
				if !c.stats.synced.Load() {
					quiet.connected(c.cfg.Logger, c.cfg.Target, ev.response.GetControlPlane().GetIdentifier())
				}
				first := !c.Answered()
				c.stats.answered(now)
				if first {
					c.cfg.Synced()
				}
				if !c.receive(ev.response) {
					at.fail(errors.New("the control plane sends and does not read: too many answers wait"))
				}
				c.followReplicas(ctx)
			}
		}
	}
}

// resolveWanted asks for what Resolve collected.
func (c *Client) resolveWanted(now time.Time) {
	c.mu.Lock()
	want := c.want
	c.want = map[router.Key]struct{}{}
	c.mu.Unlock()
	for k := range want {
		c.state.ask(k, now)
	}
	if len(c.state.dests) > c.cfg.MaxDestinations {
		c.state.sweep(now, c.cfg.IdleAfter, c.cfg.MaxDestinations, c.ledger.active)
	}
	c.flush()
}

// receive applies a response and answers it; false: too many answers wait.
func (c *Client) receive(res *discoveryv3.DeltaDiscoveryResponse) bool {
	reject := ""
	if err := c.state.apply(res); err != nil {
		reject = err.Error()
		c.stats.rejected.Add(1)
		c.cfg.Logger.Warn("malformed resources are refused, the rest of the response is used",
			"type", res.GetTypeUrl(), "nonce", res.GetNonce(), "error", reject)
	}
	c.flush()
	return c.out.ack(res.GetTypeUrl(), res.GetNonce(), reject)
}

func (c *Client) flush() {
	c.state.flush(c.cfg.Sink)
	if c.state.namesDirty {
		c.state.namesDirty = false
		c.ledger.subscribed(c.state.names())
	}
	if len(c.learned.pending) > 0 {
		if l, news := c.learned.advance(c.state, c.ledger.answered); news {
			c.cfg.Learned(l)
		}
	}
	c.stats.destinations.Store(int64(len(c.state.dests)))
	c.stats.services.Store(int64(len(c.state.services)))
	c.stats.endpoints.Store(int64(c.state.endpoints()))
}

// heldAndProbe is what a new stream subscribes to. The probe is a name that is
// answered in every cluster, known or not: without it a sidecar whose app has
// dialled nothing yet could not tell a control plane that serves it from one
// that is merely connected to.
func (c *Client) heldAndProbe() map[string]*subscription {
	held := c.state.held()
	dests := held[xds.DestinationType]
	dests.names = append(dests.names, xds.HostName(c.cfg.Node.Namespace, "kubernetes.default:443"))
	return held
}
