// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/listener"
	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/sidecar/upstream"
)

// Sidecar is the data plane. New, Run, Routes, Service, Warm, Snapshot and Heartbeat
// may be called from any goroutine; all else belongs to the loop.
type Sidecar struct {
	// Fixed after New.
	cfg  Config
	loop *loop.Loop
	done chan struct{} // closed when Run has returned

	// The loop's own, in flow order.
	listener *listener.Listener
	addrs    []netip.AddrPort // of the listener
	downs    []*downSession
	raws     map[*rawConn]struct{}
	table    *router.Table
	asking   waitList
	asks     map[router.Key]*ask
	services map[string]*service
	// Ended services with RPCs still running on their endpoints.
	lingering map[string]*service
	targets   map[netip.AddrPort]*target
	pools     *upstream.Pools

	h2Down, h2Up h2.Config
	recycler     recycler
	relays       int
	bodies       bodyPool
	keptBytes    int
	unrouted     rpcStats // RPCs that failed before they had a destination
	reporter     reporter
	stats        Stats
	waits        [numWaits]uint64
	sweeper      loop.Timer
	draining     bool
	drainTimer   loop.Timer
}

// Stats counts what the relay did.
type Stats struct {
	Replays         uint64
	ReplayGivenUp   uint64           // requests beyond the bounds of what is kept
	Errors          [numCodes]uint64 // responses made here, by code
	RawConns        uint64
	LateHTTP2       uint64 // connections that turned out to be HTTP/2 after the listener had waited
	RawFailed       uint64 // no destination, or it cannot be reached
	RawBytesUp      uint64
	RawBytesDown    uint64
	HeadersTooLarge uint64
}

// sweepEvery is how often what nobody uses is looked for.
const sweepEvery = 10 * time.Second

// New assembles a Sidecar: accept → first bytes → HTTP/2 session → stream →
// route → pick → session to the server. It accepts once Run is called.
func New(cfg Config) (*Sidecar, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sidecar{
		cfg: cfg, done: make(chan struct{}),
		raws: map[*rawConn]struct{}{}, asks: map[router.Key]*ask{},
		services: map[string]*service{}, lingering: map[string]*service{}, targets: map[netip.AddrPort]*target{},
	}
	s.recycler.s = s
	s.reporter.s, s.reporter.sink = s, cfg.Reporter
	s.unrouted.init("", cfg.MaxMethods)

	cfg.Loop.Logger = cfg.Logger
	if s.loop, err = loop.New(cfg.Loop); err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	if err := s.assemble(); err != nil {
		s.loop.Close()
		return nil, err
	}
	return s, nil
}

func (s *Sidecar) assemble() error {
	pool := &h2.Pool{}
	s.h2Down, s.h2Up = s.cfg.Downstream, s.cfg.Upstream
	s.h2Down.Pool, s.h2Down.Stats = pool, &h2.Stats{}
	s.h2Up.Pool, s.h2Up.Stats = pool, &h2.Stats{}

	sessions := s.cfg.Sessions
	sessions.Logger, sessions.Loop, sessions.Rand, sessions.H2 = s.cfg.Logger, s.loop, s.cfg.Rand, s.h2Up
	var err error
	if s.pools, err = upstream.New(sessions); err != nil {
		return fmt.Errorf("sidecar: %w", err)
	}
	s.listener, err = listener.New(listener.Config{
		Logger: s.cfg.Logger, Loop: s.loop, Handler: s,
		OriginalDst: s.cfg.OriginalDst, ErrNoOriginalDst: s.cfg.ErrNoOriginalDst,
	})
	if err != nil {
		return fmt.Errorf("sidecar: %w", err)
	}
	for _, f := range s.cfg.Listeners {
		if err := s.listener.Add(f); err != nil {
			return fmt.Errorf("sidecar: %w", err)
		}
	}
	s.addrs = s.listener.Addrs()
	if s.cfg.Registerer != nil {
		if err := s.cfg.Registerer.Register(collector{s}); err != nil {
			return fmt.Errorf("sidecar: register the metrics: %w", err)
		}
	}
	s.loop.SetTimer(&s.sweeper, s.loop.Now().Add(sweepEvery), sweeper{s})
	return nil
}

