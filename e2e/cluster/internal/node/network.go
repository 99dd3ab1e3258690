// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Uplink is the node's interface on the switch. The harness plugs it in.
const Uplink = "eth0"

// plugTimeout bounds the wait for the harness to plug the cable.
const plugTimeout = 15 * time.Second

// setUpNetwork configures the network namespace.
func setUpNetwork(ps *processes, s *Spec) error {
	for file, value := range map[string]string{
		"/proc/sys/net/ipv4/ip_forward": "1",
		// Replies of a pod to another on the same node, through a Service,
		// must pass conntrack on the bridge.
		"/proc/sys/net/bridge/bridge-nf-call-iptables": "1",
		// Packets to a Service leave by another interface than replies come by.
		"/proc/sys/net/ipv4/conf/all/rp_filter": "0",
	} {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	if err := waitForUplink(); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "link set lo up\n")
	fmt.Fprintf(&b, "addr add %s/24 dev %s\n", s.IP, Uplink)
	fmt.Fprintf(&b, "link set %s up\n", Uplink)
	// The node's own connects to a Service need some route before OUTPUT's
	// DNAT can happen (API server to a webhook).
	fmt.Fprintf(&b, "route add %s dev %s\n", s.Network.Services, Uplink)
	for _, p := range s.Peers {
		fmt.Fprintf(&b, "route add %s via %s dev %s\n", p.PodCIDR, p.IP, Uplink)
	}
	return ipBatch(ps, b.String())
}

func waitForUplink() error {
	deadline := time.Now().Add(plugTimeout)
	for {
		if _, err := net.InterfaceByName(Uplink); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("nobody plugged " + Uplink + " in")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ipBatch runs iproute2 commands in this network namespace.
func ipBatch(ps *processes, commands string) error {
	ip, err := exec.LookPath("ip")
	if err != nil {
		return err
	}
	_, err = ps.run(commands, ip, "-batch", "-")
	return err
}
