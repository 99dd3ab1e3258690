// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"cmp"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

// state is what was asked and what was answered. One goroutine owns it; it has
// no clock and no I/O. It is the last good state: nothing but an answer, or
// that nobody needs it, takes anything out of it.
type state struct {
	log       *slog.Logger
	namespace string
	out       *outbox

	dests    map[router.Key]*destination
	byName   map[string]*destination // the same, by resource name
	services map[string]*service

	// What the sink has not been told.
	routesDirty bool
	dirty       map[*service]struct{}
	gone        []string
}

// destination is a subscription to one key.
type destination struct {
	key     router.Key
	name    string // of the resource
	version string // of the last good resource; empty: not known, or no answer
	usage   *router.Usage
	used    time.Time

	// shown is what the table says. It lags behind next while next is a service
	// whose endpoints are not all here: until then the old word is the better one.
	shown, next *word
}

// word is one answer. A word that routes to a service holds it.
type word struct {
	dst router.Destination
	svc *service
}

// service is the endpoints of one service.
type service struct {
	name   string
	policy balancer.Policy
	refs   int // words that hold it

	members  map[netip.AddrPort]member
	complete bool   // the first whole list has arrived
	marker   string // version of the marker

	list    []balancer.EndpointSpec // by address; shared with the last Spec, never written
	serial  uint64
	given   bool // the sink has it
	changed map[netip.AddrPort]struct{}
}

type member struct {
	spec    balancer.EndpointSpec
	version string
}

func newState(log *slog.Logger, namespace string, out *outbox) *state {
	return &state{
		log: log, namespace: namespace, out: out,
		dests:    map[router.Key]*destination{},
		byName:   map[string]*destination{},
		services: map[string]*service{},
		dirty:    map[*service]struct{}{},
	}
}

// ask subscribes to a key that somebody wants to be routed.
func (s *state) ask(k router.Key, now time.Time) {
	if d, ok := s.dests[k]; ok {
		d.used = now
		return
	}
	d := &destination{key: k, name: s.resourceName(k), used: now, usage: new(router.Usage)}
	s.dests[k] = d
	if _, err := xds.ParseDestinationName(d.name); err != nil {
		// It can be the name of nothing: the answer is known without asking.
		s.log.Debug("destination cannot exist", "destination", k.String(), "error", err)
		d.shown = &word{}
		s.routesDirty = true
		return
	}
	s.byName[d.name] = d
	s.out.change(xds.DestinationType, d.name, true)
}

func (s *state) resourceName(k router.Key) string {
	if k.Name != "" {
		return xds.HostName(s.namespace, k.Name)
	}
	return xds.AddressName(k.Addr)
}

// forget ends a subscription.
func (s *state) forget(d *destination) {
	delete(s.dests, d.key)
	if s.byName[d.name] == d {
		delete(s.byName, d.name)
		s.out.change(xds.DestinationType, d.name, false)
	}
	s.release(d.next)
	if d.shown != nil {
		s.release(d.shown)
		s.routesDirty = true
	}
}

// answer takes the control plane's word about d.
func (s *state) answer(d *destination, a answer, version string) {
	d.version = version
	w := &word{dst: a.dst}
	w.dst.Usage = d.usage
	if w.dst.Kind == router.Service {
		w.svc = s.hold(w.dst.Service)
		if w.svc.policy != a.policy {
			w.svc.policy = a.policy
			s.dirty[w.svc] = struct{}{}
		}
	}
	s.release(d.next)
	d.next = w
	s.show(d)
}

// unknown takes the control plane's word that d is nothing that it knows.
func (s *state) unknown(d *destination) {
	d.version = ""
	// A Service that is deleted, perhaps to be made again with another
	// ClusterIP, leaves an app whose connection to us stays open: it will never
	// resolve the name again. Its RPCs must follow the Service, not fail on an
	// address that is gone for ever. When another Service gets the address, the
	// answer changes and so do we.
	if d.key.Name == "" && d.shown != nil && d.shown.svc != nil {
		s.release(d.next)
		d.next = nil
		return
	}
	s.release(d.next)
	d.next = &word{dst: router.Destination{Usage: d.usage}}
	s.show(d)
}

