// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package node is what runs inside the cluster's namespaces: PID 1 of a node,
// and the switch that the nodes are plugged into.
//
//	machine ── switch netns: sw0 10.240.0.1 ──┬── node1 netns: eth0 10.240.0.11, cni0 10.244.1.0/24
//	 │   127.0.0.1:PORT → apiserver           └── node2 netns: eth0 10.240.0.12, cni0 10.244.2.0/24
//	 └─ a pipe to each: the lifeline
//
// A node is one process with mount, network, PID, UTS and IPC namespaces of its
// own. It is PID 1 of its PID namespace, so that killing it kills the whole
// node, containers included, and takes the node's interfaces, mounts and rules
// with it. It sets the node up, starts containerd, the kubelet and kube-proxy
// (on the control plane also etcd, the API server, the controller manager and
// the scheduler), restarts what exits, reaps orphans, and takes orders on a
// socket (control.go).
//
// There is no default route anywhere: nothing can leave the namespaces.
package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Spec describes a node to the process that becomes it.
type Spec struct {
	// Cluster is the cluster's id; its cgroups are below this name.
	Cluster string
	// Name is the node's name and hostname.
	Name string
	// IP is its address on the switch.
	IP netip.Addr
	// PodCIDR is where its pods get their addresses from.
	PodCIDR netip.Prefix
	// ControlPlane says that etcd, the API server and the controllers run here.
	ControlPlane bool
	// Peers are the other nodes.
	Peers []Peer
	// Network are the cluster's ranges.
	Network Network
	// ProxyMode is kube-proxy's: "nftables" or "iptables".
	ProxyMode string
	// Dir is the node's state; it outlives a reboot of the node.
	Dir string
	// PKI is the folder of certificates and kubeconfigs.
	PKI string
	// Programs maps names to files.
	Programs map[string]string
	// Images are archives that containerd imports at boot.
	Images []string
	// PauseImage is the name of the sandbox's image among them.
	PauseImage string
}

// Peer is another node.
type Peer struct {
	IP      netip.Addr
	PodCIDR netip.Prefix
}

// Network holds what all nodes agree on.
type Network struct {
	Services netip.Prefix
	Pods     netip.Prefix
	DNS      netip.Addr
	// APIServer is the API server's address in the node network.
	APIServer netip.AddrPort
}

// Cgroup is the node's directory in every hierarchy.
func (s *Spec) Cgroup() string { return s.Cluster + "/" + s.Name }

// SystemCgroup is the cgroup2 directory of the daemons.
func (s *Spec) SystemCgroup() string { return s.Cgroup() + "/system" }

// LogDir has a file per daemon.
func (s *Spec) LogDir() string { return filepath.Join(s.Dir, "log") }

// ControlSocket is the socket of control.go, in the node's file system. It lies
// in /run, because a socket's path may have no more than 108 bytes.
const ControlSocket = "/run/evenkeel-control.sock"

func (s *Spec) path(elem ...string) string {
	return filepath.Join(append([]string{s.Dir}, elem...)...)
}

// Write stores the spec for ReadSpec.
func (s *Spec) Write(file string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// ReadSpec reads what Write stored.
func ReadSpec(file string) (*Spec, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var s Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read node spec %s: %w", file, err)
	}
	return &s, nil
}
