// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// hostTable holds a headless Service's endpoints by the label that cluster DNS
// gives them: the Pod's hostname (StatefulSets set it) or else its address with
// dashes for dots and colons.
type hostTable map[string]*Endpoint

func (s *Store) hostsOf(svc *Service) hostTable {
	if t, ok := s.hosts[svc.Key]; ok {
		return t
	}
	t := hostTable{}
	for _, sl := range s.slices[svc.Key] {
		for i := range sl.Endpoints {
			ep := &sl.Endpoints[i]
			if s.isGone(ep) {
				continue
			}
			label := ep.Hostname
			if label == "" {
				label = dashed(ep.Addr)
			}
			if old, ok := t[label]; !ok || s.betterHost(svc, ep, old) {
				t[label] = ep
			}
		}
	}
	s.hosts[svc.Key] = t
	return t
}

// betterHost decides between two endpoints of one name: a StatefulSet's Pod and
// its predecessor, or the two families of one Pod. A Pod that is not ready keeps
// its name here: who dials it means that Pod and no other.
func (s *Store) betterHost(svc *Service, a, b *Endpoint) bool {
	rank := func(ep *Endpoint) int {
		c := s.candidate(svc, listed{netip.AddrPortFrom(ep.Addr, 0), ep})
		switch s.health(&c) {
		case corepb.HealthStatus_HEALTHY:
			return 3
		case corepb.HealthStatus_UNHEALTHY:
			return 2
		case corepb.HealthStatus_DRAINING:
			return 1
		}
		return 0
	}
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra > rb
	}
	if pa, pb := a.Addr.Is6() == svc.PreferIPv6, b.Addr.Is6() == svc.PreferIPv6; pa != pb {
		return pa
	}
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c < 0
	}
	if a.PodUID != b.PodUID {
		return a.PodUID > b.PodUID
	}
	return a.Pod < b.Pod // slices made by hand
}

func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// parseDashed is the inverse of dashed. IPv6 is tried with every dash as a
// colon; a compressed address keeps its double dash.
func parseDashed(s string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(strings.ReplaceAll(s, "-", ".")); err == nil && a.Is4() {
		return a, true
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(s, "-", ":"))
	return a, err == nil && a.Is6() && !a.Is4In6()
}
