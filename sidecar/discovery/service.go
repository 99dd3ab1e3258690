// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"net/netip"
	"slices"
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/xds"
)

// service is the endpoints of one service.
type service struct {
	name   string
	policy balancer.Policy
	refs   int // words that hold it
	seen   int // those of them that the app's routes are made of: above zero, the sink has it
	// barrier, when set, must be answered before the list is asked for; until
	// then nothing that arrives is this subscription's.
	barrier string
	// warm: it was learned, so the sink is to connect to it; warmed: it was told.
	warm, warmed bool

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

// hold takes a reference to a service for w, which is about to lead to it.
func (s *state) hold(name string, w *word) {
	svc, ok := s.services[name]
	switch {
	case !ok:
		svc = &service{name: name, members: map[netip.AddrPort]member{}, changed: map[netip.AddrPort]struct{}{}}
		s.services[name] = svc
		s.subscribe(svc)
	case svc.refs == 0:
		// Retired, but the control plane was not told: the subscription never
		// ended, and the list has been kept up to date.
		s.out.forget(xds.EndpointType, xds.EndpointCollection(name))
	}
	svc.refs++
	w.svc = svc
	if !w.hidden {
		s.see(svc)
	}
}

// see counts one more word that the sink knows svc by.
func (s *state) see(svc *service) {
	if svc.seen++; svc.seen == 1 {
		s.dirty[svc] = struct{}{}
	}
}

func (s *state) release(w *word) {
	if w == nil || w.svc == nil {
		return
	}
	svc := w.svc
	if !w.hidden {
		if svc.seen--; svc.seen == 0 && svc.given {
			svc.given, svc.warmed = false, false
			s.gone = append(s.gone, svc.name)
		}
	}
	if svc.refs--; svc.refs > 0 {
		return
	}
	svc.warm = false
	if svc.barrier != "" {
		s.drop(svc) // its list was not asked for yet
		s.out.change(xds.DestinationType, svc.barrier, false)
		return
	}
	// It stays, and is kept up to date, until the control plane is told.
	s.out.change(xds.EndpointType, xds.EndpointCollection(svc.name), false)
}

// subscribe asks for the list of a service that is new here. Where the
// control plane was told, on this stream, that nobody wants that list, what it
// had sent before may still be on its way: endpoints that it will never take back,
// since it believes that we have none. A name that is asked for now, and
// for the first time, is answered after all of that.
func (s *state) subscribe(svc *service) {
	collection := xds.EndpointCollection(svc.name)
	if _, left := s.left[collection]; !left {
		s.out.change(xds.EndpointType, collection, true)
		return
	}
	s.barriers++
	svc.barrier = xds.HostName(s.namespace, "barrier-"+strconv.Itoa(s.barriers)+".evenkeel.invalid:1")
	s.out.change(xds.DestinationType, svc.barrier, true)
}

// answered takes the answer to a barrier.
func (s *state) answered(barrier string) bool {
	for _, svc := range s.services {
		if svc.barrier == barrier {
			svc.barrier = ""
			delete(s.left, xds.EndpointCollection(svc.name))
			s.subscribe(svc)
			s.out.change(xds.DestinationType, barrier, false)
			return true
		}
	}
	return false
}

// sent takes that a request is on its way: what it unsubscribes is dropped.
func (s *state) sent(req *discoveryv3.DeltaDiscoveryRequest) {
	if req.GetTypeUrl() != xds.EndpointType {
		return
	}
	for _, collection := range req.GetResourceNamesUnsubscribe() {
		s.left[collection] = struct{}{}
		if r, err := xds.ParseEndpointResource(collection); err == nil {
			if svc := s.services[r.Service.String()]; svc != nil && svc.refs == 0 {
				s.drop(svc)
			}
		}
	}
}

// drop forgets a service that nothing holds.
func (s *state) drop(svc *service) {
	delete(s.services, svc.name)
	delete(s.dirty, svc)
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
