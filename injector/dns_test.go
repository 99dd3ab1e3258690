// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDNSWarning(t *testing.T) {
	const ours = "evenkeel-xds.evenkeel-system.svc:15950"
	none := func(nameservers, searches string) corev1.PodSpec {
		return corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: strings.Fields(nameservers), Searches: strings.Fields(searches)}}
	}
	for name, tc := range map[string]struct {
		spec    corev1.PodSpec
		cluster Cluster
		xds     string
		want    string // empty: no warning
	}{
		"default":                     {corev1.PodSpec{}, *testCluster(), ours, ""},
		"cluster first":               {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, *testCluster(), ours, ""},
		"the node's":                  {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, *testCluster(), ours, "spec.dnsPolicy is Default"},
		"an address needs no DNS":     {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, *testCluster(), "10.0.0.1:15950", ""},
		"a name of the world's":       {none("8.8.8.8", ""), *testCluster(), "xds.example.com:15950", ""},
		"the cluster's":               {none("8.8.8.8 10.96.0.10", "x.example cluster.local."), *testCluster(), ours, ""},
		"the cluster's, IPv6":         {none("FD00:0::A", "Cluster.Local"), *testCluster(), ours, ""},
		"others":                      {none("8.8.8.8 x", "cluster.local"), *testCluster(), ours, "of the cluster's nameservers (10.96.0.10, fd00::a) none is in spec.dnsConfig (8.8.8.8, x)"},
		"nothing at all":              {corev1.PodSpec{DNSPolicy: corev1.DNSNone}, *testCluster(), ours, "none is in spec.dnsConfig ()"},
		"no search":                   {none("10.96.0.10", "svc.cluster.local"), *testCluster(), ours, "spec.dnsConfig.searches has no cluster.local"},
		"no search for a full name":   {none("10.96.0.10", ""), *testCluster(), "evenkeel-xds.evenkeel-system.svc.cluster.local.:15950", ""},
		"another domain":              {none("10.96.0.10", "cluster.local"), Cluster{Domain: "k8s.example"}, ours, "spec.dnsConfig.searches has no k8s.example"},
		"the nameservers are unknown": {none("8.8.8.8", "cluster.local"), Cluster{}, ours, ""},
	} {
		w := dnsWarning(&tc.spec, &tc.cluster, tc.xds)
		switch {
		case (w != nil) != (tc.want != ""):
			t.Errorf("%s: warning %v, want %q", name, w, tc.want)
		case w != nil && (w.Reason != ReasonNodeDNS || !strings.Contains(w.Message, tc.want)):
			t.Errorf("%s: %s %q, want %q", name, w.Reason, w.Message, tc.want)
		}
	}
}
