// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net/netip"
	"slices"
	"time"

	"evenkeel.dev/sidecar/upstream"
)

// target is an address with its sessions. Services that have the same address
// share it; a stream that is relayed to where the app meant has one without any service.
type target struct {
	s     *Sidecar
	addr  netip.AddrPort
	pool  *upstream.Pool
	users []*endpoint // of services

	// For streams without a service.
	direct  rpcStats
	flights int // relays that hold the target directly
	picked  uint64
	rpcs    [numCodes]uint64
	lastUse time.Time
}

func (s *Sidecar) target(addr netip.AddrPort) *target {
	t, ok := s.targets[addr]
	if !ok {
		t = &target{s: s, addr: addr}
		t.direct.init(addr.String(), s.cfg.MaxMethods)
		t.pool = s.pools.Pool(addr, t)
		s.targets[addr] = t
	}
	return t
}

func (t *target) join(e *endpoint) { t.users = append(t.users, e) }

func (t *target) leave(now time.Time, e *endpoint) {
	if i := slices.Index(t.users, e); i >= 0 {
		t.users = slices.Delete(t.users, i, i+1)
	}
	if len(t.users) == 0 {
		t.pool.Cool()
		t.collect(now)
	}
}

// collect drops a target that nobody uses: no service has it, no stream was
// relayed to it for a while.
func (t *target) collect(now time.Time) {
	if len(t.users) > 0 || t.flights > 0 || now.Sub(t.lastUse) < t.s.cfg.ServiceIdle && !t.lastUse.IsZero() {
		return
	}
	delete(t.s.targets, t.addr)
	t.pool.Close(now)
}

// Connected implements upstream.Observer.
func (t *target) Connected(now time.Time) {
	for _, e := range t.users {
		e.svc.connected++
		e.be.SetConnected()
	}
	for _, e := range slices.Clone(t.users) {
		e.svc.wake(now)
	}
}

// Disconnected implements upstream.Observer. Where another endpoint is
// connected, RPCs go there while this one is dialled again; where none is, they queue on the dial.
func (t *target) Disconnected(now time.Time) {
	for _, e := range t.users {
		e.svc.connected--
		e.avoid(now)
	}
}

// Slow implements upstream.Observer.
func (t *target) Slow(now time.Time) {
	for _, e := range t.users {
		e.be.SetFailing(now.Add(connectHold))
	}
	if len(t.users) > 0 {
		t.pool.Evict(now)
	}
}

// Failing implements upstream.Observer.
func (t *target) Failing(now, retry time.Time, _ error) {
	for _, e := range t.users {
		// Beyond the retry: its outcome brings the endpoint back, not the
		// clock, which would let RPCs try out whether it is there.
		e.be.SetFailing(retry.Add(connectHold))
	}
}

// connectHold is how long an endpoint that is being dialled is kept from picks. Its
// pool ends it earlier, when it is connected. Only when the pool is not kept
// warm any more, and so dials no more, does it come to its end.
const connectHold = 10 * time.Second
