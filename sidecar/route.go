// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"errors"
	"net/netip"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/sidecar/upstream"
)

// waitReason says what a relay waits for.
type waitReason uint8

const (
	waitNothing  waitReason = iota
	waitRoute               // the control plane's word about the destination
	waitService             // the control plane's word about the service's endpoints
	waitEndpoint            // an endpoint that can be used
	waitSession             // a free stream on a session
	numWaits
)

func (w waitReason) String() string {
	return [numWaits]string{"", "route", "service", "endpoint", "session"}[w]
}

// dispatch finds out where the request goes, and sends it or waits. It is called
// again whenever what it waited for may have come.
func (r *relay) dispatch(now time.Time) {
	if !r.deadline.IsZero() && !now.Before(r.deadline) {
		r.unwait()
		r.fail(now, codeDeadlineExceeded, "evenkeel: the deadline passed before the request could be sent"+r.because())
		return
	}
	svc, addr, asking := r.route(now)
	switch {
	case svc != nil:
		r.balance(now, svc)
	case addr.IsValid():
		r.direct(now, addr)
	case asking:
		r.waitIn(&r.s.asking, waitRoute, r.routeBy)
	}
}

// route asks the table. Neither a service nor an address, and not asking: the relay has failed.
func (r *relay) route(now time.Time) (svc *service, addr netip.AddrPort, asking bool) {
	s, ds := r.s, r.ds
	if ds.cached != nil && !ds.cached.ended && ds.cachedTable == s.table && ds.cachedAuthority == r.authority {
		return ds.cached, netip.AddrPort{}, false
	}
	orig := ds.orig
	if !orig.IsValid() {
		orig = netip.AddrPortFrom(netip.Addr{}, s.cfg.DefaultPort)
	}
	rt := s.table.Route(orig, r.authority)
	for i := range rt.N {
		s.ask(now, rt.Missing[i])
	}
	switch rt.Verdict {
	case router.Balance:
		svc := s.service(rt.Service)
		if rt.N == 0 {
			ds.cached, ds.cachedTable, ds.cachedAuthority = svc, s.table, r.authority
			ds.service = svc.name
		}
		return svc, netip.AddrPort{}, false
	case router.Pin, router.Relay:
		return nil, rt.Endpoint, false
	case router.Ask:
		// Once a question went unanswered for RouteWait, later streams do not
		// wait for it: while the control plane is away the first is late, not each.
		r.routeBy = s.askedAt(now, rt).Add(s.cfg.RouteWait)
		if now.Before(r.routeBy) {
			return nil, netip.AddrPort{}, true
		}
		if ds.orig.IsValid() {
			return nil, ds.orig, false
		}
		r.unwait()
		r.fail(now, codeUnavailable, "evenkeel: the control plane has not said yet where "+rt.Missing[0].String()+" is")
		return nil, netip.AddrPort{}, false
	}
	r.unwait()
	r.fail(now, codeUnavailable, rt.Reason)
	return nil, netip.AddrPort{}, false
}

// balance picks an endpoint of a service.
func (r *relay) balance(now time.Time, svc *service) {
	r.svc = svc
	r.account(&svc.stats)
	svc.use(now)
	if !svc.answered {
		if by := svc.asked.Add(r.s.cfg.RouteWait); now.Before(by) {
			r.waitIn(&svc.waiting, waitService, by)
			return
		}
		if r.ds.orig.IsValid() {
			r.direct(now, r.ds.orig)
			return
		}
	}
	for {
		be, err := svc.b.Pick(now, r.tried)
		if err != nil {
			r.noEndpoint(now, svc, err)
			return
		}
		if len(svc.draining) > 0 && svc.noneReady != svc.b.NoneReady() {
			svc.fallback() // a backoff has ended
		}
		e := endpointOf(be)
		err = r.connect(now, e.t, e)
		if err == nil {
			return
		}
		r.tried = append(r.tried, be)
		r.lastErr = err
	}
}

// noEndpoint: nothing to pick, or nothing that was not tried.
func (r *relay) noEndpoint(now time.Time, svc *service, err error) {
	var none *balancer.NoEndpointError
	if errors.As(err, &none) && none.Tried > 0 && none.Ready+none.Failing > 0 {
		if r.retired {
			// The only endpoint has retired its connection, not itself: a new
			// one is as good as another endpoint.
			r.retired = false
			r.tried = r.tried[:0]
			r.balance(now, svc)
			return
		}
		if none.Failing == 0 {
			r.unwait()
			r.fail(now, r.triedCode(), err.Error()+r.because())
			return
		}
	}
	if r.endpointBy.IsZero() {
		r.endpointBy = now.Add(r.s.cfg.EndpointWait)
	}
	if now.Before(r.endpointBy) {
		r.waitIn(&svc.waiting, waitEndpoint, r.endpointBy)
		return
	}
	r.unwait()
	r.fail(now, codeUnavailable, err.Error()+r.because())
}

func (r *relay) triedCode() code {
	if errors.Is(r.lastErr, upstream.ErrQueueFull) {
		return codeResourceExhausted // load is shed; a retry would add to it
	}
	return codeUnavailable
}

func (r *relay) because() string {
	if r.lastErr == nil {
		return ""
	}
	return ": " + r.lastErr.Error()
}

// direct relays to an address without a service.
func (r *relay) direct(now time.Time, addr netip.AddrPort) {
	r.unwait()
	if r.s.listensOn(addr) {
		r.fail(now, codeUnavailable, "evenkeel: "+addr.String()+" is the sidecar itself: relaying to it would go round in a circle")
		return
	}
	t := r.s.target(addr)
	r.svc = nil
	r.account(&t.direct)
	if err := r.connect(now, t, nil); err != nil {
		r.lastErr = err
		r.fail(now, r.triedCode(), "evenkeel: cannot reach "+err.Error())
	}
}

// unreachable: no session could be made for the request, of which nothing was sent.
func (r *relay) unreachable(now time.Time, err error) {
	r.lastErr = err
	if r.svc == nil {
		r.ds.leadsNowhere(now)
		r.fail(now, codeUnavailable, "evenkeel: cannot reach "+err.Error())
		return
	}
	r.dispatch(now)
}

// wait begins a wait, or goes on with it. until is zero for one that only the deadline ends.
func (r *relay) wait(why waitReason, until time.Time) {
	if r.waitFor != why {
		r.s.waits[why]++
	}
	r.waitFor = why
	if !r.deadline.IsZero() && (until.IsZero() || r.deadline.Before(until)) {
		until = r.deadline
	}
	if until.IsZero() {
		r.s.loop.StopTimer(&r.timer)
	} else {
		r.s.loop.SetTimer(&r.timer, until, r)
	}
}

// waitIn waits in a list.
func (r *relay) waitIn(l *waitList, why waitReason, until time.Time) {
	if r.list != nil {
		r.list.remove(r)
	}
	l.push(r)
	r.wait(why, until)
}

// Expired implements loop.TimerHandler: a wait is over. What now, dispatch finds out.
func (r *relay) Expired(now time.Time, _ *loop.Timer) {
	if r.list != nil {
		r.list.remove(r)
	}
	if r.ticket.Waiting() {
		r.ticket.Cancel()
		r.release(now)
	}
	r.dispatch(now)
}

// unwait ends any wait.
func (r *relay) unwait() {
	if r.list != nil {
		r.list.remove(r)
	}
	r.ticket.Cancel()
	r.s.loop.StopTimer(&r.timer)
	r.waitFor = waitNothing
}
