// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"net/netip"
	"time"
)

// Endpoint is one live endpoint of one service. It keeps its identity, counters
// and Data for as long as its address, with the same UID, stays in the service.
type Endpoint struct {
	// Data is the caller's: upstream keeps the sessions of the endpoint here.
	Data any

	b        *Balancer // nil once removed from the service
	spec     EndpointSpec
	inFlight int
	picked   uint64
	last     uint64 // Balancer.seq at the latest pick; zero: never

	set *set // the set that holds it; nil: none
	pos int  // its place in set

	failing bool
	until   time.Time // end of the backoff while failing
	heapPos int       // its place in Balancer.backoff; -1: none
}

// Addr is the address to connect to.
func (e *Endpoint) Addr() netip.AddrPort { return e.spec.Addr }

// Spec is the latest description. The pointer must not be kept nor written.
func (e *Endpoint) Spec() *EndpointSpec { return &e.spec }

// InFlight is the number of RPCs that were picked and are not done.
func (e *Endpoint) InFlight() int { return e.inFlight }

// Picked is the number of RPCs ever given to the endpoint.
func (e *Endpoint) Picked() uint64 { return e.picked }

// Removed says that the endpoint is no longer part of its service.
func (e *Endpoint) Removed() bool { return e.b == nil }

// Failing says that connecting failed and that the backoff is not over.
func (e *Endpoint) Failing(now time.Time) bool { return e.failing && now.Before(e.until) }

// Fallback says that the endpoint drains and that Pick could choose it now, since
// no ready one can be picked.
func (e *Endpoint) Fallback() bool {
	return e.b != nil && e.set == &e.b.draining && e.b.NoneReady()
}

// Done ends one RPC that Pick gave to the endpoint. It must be called once for
// each successful Pick, also after the endpoint was removed.
func (e *Endpoint) Done(time.Time) {
	if e.inFlight == 0 {
		// A double Done would make the endpoint look idler than it is for ever,
		// and would draw all of the traffic to it.
		panic("balancer: Done without Pick for " + e.spec.Addr.String())
	}
	e.inFlight--
}

// Inherit takes the RPCs in flight, and the count of them, over from an endpoint that was
// removed: it has come back as e.
func (e *Endpoint) Inherit(old *Endpoint) {
	e.inFlight += old.inFlight
	e.picked += old.picked
	old.inFlight = 0
}

// SetFailing takes the endpoint out of picking until the given moment, because
// connecting to it failed. A later call moves the moment.
func (e *Endpoint) SetFailing(until time.Time) {
	e.failing, e.until = true, until
	if e.b != nil {
		e.b.place(e)
	}
}

// SetConnected ends a backoff at once: a session is established.
func (e *Endpoint) SetConnected() {
	if !e.failing {
		return
	}
	e.failing, e.until = false, time.Time{}
	if e.b != nil {
		e.b.place(e)
	}
}