// show lets the table say what was answered, as soon as it can be used.
func (s *state) show(d *destination) {
	if d.next == nil || d.next.svc != nil && !d.next.svc.complete {
		return
	}
	if d.shown == nil || d.shown.dst != d.next.dst {
		s.routesDirty = true
	}
	s.release(d.shown)
	d.shown, d.next = d.next, nil
}

func (s *state) hold(name string) *service {
	svc, ok := s.services[name]
	if !ok {
		svc = &service{name: name, members: map[netip.AddrPort]member{}, changed: map[netip.AddrPort]struct{}{}}
		s.services[name] = svc
		s.out.change(xds.EndpointType, xds.EndpointCollection(name), true)
	}
	svc.refs++
	return svc
}

func (s *state) release(w *word) {
	if w == nil || w.svc == nil {
		return
	}
	svc := w.svc
	if svc.refs--; svc.refs > 0 {
		return
	}
	delete(s.services, svc.name)
	delete(s.dirty, svc)
	s.out.change(xds.EndpointType, xds.EndpointCollection(svc.name), false)
	if svc.given {
		s.gone = append(s.gone, svc.name)
	}
}

// upsert takes one member of a service.
func (s *state) upsert(svc *service, spec balancer.EndpointSpec, version string) {
	old, ok := svc.members[spec.Addr]
	svc.members[spec.Addr] = member{spec: spec, version: version}
	if !ok || old.spec != spec {
		s.touch(svc, spec.Addr)
	}
}

func (s *state) remove(svc *service, addr netip.AddrPort) {
	if _, ok := svc.members[addr]; ok {
		delete(svc.members, addr)
		s.touch(svc, addr)
	}
}

// whole takes the marker: the list is complete.
func (s *state) whole(svc *service, version string) {
	svc.marker = version
	if svc.complete {
		return
	}
	svc.complete = true
	s.dirty[svc] = struct{}{}
	for _, d := range s.dests {
		if d.next != nil && d.next.svc == svc {
			s.show(d)
		}
	}
}

// deleted takes the word that the service itself is gone. Its routes stay, to
// an empty set: RPCs fail with a text that says so, and go on when it is back.
func (s *state) deleted(svc *service) {
	svc.marker = ""
	for addr := range svc.members {
		s.remove(svc, addr)
	}
	s.whole(svc, "")
}

func (s *state) touch(svc *service, addr netip.AddrPort) {
	svc.changed[addr] = struct{}{}
	s.dirty[svc] = struct{}{}
}

// flush tells the sink what changed, in the order that it may rely on.
func (s *state) flush(sink Sink) {
	for svc := range s.dirty {
		if svc.complete {
			sink.Service(svc.name, svc.spec())
			svc.given = true
			delete(s.dirty, svc)
		}
	}
	if s.routesDirty {
		table := make(map[router.Key]router.Destination, len(s.dests))
		for k, d := range s.dests {
			if d.shown != nil {
				table[k] = d.shown.dst
			}
		}
		sink.Routes(router.NewTable(table))
		s.routesDirty = false
	}
	for _, name := range s.gone {
		if svc, ok := s.services[name]; ok && svc.given {
			continue
		}
		sink.Service(name, nil)
	}
	s.gone = nil
}

// spec describes the service now, and how that differs from the last time.
func (svc *service) spec() *balancer.Spec {
	spec := &balancer.Spec{Service: svc.name, Policy: svc.policy}
	delta := &balancer.Delta{Base: svc.version()}
	for addr := range svc.changed {
		if m, ok := svc.members[addr]; ok {
			delta.Upserts = append(delta.Upserts, m.spec)
		} else {
			delta.Removes = append(delta.Removes, addr)
		}
	}
	byAddr := func(a, b balancer.EndpointSpec) int { return a.Addr.Compare(b.Addr) }
	slices.SortFunc(delta.Upserts, byAddr)
	slices.SortFunc(delta.Removes, netip.AddrPort.Compare)
	if svc.given {
		spec.Delta = delta
	}
	svc.list = merge(svc.list, delta)
	spec.Endpoints = svc.list
	svc.serial++
	spec.Version = svc.version()
	clear(svc.changed)
	return spec
}

