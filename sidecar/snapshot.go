// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ErrEnded: the Sidecar runs no more.
var ErrEnded = errors.New("sidecar: the data plane has ended")

// Snapshot is what the Sidecar knows and does, for people: /debug/endpoints.
type Snapshot struct {
	Services   []ServiceSnapshot    `json:"services"`
	Direct     []EndpointSnapshot   `json:"direct"` // reached without a service
	Downstream []DownstreamSnapshot `json:"downstream"`
	RawConns   []RawSnapshot        `json:"raw_connections"`
	Routes     int                  `json:"routes"` // keys that the control plane has answered
	Asked      []string             `json:"asked"`  // keys that it has not
	Streams    int                  `json:"streams"`
	Waiting    int                  `json:"waiting_for_route"`
	KeptBytes  int                  `json:"replay_bytes"`
	Replays    uint64               `json:"replays"`
}

// ServiceSnapshot is one service.
type ServiceSnapshot struct {
	Name      string             `json:"name"`
	Policy    string             `json:"policy"`
	Version   string             `json:"version,omitempty"`
	Answered  bool               `json:"answered"`
	Active    bool               `json:"active"` // has RPCs, or had of late
	InUse     bool               `json:"in_use"` // its endpoints are kept connected
	Waiting   int                `json:"waiting"`
	Endpoints []EndpointSnapshot `json:"endpoints"`
}

// EndpointSnapshot is one endpoint, or one address.
type EndpointSnapshot struct {
	Addr         netip.AddrPort    `json:"addr"`
	Pod          string            `json:"pod,omitempty"`
	UID          string            `json:"uid,omitempty"`
	Node         string            `json:"node,omitempty"`
	Zone         string            `json:"zone,omitempty"`
	State        string            `json:"state,omitempty"`
	Connectivity string            `json:"connectivity"`
	Answer       string            `json:"answer,omitempty"`  // as it was reported
	Slow         bool              `json:"slow,omitempty"`    // the first connect took long
	Failing      bool              `json:"failing,omitempty"` // connecting fails now
	Drain        *DrainSnapshot    `json:"drain,omitempty"`
	Error        string            `json:"error,omitempty"`
	Sessions     int               `json:"sessions"`
	Queued       int               `json:"queued"`
	HeldBytes    int64             `json:"held_bytes"` // of responses that the app has not taken
	InFlight     int               `json:"in_flight"`
	Picked       uint64            `json:"picked"`
	RPCs         map[string]uint64 `json:"rpcs,omitempty"`     // attempts that ended, by status
	Failed       uint64            `json:"failed,omitempty"`   // RPCs that failed because of it
	Replayed     uint64            `json:"replayed,omitempty"` // RPCs that were sent to another one instead
}

// DrainSnapshot is where the drain of an endpoint stands.
type DrainSnapshot struct {
	Since  string `json:"since"`          // how long ago it began
	Left   bool   `json:"left,omitempty"` // it is no longer in the service
	Picked bool   `json:"picked"`         // as nothing else is ready
	// Youngest RPC in flight: its age when the drain began.
	Youngest string `json:"youngest,omitempty"`
}

// DownstreamSnapshot is one HTTP/2 connection of the app.
type DownstreamSnapshot struct {
	Peer      netip.AddrPort `json:"peer"`
	Orig      string         `json:"destination,omitempty"`
	Authority string         `json:"authority,omitempty"`
	Service   string         `json:"service,omitempty"`
	Streams   int            `json:"streams"`
	Total     uint64         `json:"streams_total"`
	Age       string         `json:"age"`
}

// RawSnapshot is one connection that is relayed as bytes.
type RawSnapshot struct {
	Destination netip.AddrPort `json:"destination"`
}

// Snapshot asks the loop. It fails when ctx ends first or the Sidecar has ended.
func (s *Sidecar) Snapshot(ctx context.Context) (Snapshot, error) {
	var snap Snapshot
	switch err := s.inLoop(ctx.Done(), func(now time.Time) { snap = s.snapshot(now) }); {
	case errors.Is(err, errLate):
		return Snapshot{}, ctx.Err()
	case err != nil:
		return Snapshot{}, err
	}
	return snap, nil
}

var errLate = errors.New("sidecar: the loop did not answer in time")

