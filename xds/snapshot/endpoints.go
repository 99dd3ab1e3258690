// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// candidate is what the slices say of one Pod at one address, merged.
type candidate struct {
	addr                        netip.AddrPort
	ep                          *Endpoint // of one of the slices
	ready, serving, terminating bool
}

func newCandidate(ep *Endpoint, port uint16) candidate {
	return candidate{netip.AddrPortFrom(ep.Addr, port), ep, ep.Ready, ep.Serving, ep.Terminating}
}

// endpoints merges the slices of a Service into a list sorted by address. The
// same endpoint may be in several slices, for example while the controller moves
// it from one to another
// (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints),
// and the same address may be there for two Pods when it was reused.
func (s *Store) endpoints(svc *Service, ports portMatch) []endpointSpec {
	all := s.candidates(svc, ports)
	specs := make([]endpointSpec, 0, len(all))
	uids := make([]string, 0, len(all))
	for len(all) > 0 {
		c := all[0]
		all = all[1:]
		for len(all) > 0 && all[0].addr == c.addr && all[0].ep.PodUID == c.ep.PodUID {
			c.merge(&all[0])
			all = all[1:]
		}
		spec := endpointSpec{addr: c.addr, health: s.health(svc, &c), pod: c.ep.Pod, node: c.ep.Node, zone: c.ep.Zone}
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
				specs[last], uids[last] = spec, c.ep.PodUID
			}
			continue
		}
		specs, uids = append(specs, spec), append(uids, c.ep.PodUID)
	}
	return dropSecondFamily(specs, uids, svc.PreferIPv6)
}

// candidates are all endpoints of the matching ports, sorted by address and UID.
func (s *Store) candidates(svc *Service, ports portMatch) []candidate {
	n := 0
	for _, sl := range s.slices[svc.Key] {
		n += len(sl.Endpoints)
	}
	all := make([]candidate, 0, n)
	for _, sl := range s.slices[svc.Key] {
		for _, port := range ports.of(sl) {
			for i := range sl.Endpoints {
				all = append(all, newCandidate(&sl.Endpoints[i], port))
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return strings.Compare(a.ep.PodUID, b.ep.PodUID)
	})
	return all
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
}

// health is the state of the table in the package's documentation; UNKNOWN
// means that the endpoint is not sent.
func (s *Store) health(svc *Service, c *candidate) corepb.HealthStatus {
	if s.isGone(c.ep) {
		return corepb.HealthStatus_UNKNOWN
	}
	var pod *Pod
	if c.ep.Pod != "" {
		pod = s.pods[ObjectKey{svc.Key.Namespace, c.ep.Pod}]
		if pod != nil && c.ep.PodUID != "" && pod.UID != c.ep.PodUID {
			pod = nil // another Pod of that name
		}
	}
	terminating := c.terminating || pod != nil && pod.Terminating
	switch {
	case terminating && (c.serving || c.ready):
		return corepb.HealthStatus_DRAINING
	case terminating:
		return corepb.HealthStatus_UNKNOWN
	case c.ready, pod != nil && pod.Ready:
		return corepb.HealthStatus_HEALTHY
	case pod != nil && pod.AppReady:
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
func dropSecondFamily(specs []endpointSpec, uids []string, preferIPv6 bool) []endpointSpec {
	// Sorted: IPv4 comes before IPv6 (netip.Addr.Compare: by bit length first).
	if len(specs) == 0 || specs[0].addr.Addr().Is6() || specs[len(specs)-1].addr.Addr().Is4() {
		return specs
	}
	type podPort struct {
		uid  string
		port uint16
	}
	has := map[podPort]struct{}{}
	for i, spec := range specs {
		if uids[i] != "" && spec.addr.Addr().Is6() == preferIPv6 {
			has[podPort{uids[i], spec.addr.Port()}] = struct{}{}
		}
	}
	kept := specs[:0]
	for i, spec := range specs {
		if _, ok := has[podPort{uids[i], spec.addr.Port()}]; !ok || spec.addr.Addr().Is6() == preferIPv6 {
			kept = append(kept, spec)
		}
	}
	return kept
}