// Run serves until ctx ends, then lets streams end for Config.DrainTime. It
// returns when everything is closed.
func (s *Sidecar) Run(ctx context.Context) error {
	defer close(s.done)
	unhook := context.AfterFunc(ctx, func() { s.loop.Post(s.drain) })
	defer unhook()
	// The loop outlives ctx by the drain.
	err := s.loop.Run(context.WithoutCancel(ctx))
	s.listener.Close()
	return err
}

// Heartbeat advances with each turn of the loop, at least four times a second.
func (s *Sidecar) Heartbeat() uint64 { return s.loop.Turns() }

// Routes replaces the routing table.
func (s *Sidecar) Routes(t *router.Table) {
	s.loop.Post(func(now time.Time) {
		s.table = t
		for k := range s.asks {
			if _, ok := t.Lookup(k); ok {
				delete(s.asks, k)
			}
		}
		s.asking.wake(now)
	})
}

// Service brings the endpoints of a service; nil says that it is no more.
func (s *Sidecar) Service(name string, spec *balancer.Spec) {
	s.loop.Post(func(now time.Time) {
		if spec != nil {
			s.service(name).update(now, spec)
		} else if svc, ok := s.services[name]; ok {
			svc.gone(now)
		}
	})
}

// Warm has a service's endpoints connected, as a first RPC would, before there is
// one, and those that arrive later too. It ends Config.ServiceIdle after the latest call.
func (s *Sidecar) Warm(name string) {
	s.loop.Post(func(now time.Time) { s.service(name).warm(now) })
}

// ask is a question to the control plane.
type ask struct {
	at      time.Time // first asked
	renewed time.Time // last passed on
}

// maxAsks bounds the questions that are remembered; the app makes up the names.
const maxAsks = 4096

// askAgain is how often a question that streams still have is passed on again.
const askAgain = time.Minute

func (s *Sidecar) ask(now time.Time, k router.Key) {
	a, ok := s.asks[k]
	switch {
	case ok && now.Sub(a.renewed) < askAgain:
		return
	case ok:
		a.renewed = now
	default:
		if len(s.asks) >= maxAsks {
			clear(s.asks)
		}
		s.asks[k] = &ask{at: now, renewed: now}
	}
	s.cfg.Resolver.Resolve(k)
}

// askedAt is when the youngest of a route's questions was first asked.
func (s *Sidecar) askedAt(now time.Time, rt router.Route) time.Time {
	at := time.Time{}
	for i := range rt.N {
		a, ok := s.asks[rt.Missing[i]]
		if !ok {
			return now
		}
		if a.at.After(at) {
			at = a.at
		}
	}
	return at
}

// listensOn reports whether addr is the sidecar's own.
func (s *Sidecar) listensOn(addr netip.AddrPort) bool { return slices.Contains(s.addrs, addr) }

// sweeper looks for what nobody uses any more.
type sweeper struct{ s *Sidecar }

// Expired implements loop.TimerHandler.
func (w sweeper) Expired(now time.Time, t *loop.Timer) {
	s := w.s
	for _, svc := range s.services {
		svc.sweep(now)
	}
	for _, t := range s.targets {
		if t.told && t.flights.n > 0 {
			t.mark() // they have grown older
		}
		t.collect(now)
	}
	for _, d := range s.downs {
		d.uncache()
	}
	s.loop.SetTimer(t, now.Add(sweepEvery), w)
}

// drain ends the Sidecar: no new connections, streams may end.
func (s *Sidecar) drain(now time.Time) {
	if s.draining {
		return
	}
	s.draining = true
	s.listener.Pause()
	if s.cfg.DrainTime > 0 {
		for _, d := range s.downs {
			d.shutdown(now)
		}
		s.loop.SetTimer(&s.drainTimer, now.Add(s.cfg.DrainTime), drainOver{s})
	}
	s.drained()
}

// drained stops the loop when a drain has nothing more to wait for.
func (s *Sidecar) drained() {
	if s.draining && (s.cfg.DrainTime < 0 || len(s.downs) == 0 && len(s.raws) == 0) {
		s.loop.Stop()
	}
}

type drainOver struct{ s *Sidecar }

// Expired implements loop.TimerHandler.
func (d drainOver) Expired(time.Time, *loop.Timer) { d.s.loop.Stop() }