// inLoop runs fn in the loop and waits for it, until late is closed. On error fn may still run later,
// or be running: its results must not be used then.
func (s *Sidecar) inLoop(late <-chan struct{}, fn func(now time.Time)) error {
	ran := make(chan struct{})
	if !s.loop.Post(func(now time.Time) { fn(now); close(ran) }) {
		return ErrEnded
	}
	select {
	case <-ran:
		return nil
	case <-s.done:
		return ErrEnded
	case <-late:
		return errLate
	}
}

func (s *Sidecar) snapshot(now time.Time) Snapshot {
	snap := Snapshot{
		Services: []ServiceSnapshot{}, Direct: []EndpointSnapshot{}, Downstream: []DownstreamSnapshot{},
		RawConns: []RawSnapshot{}, Asked: []string{},
		Routes: s.table.Len(), Streams: s.relays, Waiting: s.asking.n, KeptBytes: s.keptBytes, Replays: s.stats.Replays,
	}
	for _, svc := range s.services {
		snap.Services = append(snap.Services, svc.snapshot(now))
	}
	slices.SortFunc(snap.Services, func(a, b ServiceSnapshot) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range s.targets {
		if !t.lastUse.IsZero() {
			e := t.snapshot()
			e.InFlight, e.Picked, e.RPCs = t.flights.n, t.picked, statusMap(&t.rpcs)
			e.Failed, e.Replayed = t.failed, t.replayed
			snap.Direct = append(snap.Direct, e)
		}
	}
	slices.SortFunc(snap.Direct, func(a, b EndpointSnapshot) int { return a.Addr.Compare(b.Addr) })
	for _, d := range s.downs {
		v := DownstreamSnapshot{
			Peer: d.peer, Authority: d.cachedAuthority, Streams: d.relays, Total: d.streams,
			Age: now.Sub(d.opened).Round(time.Millisecond).String(),
		}
		if d.orig.IsValid() {
			v.Orig = d.orig.String()
		}
		v.Service = d.service
		snap.Downstream = append(snap.Downstream, v)
	}
	for r := range s.raws {
		snap.RawConns = append(snap.RawConns, RawSnapshot{Destination: r.orig})
	}
	for k := range s.asks {
		snap.Asked = append(snap.Asked, k.String())
	}
	slices.Sort(snap.Asked)
	return snap
}

func (svc *service) snapshot(now time.Time) ServiceSnapshot {
	v := ServiceSnapshot{
		Name: svc.name, Policy: svc.b.Policy().String(), Version: svc.b.Version(), Answered: svc.answered,
		Active: svc.active, InUse: svc.inUse, Waiting: svc.waiting.n, Endpoints: []EndpointSnapshot{},
	}
	for _, be := range svc.b.Endpoints() {
		v.Endpoints = append(v.Endpoints, endpointOf(be).snapshot(now))
	}
	for _, e := range svc.draining {
		if e.left {
			v.Endpoints = append(v.Endpoints, e.snapshot(now))
		}
	}
	return v
}

func (e *endpoint) snapshot(now time.Time) EndpointSnapshot {
	v := e.t.snapshot()
	spec := e.be.Spec()
	v.Pod, v.UID, v.Node, v.Zone, v.State = spec.Pod, spec.UID, spec.Node, spec.Zone, spec.State.String()
	v.Answer, v.Slow, v.Failing = e.answer.String(), e.slow, e.failing
	v.InFlight, v.Picked, v.RPCs = e.be.InFlight(), e.be.Picked(), statusMap(&e.rpcs)
	v.Failed, v.Replayed = e.failed, e.replayed
	if e.draining {
		v.Drain = &DrainSnapshot{
			Since: now.Sub(e.drainBegan).Round(time.Millisecond).String(), Left: e.left, Picked: e.isPicked(),
		}
		if e.flights.n > 0 {
			v.Drain.Youngest = e.flights.youngest(e.drainBegan).Round(time.Millisecond).String()
		}
	}
	return v
}

func (t *target) snapshot() EndpointSnapshot {
	v := EndpointSnapshot{
		Addr: t.addr, Connectivity: t.pool.Connectivity().String(),
		Sessions: t.pool.Sessions(), Queued: t.pool.Queued(), HeldBytes: t.pool.Held(),
	}
	if err := t.pool.LastError(); err != nil {
		v.Error = err.Error()
	}
	return v
}

func statusMap(rpcs *[numCodes]uint64) map[string]uint64 {
	var m map[string]uint64
	for c, n := range rpcs {
		if n > 0 {
			if m == nil {
				m = map[string]uint64{}
			}
			m[code(c).String()] = n
		}
	}
	return m
}
