// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
)

// Exposure says which clients a Pod may have.
type Exposure uint8

// From least to most: no Service has the Pod; one has; one of them is open to
// clients outside of the cluster, whose load balancers learn late of a Pod's end.
const (
	ExposureNone Exposure = iota
	ExposureService
	ExposureExternal
)

// PodService is a Pod as an endpoint of one port of a Service.
type PodService struct {
	Service xds.Service
	// Addr is invalid when no slice lists the Pod on this port yet. Of several
	// addresses (port names that pods of one Service give to several numbers) it
	// is the one that is the most ready.
	Addr netip.AddrPort
	// State is what clients are sent; UNKNOWN: it is not sent.
	State corepb.HealthStatus
	// LocalOnly: only clients on the Pod's node are sent it.
	LocalOnly bool
}

// Membership is a Pod and the services that it is in.
type Membership struct {
	UID, Node   string
	AppReady    bool // all containers but our sidecar are ready
	Ready       bool
	Terminating bool
	Draining    bool // Terminating, or SetDraining is on
	// DeletionGrace is the grace period of the deletion; 0 unless Terminating.
	DeletionGrace time.Duration
	IPs           []netip.Addr // not to be written
	Exposure      Exposure
	// Services are those whose selector selects the Pod or whose slices list it,
	// one for each TCP port, sorted by their text.
	Services []PodService
}

// Membership returns what is known of a Pod; false if there is no such Pod.
func (s *Store) Membership(pod ObjectKey) (Membership, bool) {
	p := s.pods[pod]
	if p == nil {
		return Membership{}, false
	}
	m := Membership{
		UID: p.UID, Node: p.Node,
		AppReady: p.AppReady, Ready: p.Ready, Terminating: p.Terminating,
		Draining:      p.Terminating || s.isDraining(p.UID),
		DeletionGrace: p.DeletionGrace, IPs: p.IPs,
	}
	for _, svc := range s.servicesOf(p) {
		m.Exposure = max(m.Exposure, s.exposure(svc))
		for _, port := range s.dialledPorts(svc) {
			m.Services = append(m.Services, s.podService(p, svc, port))
		}
	}
	slices.SortFunc(m.Services, func(a, b PodService) int {
		return cmp.Or(cmp.Compare(a.Service.Namespace, b.Service.Namespace),
			cmp.Compare(a.Service.Name, b.Service.Name), cmp.Compare(a.Service.Port, b.Service.Port))
	})
	return m, true
}

// servicesOf are the Services that select the Pod or whose slices list it.
func (s *Store) servicesOf(p *Pod) []*Service {
	var list []*Service
	for pair := range p.Labels.pairs() {
		for _, c := range s.bySelector[selectorPair{p.Key.Namespace, pair}] {
			if svc := s.services[c.key]; svc.Selector.selects(p.Labels) {
				list = append(list, svc)
			}
		}
	}
	for _, c := range s.byPod[p.Key] {
		svc := s.services[c.key]
		if svc != nil && !slices.Contains(list, svc) && s.lists(svc, p) {
			list = append(list, svc)
		}
	}
	return list
}

// lists reports whether a slice lists that Pod, and not another one of its name.
func (s *Store) lists(svc *Service, p *Pod) bool {
	for _, sl := range s.slices[svc.Key] {
		for i := range sl.Endpoints {
			if sl.Endpoints[i].refersTo(p) {
				return true
			}
		}
	}
	return false
}

func (e *Endpoint) refersTo(p *Pod) bool {
	return e.Pod == p.Key.Name && (e.PodUID == "" || e.PodUID == p.UID)
}

// podService looks at the Pod alone, and at who else has one of its addresses:
// what it finds is what Collection has of the Pod.
func (s *Store) podService(p *Pod, svc *Service, port uint16) PodService {
	ps := PodService{
		Service:   xds.Service{Namespace: svc.Key.Namespace, Name: svc.Key.Name, Port: port},
		LocalOnly: svc.LocalOnly && !svc.Headless,
	}
	ports, _ := s.portsOf(svc, port)
	var at []netip.Addr
	for _, sl := range s.slices[svc.Key] {
		for i := range sl.Endpoints {
			if ep := &sl.Endpoints[i]; ep.refersTo(p) && !slices.Contains(at, ep.Addr) {
				at = append(at, ep.Addr)
			}
		}
	}
	if len(at) == 0 {
		return ps
	}
	var all []listed
	for _, sl := range s.slices[svc.Key] {
		for i := range sl.Endpoints {
			if ep := &sl.Endpoints[i]; slices.Contains(at, ep.Addr) {
				for _, number := range ports.of(sl) {
					all = append(all, listed{netip.AddrPortFrom(ep.Addr, number), ep})
				}
			}
		}
	}
	s.sort(svc, all)
	for _, c := range all {
		if c.ep.refersTo(p) && (!ps.Addr.IsValid() || c.addr.Addr().Is6() == svc.PreferIPv6 && ps.Addr.Addr().Is6() != svc.PreferIPv6) {
			ps.Addr = c.addr
		}
	}
	for _, spec := range s.specs(svc, all) {
		if spec.uid == p.UID && spec.pod == p.Key.Name && (ps.State == corepb.HealthStatus_UNKNOWN || spec.health != ps.State && preferred(spec.health, ps.State)) {
			ps.Addr, ps.State = spec.addr, spec.health
		}
	}
	return ps
}

// ServicesAt returns the Services with that ClusterIP, or whose slices have that
// address and port, sorted by namespace and name.
func (s *Store) ServicesAt(dst netip.AddrPort) []ObjectKey {
	var keys []ObjectKey
	a := dst.Addr().Unmap()
	for _, c := range s.byClusterIP[a] {
		keys = append(keys, c.key)
	}
	for _, c := range s.byEndpoint[a] {
		if svc := s.services[c.key]; svc != nil && !slices.Contains(keys, c.key) && s.hasEndpoint(svc, a, dst.Port()) {
			keys = append(keys, c.key)
		}
	}
	slices.SortFunc(keys, ObjectKey.Compare)
	return keys
}

func (s *Store) hasEndpoint(svc *Service, a netip.Addr, port uint16) bool {
	for _, sl := range s.slices[svc.Key] {
		if !svc.AnyPort && !slices.ContainsFunc(sl.Ports, func(p SlicePort) bool { return p.Port == port }) {
			continue
		}
		if slices.ContainsFunc(sl.Endpoints, func(e Endpoint) bool { return e.Addr == a }) {
			return true
		}
	}
	return false
}
