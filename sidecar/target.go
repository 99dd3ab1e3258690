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
	uid   string      // of the pod that the sessions are to, as far as a service tells

	// For streams without a service.
	direct  rpcStats
	flights flights
	picked  uint64
	rpcs    [numCodes]uint64
	lastUse time.Time

	failed, replayed uint64
	marked           bool // it is to be reported
	told             bool // it was
	toldFlights      int
	gone             bool
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

// join has the endpoint hear of the sessions, and takes the answer that they are.
func (t *target) join(now time.Time, e *endpoint) {
	if uid := e.be.Spec().UID; uid != "" && uid != t.uid {
		// What there is was made to the pod that had the address before, or
		// may have been. An endpoint without a UID (no pod, for all that its service
		// knows) claims nothing.
		t.uid = uid
		t.pool.Renew(now)
	}
	t.users = append(t.users, e)
	switch t.pool.Connectivity() {
	case upstream.Connected:
		e.svc.connected++
		e.connected()
		return
	case upstream.Failing:
		e.fails()
	}
	e.avoid(now)
}

func (t *target) leave(now time.Time, e *endpoint) {
	if i := slices.Index(t.users, e); i >= 0 {
		t.users = slices.Delete(t.users, i, i+1)
	}
	if len(t.users) == 0 {
		t.pool.Cool()
		t.collect(now)
	}
}

// keep has the target connected at all times, if some service that has it wants that.
func (t *target) keep(now time.Time) {
	if slices.ContainsFunc(t.users, (*endpoint).wanted) {
		t.pool.Warm(now)
	} else {
		t.pool.Cool()
	}
}

// wanted: the endpoint is to be connected before an RPC needs it. One that drains is
// about to go, and is only dialled anew while there is no other.
func (e *endpoint) wanted() bool {
	return e.svc.inUse && (!e.draining || !e.left && e.svc.b.NoneReady())
}

// collect drops a target that nobody uses: no service has it, no stream was
// relayed to it for a while.
func (t *target) collect(now time.Time) {
	if len(t.users) > 0 || t.flights.n > 0 || now.Sub(t.lastUse) < t.s.cfg.ServiceIdle && !t.lastUse.IsZero() {
		return
	}
	delete(t.s.targets, t.addr)
	t.pool.Close(now)
	if t.told || t.marked {
		t.gone = true
		t.mark()
	}
}

// isOf: the sessions are to the endpoint's pod, if it is one. For a moment they may not be, when one
// service has heard of a new pod and another has not.
func (t *target) isOf(e *endpoint) bool {
	uid := e.be.Spec().UID
	return uid == "" || uid == t.uid
}

// placed looks which draining endpoints are picked after connectivity has changed.
func (t *target) placed() {
	for _, e := range t.users {
		if len(e.svc.draining) > 0 {
			e.svc.fallback()
		}
	}
}

// Connected implements upstream.Observer.
func (t *target) Connected(now time.Time) {
	for _, e := range t.users {
		e.svc.connected++
		e.be.SetConnected()
		if t.isOf(e) {
			e.connected()
		}
	}
	t.placed()
	for _, e := range slices.Clone(t.users) {
		e.svc.wake(now)
		e.svc.moveQueued(now, slices.Clone(e.svc.draining))
	}
}

// Disconnected implements upstream.Observer. Where another endpoint is
// connected, RPCs go there while this one is dialled again; where none is, they queue on the dial.
func (t *target) Disconnected(now time.Time) {
	for _, e := range t.users {
		e.svc.connected--
		e.avoid(now)
	}
	t.placed()
}

// Slow implements upstream.Observer.
func (t *target) Slow(now time.Time) {
	for _, e := range t.users {
		e.be.SetFailing(now.Add(connectHold))
		if t.isOf(e) {
			e.slowly()
		}
	}
	t.placed()
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
		if t.isOf(e) {
			e.fails()
		}
	}
	t.placed()
}

// connectHold is how long an endpoint that is being dialled is kept from picks. Its
// pool ends it earlier, when it is connected. Only when the pool is not kept
// warm any more, and so dials no more, does it come to its end.
const connectHold = 10 * time.Second
