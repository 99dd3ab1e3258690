// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"math/rand/v2"
	"slices"
	"time"

	"evenkeel.dev/sidecar/balancer"
)

// service is one service that the app calls, or has called.
type service struct {
	s        *Sidecar
	name     string
	b        *balancer.Balancer
	answered bool // the control plane has sent its endpoints
	ended    bool // it is no more; another may have its name by now
	asked    time.Time
	stats    rpcStats

	waiting   waitList // RPCs that found no endpoint
	active    bool     // it has or had an RPC within Config.ServiceIdle
	lastUse   time.Time
	warmUntil time.Time // kept connected until then, also without an RPC
	inUse     bool      // its endpoints are kept connected, for either reason
	connected int       // endpoints with an established session

	draining  []*endpoint // those of track.draining
	leaving   int         // endpoints that left the set while RPCs ran on them
	noneReady bool        // at the latest call of fallback
	changed   []*endpoint // to be reported
	marked    bool        // it is to be reported
}

// endpoint joins a balancer's endpoint with the sessions to its address. It is
// the balancer.Endpoint's Data.
type endpoint struct {
	svc  *service
	be   *balancer.Endpoint
	t    *target
	rpcs [numCodes]uint64 // attempts that ended

	flights flights
	track
}

func endpointOf(be *balancer.Endpoint) *endpoint { return be.Data.(*endpoint) }

func (s *Sidecar) service(name string) *service {
	svc, ok := s.services[name]
	if !ok {
		svc = &service{s: s, name: name, asked: s.loop.Now()}
		svc.b = balancer.New(name, rand.New(rand.NewPCG(s.cfg.Rand.Uint64(), s.cfg.Rand.Uint64())))
		svc.stats.init(name, s.cfg.MaxMethods)
		s.services[name] = svc
		if old, ok := s.lingering[name]; ok {
			svc.adopt(old)
		}
		svc.mark()
	}
	return svc
}

// update follows the control plane.
func (svc *service) update(now time.Time, spec *balancer.Spec) {
	svc.answered = true
	c := svc.b.Update(spec)
	// New ones first: what queues on an old one may be moved to them.
	for _, be := range c.Added {
		be.Data = &endpoint{svc: svc, be: be, t: svc.s.target(be.Addr())}
	}
	for _, be := range c.Added {
		e := endpointOf(be)
		e.t.join(now, e)
		e.follow(now)
		e.t.keep(now)
	}
	var stop []*endpoint
	for _, be := range c.Removed {
		e := endpointOf(be)
		stop = append(stop, e)
		svc.drop(now, e)
	}
	for _, be := range c.Moved {
		e := endpointOf(be)
		e.follow(now)
		if e.draining {
			stop = append(stop, e)
		}
	}
	if svc.leaving > 0 {
		for _, be := range c.Added {
			svc.inherit(endpointOf(be))
		}
	}
	svc.mark()
	svc.fallback()
	svc.moveQueued(now, stop)
	svc.wake(now)
}

// drop lets go of an endpoint that was removed; its RPCs in flight go on.
func (svc *service) drop(now time.Time, e *endpoint) {
	if e.t.pool.Sessions() > 0 {
		svc.connected--
	}
	e.leave(now)
	e.t.leave(now, e)
}

// inherit takes over the RPCs that run on an endpoint which left the set and has
// now come back.
func (svc *service) inherit(e *endpoint) {
	for _, old := range svc.draining {
		if !old.left || old.be.Addr() != e.be.Addr() || old.be.Spec().UID != e.be.Spec().UID {
			continue
		}
		for r := range old.flights.all() {
			r.ep = e
		}
		for r := range e.flights.all() {
			old.flights.push(r) // begun since
		}
		e.flights, old.flights = old.flights, flights{}
		e.be.Inherit(old.be)
		e.rpcs, e.failed, e.replayed = old.rpcs, old.failed, old.replayed
		e.answer, e.slow, e.failing = old.answer, old.slow, old.failing
		if e.t.pool.Sessions() > 0 {
			e.connected()
		}
		svc.leaving--
		old.undrain()
		// Not gone: its identity is that of e.
		if i := slices.Index(svc.changed, old); i >= 0 {
			svc.changed = slices.Delete(svc.changed, i, i+1)
		}
		e.mark()
		return
	}
}

// adopt takes over what still runs on the endpoints of a service that is no more and
// had the same name.
func (svc *service) adopt(old *service) {
	delete(svc.s.lingering, old.name)
	svc.draining, svc.changed, svc.leaving = old.draining, old.changed, old.leaving
	old.draining, old.changed, old.leaving, old.marked = nil, nil, 0, false
	for _, e := range svc.draining {
		e.svc = svc
	}
	for _, e := range svc.changed {
		e.svc = svc
	}
}

// linger ends an ended service once nothing runs on its endpoints any more.
func (svc *service) linger() {
	if svc.ended && svc.leaving == 0 {
		delete(svc.s.lingering, svc.name)
		svc.mark()
	}
}

// avoid keeps RPCs from an endpoint that has no session yet, if others have one.
func (e *endpoint) avoid(now time.Time) {
	if e.svc.connected > 0 && e.svc.inUse {
		e.be.SetFailing(now.Add(connectHold))
	}
}

// use is called with each RPC. The first one has all endpoints connected.
func (svc *service) use(now time.Time) {
	svc.lastUse = now
	if svc.active {
		return
	}
	svc.active = true
	svc.mark()
	svc.fallback()
	svc.connect(now)
}

// warm has all endpoints connected before an RPC needs them.
func (svc *service) warm(now time.Time) {
	svc.warmUntil = now.Add(svc.s.cfg.ServiceIdle)
	svc.connect(now)
}

func (svc *service) connect(now time.Time) {
	if svc.inUse {
		return
	}
	svc.inUse = true
	for _, be := range svc.b.Endpoints() {
		endpointOf(be).t.keep(now)
	}
}

// sweep lets the sessions of a service go that nobody calls.
func (svc *service) sweep(now time.Time) {
	if svc.active && now.Sub(svc.lastUse) >= svc.s.cfg.ServiceIdle {
		if svc.busy() {
			svc.lastUse = now
			return
		}
		svc.active = false
		svc.mark()
		svc.fallback()
	}
	if svc.active || now.Before(svc.warmUntil) {
		return
	}
	if svc.inUse {
		svc.inUse = false
		for _, be := range svc.b.Endpoints() {
			endpointOf(be).t.keep(now)
		}
	}
	if !svc.answered && svc.waiting.n == 0 {
		svc.forget() // only its name was ever known
	}
}

// busy: some RPC runs or waits.
func (svc *service) busy() bool {
	if svc.waiting.n > 0 || svc.leaving > 0 {
		return true
	}
	return slices.ContainsFunc(svc.b.Endpoints(), func(be *balancer.Endpoint) bool { return be.InFlight() > 0 })
}

// wake has the waiting RPCs look again.
func (svc *service) wake(now time.Time) { svc.waiting.wake(now) }

// gone: the control plane says that the service is no more.
func (svc *service) gone(now time.Time) {
	c := svc.b.Update(&balancer.Spec{Service: svc.name, Policy: svc.b.Policy()})
	for _, be := range c.Removed {
		svc.drop(now, endpointOf(be))
	}
	svc.forget()
	svc.wake(now) // they are routed anew
}

// forget ends the service, as far as new RPCs are concerned.
func (svc *service) forget() {
	svc.ended, svc.active = true, false
	delete(svc.s.services, svc.name)
	if svc.leaving > 0 {
		svc.s.lingering[svc.name] = svc
	}
	svc.mark()
}
