// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/xds/api"
)

// maxReportEndpoints bounds the endpoints in one Report, which stays far below
// the 4 MiB that a server takes.
const maxReportEndpoints = 8192

// book is what one stream has not told yet. The ledger's mutex guards it.
type book struct {
	page *page
	// heard: the replica has said something, so that it can be asked to write
	// down the end of a hold.
	heard bool
	wake  chan struct{} // of capacity 1
}

// page is what changed since the page before.
type page struct {
	sidecar  *api.Sidecar // on the first page
	services map[string]*servicePage
	direct   map[identity]report.Endpoint
	own      *api.OwnPod
	outside  *api.DirectConnections
	holds    []*holdEnd
	leaving  bool
}

// servicePage is what changed of a service.
type servicePage struct {
	gone      bool // it was, before what follows
	set       bool // what follows is something
	active    bool
	names     []string
	endpoints map[identity]report.Endpoint
}

func newPage() *page {
	return &page{services: map[string]*servicePage{}, direct: map[identity]report.Endpoint{}}
}

func (p *page) service(name string) *servicePage {
	s := p.services[name]
	if s == nil {
		s = &servicePage{}
		p.services[name] = s
	}
	if s.endpoints == nil {
		s.endpoints = map[identity]report.Endpoint{}
	}
	return s
}

// open begins a stream: everything is to be told.
func (l *ledger) open(who *api.Sidecar) *book {
	p := newPage()
	l.mu.Lock()
	defer l.mu.Unlock()
	p.sidecar, p.own, p.outside, p.leaving = who, l.own, l.outside, l.leaving
	p.holds = slices.Clone(l.holds)
	maps.Copy(p.direct, l.direct)
	for name, e := range l.services {
		p.services[name] = &servicePage{set: true, active: e.active, names: e.names, endpoints: maps.Clone(e.endpoints)}
	}
	b := &book{page: p, wake: make(chan struct{}, 1)}
	l.books[b] = struct{}{}
	return b
}

func (l *ledger) close(b *book) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.books, b)
}

// hear takes that the replica of b has spoken.
func (l *ledger) hear(b *book) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !b.heard {
		b.heard = true
		if len(b.page.holds) > 0 {
			l.turn()
		}
	}
}

// take turns to the next page and returns the one that is full, with those
// ends of holds that this stream is the first to tell.
func (l *ledger) take(b *book) (p *page, record map[*holdEnd]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, b.page = b.page, newPage()
	record = map[*holdEnd]bool{}
	told := p.holds[:0:0]
	for _, h := range p.holds {
		switch {
		case h.recorded:
			told = append(told, h)
		case b.heard:
			h.recorded = true
			record[h] = true
			told = append(told, h)
		default:
			// Nobody has it, and this stream may prove to be none.
			b.page.holds = append(b.page.holds, h)
		}
	}
	p.holds = told
	return p, record
}

// untold takes back what take said about record: the stream has failed.
func (l *ledger) untold(record map[*holdEnd]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range record {
		h.recorded = false
	}
	for b := range l.books {
		for h := range record {
			// Others were told of it already, without the request to write it down.
			if b.heard && !slices.Contains(b.page.holds, h) {
				b.page.holds = append(b.page.holds, h)
			}
		}
	}
	l.turn()
}

// reports writes a page as messages: one, or as many as it takes. An empty page
// is one empty message.
func (p *page) reports(record map[*holdEnd]bool) []*api.Report {
	r := &api.Report{Sidecar: p.sidecar, DirectConnections: p.outside, Own: p.own}
	all := []*api.Report{r}
	room := maxReportEndpoints
	next := func() {
		if room == 0 {
			r, room = &api.Report{}, maxReportEndpoints
			all = append(all, r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.services)) {
		sp := p.services[name]
		if sp.gone {
			r.Services = append(r.Services, &api.ServiceReport{Service: name, Gone: true})
		}
		if !sp.set {
			continue
		}
		sr := &api.ServiceReport{Service: name, Active: sp.active, Destinations: sp.names}
		r.Services = append(r.Services, sr)
		for _, id := range slices.SortedFunc(maps.Keys(sp.endpoints), identity.compare) {
			if next(); len(r.Services) == 0 {
				sr = &api.ServiceReport{Service: name, Active: sp.active, Destinations: sp.names}
				r.Services = append(r.Services, sr)
			}
			sr.Endpoints = append(sr.Endpoints, endpointReport(sp.endpoints[id]))
			room--
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(p.direct), identity.compare) {
		next()
		r.Direct = append(r.Direct, endpointReport(p.direct[id]))
		room--
	}
	for _, h := range p.holds {
		end := proto.CloneOf(h.end)
		end.Record = record[h]
		all[0].Holds = append(all[0].Holds, end)
	}
	all[len(all)-1].Leaving = p.leaving
	return all
}

func (i identity) compare(o identity) int {
	if c := i.addr.Compare(o.addr); c != 0 {
		return c
	}
	switch {
	case i.uid < o.uid:
		return -1
	case i.uid > o.uid:
		return 1
	}
	return 0
}

func endpointReport(e report.Endpoint) *api.EndpointReport {
	r := &api.EndpointReport{
		Address: e.Addr.String(), Uid: e.UID, Gone: e.Gone,
		Failed: e.Failed, Replayed: e.Replayed,
	}
	if e.Gone {
		return r
	}
	switch e.Answer {
	case report.Connected:
		r.Answer = api.EndpointReport_CONNECTED
	case report.Failed:
		r.Answer = api.EndpointReport_FAILED
	}
	r.Failing, r.Draining, r.Picked = e.Failing, e.Draining, e.Picked
	r.InFlight = uint32(max(e.InFlight, 0))
	r.YoungestMs = uint64(max(e.Youngest.Milliseconds(), 0))
	return r
}
