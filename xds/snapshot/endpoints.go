// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// listed is one endpoint of a slice on one of its ports. It is small, because a
// thousand of them are sorted whenever one changes.
type listed struct {
	addr netip.AddrPort
	ep   *Endpoint
}

// candidate is what the slices say of one Pod at one address, merged.
type candidate struct {
	addr                        netip.AddrPort
	ep                          *Endpoint // of one of the slices
	pod                         *Pod      // that ep refers to; nil if it is not known
	uid                         string    // of the Pod; empty if ep refers to none
	ready, serving, terminating bool
}

func (s *Store) candidate(svc *Service, l listed) candidate {
	ep := l.ep
	c := candidate{
		addr: l.addr, ep: ep, uid: ep.PodUID,
		ready: ep.Ready, serving: ep.Serving, terminating: ep.Terminating,
	}
	if ep.Pod == "" {
		return c
	}
	switch pod := s.pods[ObjectKey{svc.Key.Namespace, ep.Pod}]; {
	case pod == nil:
	case c.uid == "": // a slice made by hand
		c.pod, c.uid = pod, pod.UID
	case c.uid == pod.UID:
		c.pod = pod
	default: // another Pod of that name
	}
	return c
}

// endpoints merges the slices of a Service into a list sorted by address. The
// same endpoint may be in several slices, for example while the controller moves
// it from one to another
// (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints),
// and the same address may be there for two Pods when it was reused.
func (s *Store) endpoints(svc *Service, ports portMatch) []endpointSpec {
	return s.specs(svc, s.listed(svc, ports))
}

// specs are what is sent of endpoints, which are sorted.
func (s *Store) specs(svc *Service, all []listed) []endpointSpec {
	specs := make([]endpointSpec, 0, len(all))
	for len(all) > 0 {
		c := s.candidate(svc, all[0])
		all = all[1:]
		for len(all) > 0 && all[0].addr == c.addr {
			o := s.candidate(svc, all[0])
			if o.uid != c.uid {
				break
			}
			c.merge(&o)
			all = all[1:]
		}
		spec := endpointSpec{addr: c.addr, health: s.health(&c), pod: c.ep.Pod, uid: c.uid, node: c.ep.Node, zone: c.ep.Zone}
		if spec.health == corepb.HealthStatus_UNKNOWN {
			continue
		}
		if spec.zone == "" {
			if n := s.nodes[spec.node]; n != nil {
				spec.zone = n.Zone
			}
		}
		if last := len(specs) - 1; last >= 0 && specs[last].addr == spec.addr {
			// Another Pod at the same address. They come in the order of their UIDs.
			if preferred(spec.health, specs[last].health) {
				specs[last] = spec
			}
			continue
		}
		specs = append(specs, spec)
	}
	return dropSecondFamily(specs, svc.PreferIPv6)
}

// listed returns all endpoints of the matching ports, sorted by address and UID.
func (s *Store) listed(svc *Service, ports portMatch) []listed {
	n := 0
	for _, sl := range s.slices[svc.Key] {
		n += len(sl.Endpoints)
	}
	all := make([]listed, 0, n)
	for _, sl := range s.slices[svc.Key] {
		for _, port := range ports.of(sl) {
			for i := range sl.Endpoints {
				ep := &sl.Endpoints[i]
				all = append(all, listed{netip.AddrPortFrom(ep.Addr, port), ep})
			}
		}
	}
	s.sort(svc, all)
	return all
}

func (s *Store) sort(svc *Service, all []listed) {
	slices.SortFunc(all, func(a, b listed) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return strings.Compare(s.candidate(svc, a).uid, s.candidate(svc, b).uid) // rare
	})
}

// merge joins two reports of the same Pod at the same address. One of them is
// stale. The end of a Pod is irreversible, so that one is the newer which tells it.
func (c *candidate) merge(o *candidate) {
	c.terminating = c.terminating || o.terminating
	c.ready = c.ready || o.ready
	c.serving = c.serving || o.serving
	// What should never differ must at least not depend on the order.
	if a, b := c.ep, o.ep; a.Pod < b.Pod || a.Pod == b.Pod && (a.Node < b.Node || a.Node == b.Node && a.Zone < b.Zone) {
		c.ep = b
	}
	if c.pod == nil {
		c.pod = o.pod
	}
}

// health is the state of the table in the package's documentation; UNKNOWN
// means that the endpoint is not sent.
func (s *Store) health(c *candidate) corepb.HealthStatus {
	if s.isGone(c.ep) {
		return corepb.HealthStatus_UNKNOWN
	}
	// A ready Pod whose slice does not know it yet.
	ahead := !c.terminating && c.pod != nil && c.pod.Ready
	leaving := c.terminating || c.pod != nil && (c.pod.Terminating || s.isDraining(c.pod.UID))
	switch {
	case leaving && (c.serving || c.ready || ahead):
		return corepb.HealthStatus_DRAINING
	case leaving:
		return corepb.HealthStatus_UNKNOWN
	case c.ready, ahead:
		return corepb.HealthStatus_HEALTHY
	case c.pod != nil && c.pod.AppReady:
		return corepb.HealthStatus_UNHEALTHY
	}
	return corepb.HealthStatus_UNKNOWN
}

func (s *Store) isGone(ep *Endpoint) bool {
	if len(s.gone) == 0 || ep.PodUID == "" {
		return false
	}
	_, gone := s.gone[ep.PodUID]
	return gone
}

// preferred decides which of two Pods at the same address is the one that
// answers there: the one that is not on its way out, and in doubt the first.
func preferred(a, b corepb.HealthStatus) bool {
	rank := func(h corepb.HealthStatus) int {
		switch h {
		case corepb.HealthStatus_HEALTHY:
			return 2
		case corepb.HealthStatus_UNHEALTHY:
			return 1
		}
		return 0
	}
	return rank(a) >= rank(b)
}

// dropSecondFamily leaves one endpoint of a Pod that is there with an IPv4 and an
// IPv6 address: twice the connections would bring nothing, and a Pod with two
// families would get twice the RPCs of a Pod with one.
func dropSecondFamily(specs []endpointSpec, preferIPv6 bool) []endpointSpec {
	// Sorted: IPv4 comes before IPv6 (netip.Addr.Compare: by bit length first).
	if len(specs) == 0 || specs[0].addr.Addr().Is6() || specs[len(specs)-1].addr.Addr().Is4() {
		return specs
	}
	type podPort struct {
		uid  string
		port uint16
	}
	has := map[podPort]struct{}{}
	for _, spec := range specs {
		if spec.uid != "" && spec.addr.Addr().Is6() == preferIPv6 {
			has[podPort{spec.uid, spec.addr.Port()}] = struct{}{}
		}
	}
	kept := specs[:0]
	for _, spec := range specs {
		if _, ok := has[podPort{spec.uid, spec.addr.Port()}]; !ok || spec.addr.Addr().Is6() == preferIPv6 {
			kept = append(kept, spec)
		}
	}
	return kept
}
