// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"math/rand/v2"
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
	inUse     bool     // its endpoints are kept connected
	lastUse   time.Time
	connected int // endpoints with an established session
}

// endpoint joins a balancer's endpoint with the sessions to its address. It is
// the balancer.Endpoint's Data.
type endpoint struct {
	svc  *service
	be   *balancer.Endpoint
	t    *target
	rpcs [numCodes]uint64 // attempts that ended
}

func endpointOf(be *balancer.Endpoint) *endpoint { return be.Data.(*endpoint) }

func (s *Sidecar) service(name string) *service {
	svc, ok := s.services[name]
	if !ok {
		svc = &service{s: s, name: name, asked: s.loop.Now()}
		svc.b = balancer.New(name, rand.New(rand.NewPCG(s.cfg.Rand.Uint64(), s.cfg.Rand.Uint64())))
		svc.stats.init(name, s.cfg.MaxMethods)
		s.services[name] = svc
	}
	return svc
}

// update follows the control plane.
func (svc *service) update(now time.Time, spec *balancer.Spec) {
	svc.answered = true
	added, removed := svc.b.Update(spec)
	for _, be := range removed {
		svc.drop(now, endpointOf(be))
	}
	for _, be := range added {
		e := &endpoint{svc: svc, be: be, t: svc.s.target(be.Addr())}
		be.Data = e
		e.t.join(e)
		if e.t.pool.Sessions() > 0 {
			svc.connected++
		} else {
			e.avoid(now)
		}
		if svc.inUse {
			e.t.pool.Warm(now)
		}
	}
	svc.wake(now)
}

// drop lets go of an endpoint that was removed; its RPCs in flight go on.
func (svc *service) drop(now time.Time, e *endpoint) {
	if e.t.pool.Sessions() > 0 {
		svc.connected--
	}
	e.t.leave(now, e)
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
	if svc.inUse {
		return
	}
	svc.inUse = true
	for _, be := range svc.b.Endpoints() {
		endpointOf(be).t.pool.Warm(now)
	}
}

// sweep lets the sessions of a service go that nobody calls.
func (svc *service) sweep(now time.Time) {
	if !svc.inUse || now.Sub(svc.lastUse) < svc.s.cfg.ServiceIdle {
		return
	}
	svc.inUse = false
	for _, be := range svc.b.Endpoints() {
		e := endpointOf(be)
		if !e.t.inUse() {
			e.t.pool.Cool()
		}
	}
}

// inUse: some service that has the target keeps it connected.
func (t *target) inUse() bool {
	for _, e := range t.users {
		if e.svc.inUse {
			return true
		}
	}
	return false
}

// wake has the waiting RPCs look again.
func (svc *service) wake(now time.Time) { svc.waiting.wake(now) }

// gone: the control plane says that the service is no more.
func (svc *service) gone(now time.Time) {
	for _, be := range svc.b.Endpoints() {
		svc.drop(now, endpointOf(be))
	}
	svc.ended = true
	delete(svc.s.services, svc.name)
	svc.wake(now) // they are routed anew
}
