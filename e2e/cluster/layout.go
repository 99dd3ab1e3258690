// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"evenkeel.dev/e2e/cluster/internal/build"
	"evenkeel.dev/e2e/cluster/internal/node"
	"evenkeel.dev/e2e/cluster/internal/pki"
)

// The addresses are the same in every cluster: each has network namespaces of
// its own.
var (
	switchAddress = netip.MustParsePrefix("10.240.0.1/24")
	network       = node.Network{
		Services:  netip.MustParsePrefix("10.96.0.0/16"),
		Pods:      netip.MustParsePrefix("10.244.0.0/16"),
		DNS:       netip.MustParseAddr("10.96.0.10"),
		APIServer: netip.AddrPortFrom(nodeIP(1), 6443),
	}
	// apiService is the address of Service kubernetes: the first of the range.
	apiService = netip.MustParseAddr("10.96.0.1")
)

// ControlPlane is the node on which etcd, the API server and CoreDNS run.
const ControlPlane = "node1"

func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

func nodeIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 240, 0, byte(10 + i)}) }

func podCIDR(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
}

// nodeSpec describes node i of n.
func nodeSpec(cfg Config, programs *build.Programs, i int) *node.Spec {
	s := &node.Spec{
		Cluster:      cfg.id(),
		Name:         nodeName(i),
		IP:           nodeIP(i),
		PodCIDR:      podCIDR(i),
		ControlPlane: i == 1,
		Network:      network,
		ProxyMode:    cfg.ProxyMode,
		Dir:          filepath.Join(cfg.runDir(), nodeName(i)),
		PKI:          filepath.Join(cfg.runDir(), "pki"),
		Images:       programs.Images(),
		PauseImage:   build.PauseImage,
		Programs:     map[string]string{},
	}
	for _, name := range []string{
		node.Etcd, node.APIServer, node.ControllerManager, node.Scheduler, node.Containerd, node.Kubelet, node.KubeProxy,
		"ctr", "containerd-shim-runc-v2", "runc", "cni",
	} {
		s.Programs[name] = programs.Path(name)
	}
	for j := 1; j <= cfg.Nodes; j++ {
		if j != i {
			s.Peers = append(s.Peers, node.Peer{IP: nodeIP(j), PodCIDR: podCIDR(j)})
		}
	}
	return s
}

func pkiConfig(cfg Config, hostPort uint16) pki.Config {
	p := pki.Config{
		Dir:        filepath.Join(cfg.runDir(), "pki"),
		Server:     "https://" + network.APIServer.String(),
		HostServer: fmt.Sprintf("https://127.0.0.1:%d", hostPort),
		ServerNames: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		},
		ServerIPs: []netip.Addr{apiService, nodeIP(1)},
		Nodes:     map[string]netip.Addr{},
	}
	for i := 1; i <= cfg.Nodes; i++ {
		p.Nodes[nodeName(i)] = nodeIP(i)
	}
	return p
}
