// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
)

// SwitchBridge is the interface that all nodes are plugged into.
const SwitchBridge = "sw0"

// ListenerFD is the descriptor, in the switch, of a listener that the harness
// made in the machine's own network namespace. A socket stays in the namespace
// in which it was made; so a process in the node network can serve the machine's
// loopback, and kubectl works there.
const ListenerFD = 4

// RunSwitch is the process that holds the node network. It must have been
// started in a network namespace of its own, in the cgroup of the cluster. It ends
// when the harness is gone.
func RunSwitch(ctx context.Context, cluster string, address netip.Prefix, apiServer netip.AddrPort) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ps := newProcesses()
	gone := make(chan struct{})
	watchLifeline(func() { close(gone) })
	commands := fmt.Sprintf("link set lo up\nlink add %[1]s type bridge\naddr add %[2]s dev %[1]s\nlink set %[1]s up\n", SwitchBridge, address)
	if err := ipBatch(ps, commands); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	f := os.NewFile(ListenerFD, "listener")
	ln, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	defer ln.Close()
	go forward(ctx, ln, apiServer.String(), log)
	<-gone
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	return leaveCgroup(hs, cluster)
}

// forward relays connections to target.
func forward(ctx context.Context, ln net.Listener, target string, log *slog.Logger) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			log.Error("forwarding to the API server has ended", "error", err)
			return
		}
		go func() {
			defer conn.Close()
			d := net.Dialer{Timeout: 10 * time.Second}
			up, err := d.DialContext(ctx, "tcp", target)
			if err != nil {
				log.Warn("API server cannot be reached", "error", err)
				return
			}
			defer up.Close()
			relay(conn, up)
		}()
	}
}

// relay copies both ways until both have ended; each end is passed on by itself.
func relay(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			// Either side may break off at any time; the other then sees it.
			_, _ = io.Copy(pair[0], pair[1])
			if t, ok := pair[0].(*net.TCPConn); ok {
				_ = t.CloseWrite()
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}
