// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"time"

	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/report"
)

const (
	// reportEvery is the least time between two reports.
	reportEvery = 20 * time.Millisecond
	// directEvery is how late a report about an address without a service may be, but for
	// the first RPC on one that had none: such addresses know no drain, so
	// each RPC changes what there is to report.
	directEvery = 500 * time.Millisecond
)

// reporter collects what changed until it is time to tell.
type reporter struct {
	s        *Sidecar
	sink     report.Sink
	services []*service
	direct   []*target
	last     time.Time
	timer    loop.Timer
}

// soon has a report sent.
func (p *reporter) soon(within time.Duration) {
	now := p.s.loop.Now()
	at := now.Add(within)
	if next := p.last.Add(reportEvery); at.Before(next) {
		at = next
	}
	if !p.timer.Set() || at.Before(p.s.loop.At(&p.timer)) {
		p.s.loop.SetTimer(&p.timer, at, p)
	}
}

// Expired implements loop.TimerHandler: it is time to tell.
func (p *reporter) Expired(now time.Time, _ *loop.Timer) {
	p.last = now
	var b report.Batch
	for i, svc := range p.services {
		p.services[i] = nil
		if svc.marked {
			b.Services = append(b.Services, svc.report())
		}
	}
	for i, t := range p.direct {
		p.direct[i] = nil
		b.Direct = append(b.Direct, t.report(now))
	}
	p.services, p.direct = p.services[:0], p.direct[:0]
	if len(b.Services)+len(b.Direct) > 0 {
		p.sink.Report(b)
	}
}

// mark has the service reported. It costs nothing once it is marked.
func (svc *service) mark() {
	p := &svc.s.reporter
	if svc.marked || p.sink == nil {
		return
	}
	svc.marked = true
	p.services = append(p.services, svc)
	p.soon(0)
}

// mark has the endpoint reported, with its service.
func (e *endpoint) mark() {
	if e.marked || e.svc.s.reporter.sink == nil {
		return
	}
	e.marked = true
	e.svc.changed = append(e.svc.changed, e)
	e.svc.mark()
}

func (svc *service) report() report.Service {
	svc.marked = false
	v := report.Service{Name: svc.name, Active: svc.active}
	if svc.ended && svc.leaving == 0 {
		v = report.Service{Name: svc.name, Gone: true}
	} else if len(svc.changed) > 0 {
		v.Endpoints = make([]report.Endpoint, 0, len(svc.changed))
		// What is gone comes first: the same pod may be back already.
		for _, gone := range []bool{true, false} {
			for _, e := range svc.changed {
				if e.gone == gone {
					v.Endpoints = append(v.Endpoints, e.report())
				}
			}
		}
	}
	for i, e := range svc.changed {
		// What is gone stays marked: it is told once.
		e.marked = e.gone
		svc.changed[i] = nil
	}
	svc.changed = svc.changed[:0]
	return v
}

// mark has the address reported.
func (t *target) mark() {
	p := &t.s.reporter
	if p.sink == nil || t.gone && !t.told {
		return
	}
	within := directEvery
	if !t.told || t.flights.n > 0 && t.toldFlights == 0 || t.gone {
		within = 0
	} else if t.marked {
		return
	}
	if !t.marked {
		t.marked = true
		p.direct = append(p.direct, t)
	}
	p.soon(within)
}

func (t *target) report(now time.Time) report.Endpoint {
	t.marked = false
	t.told, t.toldFlights = !t.gone, t.flights.n
	v := report.Endpoint{Addr: t.addr, Gone: t.gone, Failed: t.failed, Replayed: t.replayed}
	if !t.gone {
		v.InFlight, v.Youngest = t.flights.n, t.flights.youngest(now)
	}
	return v
}
