// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// dnsWarning says why the sidecar of a pod may not find the control plane, whose
// name only the cluster's DNS knows; nil: nothing speaks against it. The pod is
// injected all the same: an address that answers late is better than none, and the
// app's connections are relayed meanwhile.
func dnsWarning(spec *corev1.PodSpec, cluster *Cluster, xdsAddress string) *Warning {
	host, _, err := net.SplitHostPort(xdsAddress)
	if err != nil || !cluster.knows(host) {
		return nil
	}
	warn := func(format string, args ...any) *Warning {
		w := warnf(ReasonNodeDNS, "", "%s: the sidecar cannot find %s, so nothing is balanced; %s",
			fmt.Sprintf(format, args...), xdsAddress, "use dnsPolicy ClusterFirst, which spec.dnsConfig adds to")
		return &w
	}
	switch spec.DNSPolicy {
	case corev1.DNSDefault:
		return warn("spec.dnsPolicy is Default, the node's DNS")
	case corev1.DNSNone:
		var conf corev1.PodDNSConfig
		if spec.DNSConfig != nil {
			conf = *spec.DNSConfig
		}
		if len(cluster.Nameservers) > 0 && !slices.ContainsFunc(conf.Nameservers, cluster.serves) {
			return warn("spec.dnsPolicy is None, and of the cluster's nameservers (%s) none is in spec.dnsConfig (%s)",
				joinAddrs(cluster.Nameservers), strings.Join(conf.Nameservers, ", "))
		}
		if strings.HasSuffix(host, ".svc") && !slices.ContainsFunc(conf.Searches, cluster.completes) {
			return warn("spec.dnsPolicy is None, and spec.dnsConfig.searches has no %s", cluster.domain())
		}
	}
	return nil
}

// knows tells names that only the cluster's DNS resolves.
func (c *Cluster) knows(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, "."+c.domain())
}

func (c *Cluster) serves(nameserver string) bool {
	a, err := netip.ParseAddr(nameserver)
	return err == nil && slices.Contains(c.Nameservers, a.Unmap())
}

// completes tells the search domain that makes a full name of one that ends in svc.
func (c *Cluster) completes(search string) bool {
	return strings.EqualFold(strings.TrimSuffix(search, "."), c.domain())
}

func (c *Cluster) domain() string {
	if c.Domain == "" {
		return "cluster.local"
	}
	return strings.TrimSuffix(c.Domain, ".")
}

// ParseNameservers reads those of a resolv.conf(5). What is no address is left out.
func ParseNameservers(file string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(file) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

func joinAddrs(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ", ")
}