func (svc *service) version() string { return strconv.FormatUint(svc.serial, 10) }

// merge applies a sorted delta to a sorted list, into a new one: the old one
// belongs to a Spec that was given away.
func merge(list []balancer.EndpointSpec, d *balancer.Delta) []balancer.EndpointSpec {
	merged := make([]balancer.EndpointSpec, 0, len(list)+len(d.Upserts))
	ups, gone := d.Upserts, d.Removes
	for _, e := range list {
		for len(ups) > 0 && ups[0].Addr.Compare(e.Addr) < 0 {
			merged, ups = append(merged, ups[0]), ups[1:]
		}
		for len(gone) > 0 && gone[0].Compare(e.Addr) < 0 {
			gone = gone[1:]
		}
		switch {
		case len(ups) > 0 && ups[0].Addr == e.Addr:
			merged, ups = append(merged, ups[0]), ups[1:]
		case len(gone) > 0 && gone[0] == e.Addr:
			gone = gone[1:]
		default:
			merged = append(merged, e)
		}
	}
	return append(merged, ups...)
}

// held is what a new stream subscribes to, with the versions that are here.
func (s *state) held() map[string]*subscription {
	dests := &subscription{versions: map[string]string{}}
	for name, d := range s.byName {
		dests.names = append(dests.names, name)
		if d.version != "" {
			dests.versions[name] = d.version
		}
	}
	ends := &subscription{versions: map[string]string{}}
	for name, svc := range s.services {
		collection := xds.EndpointCollection(name)
		ends.names = append(ends.names, collection)
		if svc.marker != "" {
			ends.versions[collection] = svc.marker
		}
		for addr, m := range svc.members {
			ends.versions[xds.EndpointName(name, addr)] = m.version
		}
	}
	return map[string]*subscription{xds.DestinationType: dests, xds.EndpointType: ends}
}

// sweep ends the subscriptions that nothing was routed by since idle ago, and
// the least useful of those beyond limit.
func (s *state) sweep(now time.Time, idle time.Duration, limit int, busy func(service string) bool) {
	all := make([]*destination, 0, len(s.dests))
	for _, d := range s.dests {
		if d.usage.Take() {
			d.used = now
		}
		all = append(all, d)
	}
	isBusy := func(d *destination) bool {
		return d.shown != nil && d.shown.svc != nil && busy != nil && busy(d.shown.svc.name)
	}
	kept := all[:0]
	for _, d := range all {
		if now.Sub(d.used) < idle {
			kept = append(kept, d)
			continue
		}
		if isBusy(d) {
			d.used = now
			kept = append(kept, d)
			continue
		}
		s.log.Info("idle destination is unsubscribed", "destination", d.key.String())
		s.forget(d)
	}
	if len(kept) <= limit {
		return
	}
	// Far below the limit, so that a flood of names does not sort each time.
	surplus := len(kept) - limit + limit/8
	slices.SortFunc(kept, func(a, b *destination) int {
		return cmp.Or(cmp.Compare(a.worth(), b.worth()), a.used.Compare(b.used))
	})
	for _, d := range kept[:surplus] {
		s.forget(d)
	}
	s.log.Warn("too many destinations: the least used are unsubscribed", "limit", limit, "unsubscribed", surplus)
}

// worth ranks destinations by what forgetting them would cost.
func (d *destination) worth() int {
	switch {
	case d.shown == nil:
		return 1 // asked a moment ago; an RPC may be waiting
	case d.shown.dst.Kind == router.Unknown:
		return 0
	default:
		return 2
	}
}

// endpoints counts the members of all services.
func (s *state) endpoints() int {
	n := 0
	for _, svc := range s.services {
		n += len(svc.members)
	}
	return n
}
