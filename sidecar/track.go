// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"slices"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/report"
)

// track is what is noted about an endpoint for the control plane. It changes where
// connectivity, states and the set change; an RPC costs it one comparison, unless
// the endpoint drains.
type track struct {
	answer  report.Answer
	slow    bool
	failing bool

	draining   bool // its state says so, or it left the set while RPCs ran on it
	left       bool // it is not in the set any more
	drainBegan time.Time

	failed, replayed uint64

	marked bool // it is in service.changed
	picked bool // as it was reported
	gone   bool // that was reported, or it has no need to
}

// connected: a session was established.
func (e *endpoint) connected() {
	if e.answer == report.Connected && !e.failing {
		return
	}
	e.answer, e.failing = report.Connected, false
	e.mark()
}

// fails: an attempt to connect has failed.
func (e *endpoint) fails() {
	if e.answer != report.None && e.failing {
		return
	}
	if e.answer == report.None {
		e.answer = report.Failed
	}
	e.failing = true
	e.mark()
}

// slowly: an attempt to connect takes long. Where an earlier one had
// ended well, something has happened to the server: a node that lost its power
// refuses nothing.
func (e *endpoint) slowly() {
	switch e.answer {
	case report.None:
		if e.slow {
			return
		}
		e.slow = true
	case report.Connected:
		if e.failing {
			return
		}
		e.failing = true
	case report.Failed:
		return
	}
	e.mark()
}

// follow takes notice of the endpoint's state, after an update.
func (e *endpoint) follow(now time.Time) {
	switch drains := e.left || e.be.Spec().State == balancer.Draining; {
	case drains && !e.draining:
		e.draining, e.drainBegan = true, now
		e.svc.draining = append(e.svc.draining, e)
	case !drains && e.draining:
		e.undrain()
		e.t.keep(now)
	}
	e.mark()
}

// leave: the endpoint is not in the set any more. What runs on it goes on.
func (e *endpoint) leave(now time.Time) {
	e.left = true
	if e.flights.n > 0 {
		e.svc.leaving++
		e.follow(now)
		return
	}
	e.end()
}

// landed is called when an RPC on a draining endpoint has ended.
func (e *endpoint) landed() {
	if e.left && e.flights.n == 0 {
		e.svc.leaving--
		e.end()
		e.svc.linger()
		return
	}
	e.mark()
}

// end: neither in the set nor in flight.
func (e *endpoint) end() {
	e.gone = true
	e.undrain()
	e.mark()
}

// undrain: if it drained, it does no more.
func (e *endpoint) undrain() {
	e.draining, e.drainBegan = false, time.Time{}
	all := e.svc.draining
	if i := slices.Index(all, e); i >= 0 {
		e.svc.draining = slices.Delete(all, i, i+1)
	}
}

// isPicked: RPCs would still be sent to it, although it drains.
func (e *endpoint) isPicked() bool { return e.draining && !e.left && e.svc.active && e.be.Fallback() }

func (e *endpoint) report() report.Endpoint {
	spec := e.be.Spec()
	v := report.Endpoint{Addr: spec.Addr, UID: spec.UID, Gone: e.gone, Failed: e.failed, Replayed: e.replayed}
	if e.gone {
		return v
	}
	v.Answer, v.Slow, v.Failing, v.Draining = e.answer, e.slow, e.failing, e.draining
	e.picked = e.isPicked()
	if e.draining {
		v.Picked, v.InFlight, v.Youngest = e.picked, e.flights.n, e.flights.youngest(e.drainBegan)
	}
	return v
}

// fallback looks which draining endpoints are picked, and so are to be connected,
// after something has changed about the others.
func (svc *service) fallback() {
	svc.noneReady = svc.b.NoneReady()
	for _, e := range svc.draining {
		if e.isPicked() != e.picked {
			e.mark()
		}
		if !e.left {
			e.t.keep(svc.s.loop.Now())
		}
	}
}

// moveQueued sends RPCs that wait for a stream to endpoints that are to get no more of them elsewhere. Nothing
// of them was sent.
func (svc *service) moveQueued(now time.Time, from []*endpoint) {
	for _, e := range from {
		if svc.b.NoneReady() && !e.left {
			continue // it would be picked again; once another is connected they move
		}
		for _, r := range e.flights.queued() {
			if r.ep != e || !r.ticket.Waiting() {
				continue // one before it had an end that took it along
			}
			r.unwait()
			r.release(now)
			r.dispatch(now)
		}
	}
}

// blame notes who is at fault if the RPC fails now.
func (r *relay) blame() { r.culprit, r.culpritAt = r.ep, r.t }

// blamed counts the RPC's failure.
func (r *relay) blamed() {
	switch {
	case r.culprit != nil:
		r.culprit.failed++
		r.culprit.mark()
	case r.culpritAt != nil:
		r.culpritAt.failed++
		r.culpritAt.mark()
	}
}
