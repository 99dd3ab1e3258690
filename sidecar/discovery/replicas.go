// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"net/netip"
	"slices"
	"strings"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
)

// maxReplicas bounds the streams of reports.
const maxReplicas = 16

// targetKey is how the control plane is asked about itself; false where its
// address is no name of the cluster.
func (c *Config) targetKey() (router.Key, bool) {
	if _, unix := c.socket(); unix {
		return router.Key{}, false
	}
	return router.Key{Name: strings.ToLower(strings.TrimSuffix(c.Target, "."))}, true
}

// replicaTargets is where the control plane's replicas listen; false: not known
// yet. Where the control plane does not know itself as a Service, or knows no
// member of it, the target is the only one.
func (s *state) replicaTargets(target string) ([]string, bool) {
	d := s.replicas
	if d == nil {
		return []string{target}, true
	}
	if d.shown == nil {
		return nil, false
	}
	if d.shown.svc == nil {
		return []string{target}, true
	}
	var addrs []netip.AddrPort
	for addr, m := range d.shown.svc.members {
		if m.spec.State != balancer.Warming {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return []string{target}, true
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	targets := make([]string, 0, len(addrs))
	for _, a := range addrs[:min(len(addrs), maxReplicas)] {
		targets = append(targets, a.String())
	}
	return targets, true
}
