// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"net/netip"
	"slices"
	"time"

	"evenkeel.dev/sidecar/loop"
)

// sweepEvery is how often idle and dead sessions are looked for.
const sweepEvery = time.Second

// Stats counts what happened on all pools.
type Stats struct {
	Dials, DialFailures         uint64
	SessionsOpened, SessionsEnd uint64
	GoAways                     uint64
	DeadPeers                   uint64
	QueueFull                   uint64
	Sessions, Queued            int // now
}

// Pools are the pools of one loop.
type Pools struct {
	cfg      Config
	sessions []*session // established or being so; swept
	sweep    loop.Timer
	stats    Stats
}

// New makes Pools.
func New(cfg Config) (*Pools, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Pools{cfg: cfg}, nil
}

// Stats of all pools.
func (ps *Pools) Stats() Stats {
	s := ps.stats
	s.Sessions = len(ps.sessions)
	return s
}

// Pool makes the pool of an address. Nothing is dialled before it is used or warmed.
func (ps *Pools) Pool(addr netip.AddrPort, o Observer) *Pool {
	return &Pool{ps: ps, addr: addr, observer: o}
}

func (ps *Pools) add(s *session) {
	s.place = len(ps.sessions)
	ps.sessions = append(ps.sessions, s)
	if !ps.sweep.Set() {
		ps.cfg.Loop.SetTimer(&ps.sweep, ps.cfg.Loop.Now().Add(sweepEvery), ps)
	}
}

func (ps *Pools) remove(s *session) {
	last := len(ps.sessions) - 1
	ps.sessions[s.place] = ps.sessions[last]
	ps.sessions[s.place].place = s.place
	ps.sessions[last] = nil
	ps.sessions = ps.sessions[:last]
}

// Expired implements loop.TimerHandler: the sweep.
func (ps *Pools) Expired(now time.Time, t *loop.Timer) {
	// Backwards, as a session that is closed has the last one put in its place.
	for i, s := range slices.Backward(ps.sessions) {
		if i < len(ps.sessions) && ps.sessions[i] == s {
			s.check(now)
		}
	}
	if len(ps.sessions) > 0 {
		ps.cfg.Loop.SetTimer(t, now.Add(sweepEvery), ps)
	}
}
