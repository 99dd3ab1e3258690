// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"net/netip"
	"slices"
	"sync"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/xds/api"
)

// maxHoldEnds bounds the ends of holds that are told to a new replica: a pod
// that is restarted in place by its liveness probe has a drain each time.
const maxHoldEnds = 32

// ledger is what is to be told to the control plane's replicas: all of it, for a
// stream that opens, and what each open stream has not been told. The data plane
// writes it from its event loop: the mutex is held for as long as it takes to
// write a few entries into maps, but for the moment when a stream opens.
type ledger struct {
	mu       sync.Mutex
	services map[string]*entry
	direct   map[identity]report.Endpoint
	own      *api.OwnPod
	outside  *api.DirectConnections
	holds    []*holdEnd
	leaving  bool

	books map[*book]struct{} // of the open streams
	// moved, of capacity 1, says that what learning waits for may have come, or
	// that the use of a service has changed.
	moved chan struct{}
}

// identity of an endpoint: another pod may come to have the same address.
type identity struct {
	addr netip.AddrPort
	uid  string
}

// entry is one service.
type entry struct {
	subscribed bool // discovery has it
	reported   bool // the data plane has it
	active     bool
	names      []string // replaced, never written
	endpoints  map[identity]report.Endpoint
}

type holdEnd struct {
	end      *api.HoldEnd
	recorded bool // a replica was told to write it down
}

func newLedger() *ledger {
	return &ledger{
		services: map[string]*entry{}, direct: map[identity]report.Endpoint{},
		books: map[*book]struct{}{}, moved: make(chan struct{}, 1),
	}
}

// report takes what the data plane tells.
func (l *ledger) report(b report.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moved := false
	for i := range b.Services {
		moved = l.service(&b.Services[i]) || moved
	}
	for _, e := range b.Direct {
		e = merge1(l.direct, e)
		for k := range l.books {
			k.page.direct[identity{e.Addr, e.UID}] = e
		}
	}
	l.turn()
	if moved {
		l.tell()
	}
}

func (l *ledger) service(s *report.Service) (moved bool) {
	e := l.services[s.Name]
	if s.Gone {
		if e == nil {
			return false
		}
		l.remove(s.Name)
		if e.subscribed { // discovery gave it to the data plane again meanwhile
			l.services[s.Name] = &entry{subscribed: true, names: e.names, endpoints: map[identity]report.Endpoint{}}
			l.mark(s.Name)
		}
		return true
	}
	if e == nil {
		e = &entry{endpoints: map[identity]report.Endpoint{}}
		l.services[s.Name] = e
	}
	moved = e.active != s.Active
	e.reported, e.active = true, s.Active
	pages := l.mark(s.Name)
	for _, ep := range s.Endpoints {
		id := identity{ep.Addr, ep.UID}
		old := e.endpoints[id]
		ep = merge1(e.endpoints, ep)
		moved = moved || ep.Gone || ep.Answer != old.Answer || ep.Slow != old.Slow
		for _, p := range pages {
			p.endpoints[id] = ep
		}
	}
	return moved
}

// merge1 takes one endpoint into m; one that is gone is taken out. An answer
// is latched, except that a failure becomes a success.
func merge1(m map[identity]report.Endpoint, e report.Endpoint) report.Endpoint {
	id := identity{e.Addr, e.UID}
	if e.Gone {
		delete(m, id)
		return e
	}
	if old, ok := m[id]; ok {
		if e.Answer == report.None || old.Answer == report.Connected {
			e.Answer = old.Answer
		}
		e.Slow = e.Slow || old.Slow
	}
	m[id] = e
	return e
}

// subscribed takes which services discovery has, and by which names the app
// reaches each.
func (l *ledger) subscribed(all map[string][]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, e := range l.services {
		if _, ok := all[name]; ok {
			continue
		}
		e.subscribed = false
		switch {
		case !e.reported:
			l.remove(name)
		case len(e.names) > 0:
			e.names = nil
			l.mark(name)
		}
	}
	for name, names := range all {
		e := l.services[name]
		switch {
		case e == nil:
			l.services[name] = &entry{subscribed: true, names: names, endpoints: map[identity]report.Endpoint{}}
		case e.subscribed && slices.Equal(e.names, names):
			continue
		default:
			e.subscribed, e.names = true, names
		}
		l.mark(name)
	}
	l.turn()
}

// remove forgets a service, and tells every stream so.
func (l *ledger) remove(name string) {
	delete(l.services, name)
	for k := range l.books {
		// Whatever else was to be told about it is void.
		k.page.services[name] = &servicePage{gone: true}
	}
}

// mark notes that a service changed, for every stream.
func (l *ledger) mark(name string) []*servicePage {
	e := l.services[name]
	pages := make([]*servicePage, 0, len(l.books))
	for k := range l.books {
		p := k.page.service(name)
		p.set, p.active, p.names = true, e.active, e.names
		pages = append(pages, p)
	}
	return pages
}

// active reports whether a service has or had RPCs of late. What is not known is
// not.
func (l *ledger) active(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.services[name]
	return e != nil && e.active
}

// answered reports whether an attempt to connect to an endpoint has ended, or
// takes long.
func (l *ledger) answered(service string, id identity) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.services[service]
	if e == nil {
		return false
	}
	ep := e.endpoints[id]
	return ep.Answer != report.None || ep.Slow
}

func (l *ledger) setOwn(own *api.OwnPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = own
	l.note(func(p *page) { p.own = own })
}

func (l *ledger) setOutside(d *api.DirectConnections) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outside = d
	l.note(func(p *page) { p.outside = d })
}

func (l *ledger) holdEnded(end *api.HoldEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &holdEnd{end: end}
	l.holds = append(l.holds, h)
	if n := len(l.holds) - maxHoldEnds; n > 0 {
		l.holds = slices.Delete(l.holds, 0, n)
	}
	l.note(func(p *page) { p.holds = append(p.holds, h) })
}

func (l *ledger) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = true
	l.note(func(p *page) { p.leaving = true })
}

// left reports whether leave was called.
func (l *ledger) left() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving
}

// note writes to the page of every stream, and wakes them.
func (l *ledger) note(write func(p *page)) {
	for k := range l.books {
		write(k.page)
	}
	l.turn()
}

// turn wakes the streams.
func (l *ledger) turn() {
	for k := range l.books {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

func (l *ledger) tell() {
	select {
	case l.moved <- struct{}{}:
	default: // it has yet to look
	}
}
