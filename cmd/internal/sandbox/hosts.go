// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

const hostsPath = "/etc/hosts"

// hostEntry is one line of a hosts file.
type hostEntry struct {
	addr  netip.Addr
	names []string
}

// hostsFile returns base, the machine's own hosts file, with what the cluster's DNS would say to a pod in namespace own
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md): the ClusterIPs of Services, the endpoints of headless ones,
// and those endpoints that have a name of their own.
func hostsFile(base []byte, services []*snapshot.Service, all []*snapshot.Slice, own string) []byte {
	var b strings.Builder
	b.Write(base)
	if len(base) > 0 && base[len(base)-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString("# Services in this evenkeel sandbox\n")
	for _, entry := range hostEntries(services, all, own) {
		b.WriteString(entry.addr.String())
		b.WriteByte('\t')
		b.WriteString(strings.Join(entry.names, " "))
		b.WriteByte('\n')
	}
	return []byte(b.String())
}

func hostEntries(services []*snapshot.Service, all []*snapshot.Slice, own string) []hostEntry {
	var entries []hostEntry
	for _, svc := range services {
		names := dnsNames(svc.Key.Name, svc.Key.Namespace, own)
		switch {
		case svc.ExternalName != "":
			continue // a CNAME, which a hosts file cannot hold
		case svc.Headless:
			entries = append(entries, headlessEntries(svc, all, own, names)...)
		default:
			for _, ip := range svc.ClusterIPs {
				entries = append(entries, hostEntry{ip, names})
			}
		}
	}
	slices.SortFunc(entries, func(a, b hostEntry) int {
		return cmp.Or(strings.Compare(a.names[0], b.names[0]), a.addr.Compare(b.addr))
	})
	// An endpoint may be in two slices while it moves.
	return slices.CompactFunc(entries, func(a, b hostEntry) bool { return a.addr == b.addr && slices.Equal(a.names, b.names) })
}

// headlessEntries are the ready endpoints of a headless Service, and the name of each.
func headlessEntries(svc *snapshot.Service, all []*snapshot.Slice, own string, names []string) []hostEntry {
	var entries []hostEntry
	for _, slice := range all {
		if slice.Service != svc.Key.Name || slice.Key.Namespace != svc.Key.Namespace {
			continue
		}
		for i := range slice.Endpoints {
			ep := &slice.Endpoints[i]
			if !ep.Ready {
				continue
			}
			addr := redirectable(ep.Addr, svc.Key.String())
			entries = append(entries, hostEntry{addr, names})
			if ep.Hostname != "" {
				entries = append(entries, hostEntry{addr, dnsNames(ep.Hostname+"."+svc.Key.Name, svc.Key.Namespace, own)})
			}
		}
	}
	return entries
}

// dnsNames lists the forms of a name in namespace ns for a pod in namespace own, the longest first: the first one is what
// an address resolves back to.
func dnsNames(name, ns, own string) []string {
	names := []string{
		name + "." + ns + ".svc." + xds.DefaultClusterDNS,
		name + "." + ns + ".svc",
		name + "." + ns,
	}
	if ns == own {
		names = append(names, name)
	}
	return names
}

// standIns are half of the block for benchmarks (RFC 2544), which no network routes. From the other half the control plane assigns
// ClusterIPs (xds/watch).
var standIns = netip.MustParsePrefix("198.19.0.0/16")

// redirectable returns addr, or for a loopback address a stand-in. On one machine servers are often on 127.0.0.1; a pod never is,
// and the redirect leaves loopback alone. A headless Service is routed by its name, whatever address was dialled, so any address
// that the redirect takes will do.
func redirectable(addr netip.Addr, name string) netip.Addr {
	if !addr.IsLoopback() {
		return addr
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	sum := h.Sum32()
	ip := standIns.Addr().As4()
	ip[2], ip[3] = byte(sum>>8), byte(sum)
	return netip.AddrFrom4(ip)
}
