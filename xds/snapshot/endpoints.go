// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// candidate is what the slices say of one Pod at one address, merged.
type candidate struct {
	Endpoint
	addr netip.AddrPort
}

type candidateKey struct {
	addr netip.AddrPort
	uid  string
}

// endpoints merges the slices of a Service. The same endpoint may be in several
// slices, for example while the controller moves it from one to another
// (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints),
// and the same address may be there for two Pods when it was reused.
func (s *Store) endpoints(svc *Service, ports portMatch) map[netip.AddrPort]endpointSpec {
	merged := map[candidateKey]*candidate{}
	for _, sl := range s.slices[svc.Key] {
		for _, port := range ports.of(sl) {
			for i := range sl.Endpoints {
				ep := &sl.Endpoints[i]
				k := candidateKey{netip.AddrPortFrom(ep.Addr, port), ep.PodUID}
				if c, ok := merged[k]; ok {
					c.merge(ep)
					continue
				}
				merged[k] = &candidate{Endpoint: *ep, addr: k.addr}
			}
		}
	}
	byAddr := map[netip.AddrPort]endpointSpec{}
	uids := map[netip.AddrPort]string{}
	for k, c := range merged {
		health := s.health(svc, c)
		if health == corepb.HealthStatus_UNKNOWN {
			continue
		}
		spec := endpointSpec{addr: k.addr, health: health, node: c.Node, zone: c.Zone}
		if c.Pod != "" {
			spec.pod = ObjectKey{svc.Key.Namespace, c.Pod}.String()
		}
		if n := s.nodes[c.Node]; spec.zone == "" && n != nil {
			spec.zone = n.Zone
		}
		if old, ok := byAddr[k.addr]; ok && !preferred(spec, k.uid, old, uids[k.addr]) {
			continue
		}
		byAddr[k.addr], uids[k.addr] = spec, k.uid
	}
	dropSecondFamily(byAddr, uids, svc.PreferIPv6)
	return byAddr
}

// merge joins two reports of the same Pod at the same address. One of them is
// stale. The end of a Pod is irreversible, so that one is the newer which tells it.
func (c *candidate) merge(o *Endpoint) {
	c.Terminating = c.Terminating || o.Terminating
	c.Ready = c.Ready || o.Ready
	c.Serving = c.Serving || o.Serving
	// Deterministic where the two differ in what should never differ.
	c.Node, c.Zone, c.Pod, c.Hostname = max(c.Node, o.Node), max(c.Zone, o.Zone), max(c.Pod, o.Pod), max(c.Hostname, o.Hostname)
}

// health is the state of the table in the package's documentation; UNKNOWN
// means that the endpoint is not sent.
func (s *Store) health(svc *Service, c *candidate) corepb.HealthStatus {
	if _, gone := s.gone[c.PodUID]; gone && c.PodUID != "" {
		return corepb.HealthStatus_UNKNOWN
	}
	pod := s.pods[ObjectKey{svc.Key.Namespace, c.Pod}]
	if pod != nil && (c.Pod == "" || c.PodUID != "" && pod.UID != c.PodUID) {
		pod = nil // another Pod of that name
	}
	terminating := c.Terminating || pod != nil && pod.Terminating
	switch {
	case terminating && (c.Serving || c.Ready):
		return corepb.HealthStatus_DRAINING
	case terminating:
		return corepb.HealthStatus_UNKNOWN
	case c.Ready:
		return corepb.HealthStatus_HEALTHY
	case pod != nil && pod.AppReady:
		return corepb.HealthStatus_UNHEALTHY
	}
	return corepb.HealthStatus_UNKNOWN
}

// preferred decides which of two Pods at the same address is the one that
// answers there: the one that is not on its way out.
func preferred(a endpointSpec, aUID string, b endpointSpec, bUID string) bool {
	rank := func(h corepb.HealthStatus) int {
		switch h {
		case corepb.HealthStatus_HEALTHY:
			return 2
		case corepb.HealthStatus_UNHEALTHY:
			return 1
		}
		return 0
	}
	if ra, rb := rank(a.health), rank(b.health); ra != rb {
		return ra > rb
	}
	return aUID > bUID
}

// dropSecondFamily leaves one endpoint of a Pod that is there with an IPv4 and an
// IPv6 address: twice the connections would bring nothing, and a Pod with two
// families would get twice the RPCs of a Pod with one.
func dropSecondFamily(byAddr map[netip.AddrPort]endpointSpec, uids map[netip.AddrPort]string, preferIPv6 bool) {
	type podPort struct {
		uid  string
		port uint16
	}
	preferred := map[podPort]struct{}{}
	for a := range byAddr {
		if uid := uids[a]; uid != "" && a.Addr().Is6() == preferIPv6 {
			preferred[podPort{uid, a.Port()}] = struct{}{}
		}
	}
	for a := range byAddr {
		if _, ok := preferred[podPort{uids[a], a.Port()}]; ok && a.Addr().Is6() != preferIPv6 {
			delete(byAddr, a)
		}
	}
}
