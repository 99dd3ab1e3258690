// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"evenkeel.dev/xds/snapshot"
)

// assignable are the addresses for Services whose file names none: half of the
// block for benchmarks (RFC 2544, RFC 6890), which no network routes. The
// redirect acts before routing, so nobody needs to have them.
var assignable = netip.MustParsePrefix("198.18.0.0/16")

// assign gives a ClusterIP to each Service that has none: people's manifests
// seldom do, because the API server assigns it. The address is a function of
// what the files define and of nothing else, so that two readers of a directory
// agree: the control plane on what the address means, the sandbox on what its
// command is told.
func (f *Files) assign(want map[ref]snapshot.Change) {
	taken := map[netip.Addr]bool{}
	var lacking []ref
	for r, c := range want {
		if r.kind != snapshot.KindService {
			continue
		}
		for _, ip := range c.Service.ClusterIPs {
			taken[ip] = true
		}
		if len(c.Service.ClusterIPs) == 0 && !c.Service.Headless && c.Service.ExternalName == "" {
			lacking = append(lacking, r)
		}
	}
	slices.SortFunc(lacking, func(a, b ref) int { return strings.Compare(a.key.String(), b.key.String()) })
	assigned := make(map[ref]assignment, len(lacking))
	for _, r := range lacking {
		ip := startAddr(r.key)
		for taken[ip] {
			if ip = ip.Next(); !assignable.Contains(ip) {
				ip = assignable.Addr().Next()
			}
		}
		taken[ip] = true
		// The same value as before while nothing changes: merge compares by identity.
		a, ok := f.assigned[r]
		if from := want[r]; !ok || a.from != from || a.ip != ip {
			svc := *from.Service
			svc.ClusterIPs = []netip.Addr{ip}
			a = assignment{from: from, ip: ip, change: snapshot.Change{Kind: r.kind, Key: r.key, Service: &svc}}
			f.log.Debug("Service without a clusterIP: one is assigned", "service", r.key.String(), "clusterIP", ip)
		}
		assigned[r], want[r] = a, a.change
	}
	f.assigned = assigned
}

// assignment is a Service as a file has it, and with the address it was given.
type assignment struct {
	from, change snapshot.Change
	ip           netip.Addr
}

// startAddr is where the search for a free address begins.
func startAddr(key snapshot.ObjectKey) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(key.String()))
	sum := h.Sum32()
	ip := assignable.Addr().As4()
	ip[2], ip[3] = byte(sum>>8), byte(sum)
	return netip.AddrFrom4(ip)
}
