// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
	"evenkeel.dev/e2e/cluster/internal/node"
)

// Names of a node's daemons.
const (
	Etcd              = node.Etcd
	APIServer         = node.APIServer
	ControllerManager = node.ControllerManager
	Scheduler         = node.Scheduler
	Containerd        = node.Containerd
	Kubelet           = node.Kubelet
	KubeProxy         = node.KubeProxy
)

// Nodes returns the names of all nodes, running or not.
func (c *Cluster) Nodes() []string {
	var names []string
	for i := 1; i <= c.cfg.Nodes; i++ {
		names = append(names, nodeName(i))
	}
	return names
}

// NodeIP returns a node's address in the node network.
func (c *Cluster) NodeIP(name string) netip.Addr {
	if i := slices.Index(c.Nodes(), name); i >= 0 {
		return nodeIP(i + 1)
	}
	return netip.Addr{}
}

// NodePID returns, in the machine's PID namespace, the process that is PID 1 of
// the node: /proc/PID/root is the node's file system, and nsenter enters it.
func (c *Cluster) NodePID(name string) (int, error) {
	p, err := c.nodeProcess(name)
	return p.PID, err
}

// NodeDir is where the node's state lies: log/ has a file per daemon, run/ is
// the node's /run.
func (c *Cluster) NodeDir(name string) string { return filepath.Join(c.cfg.runDir(), name) }

// PowerOff pulls the plug of a node: its network goes, so that nothing of it says
// goodbye, and all its processes end at once. Its disk stays.
func (c *Cluster) PowerOff(ctx context.Context, name string) error {
	p, err := c.nodeProcess(name)
	if err != nil {
		return err
	}
	// The cable goes, not only its carrier: closed sockets whose goodbye nobody takes
	// keep the dead network namespace for minutes, and it its end of the cable.
	c.mu.Lock()
	sw := c.state.Switch
	c.mu.Unlock()
	if err := runIn(ctx, sw.PID, "ip", "link", "del", portOf(name)); err != nil {
		return fmt.Errorf("cluster: power off %s: %w", name, err)
	}
	if err := p.kill(killTimeout); err != nil {
		return fmt.Errorf("cluster: power off %s: %w", name, err)
	}
	hs, err := cgroup.Hierarchies()
	if err == nil {
		err = cgroup.Remove(hs, c.cfg.id()+"/"+name, killTimeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.state.Running, name)
	if f, ok := c.lifelines[name]; ok {
		f.Close() // it has nothing to flush
		delete(c.lifelines, name)
	}
	if err = errors.Join(err, c.state.write(c.cfg)); err != nil {
		return fmt.Errorf("cluster: power off %s: %w", name, err)
	}
	return nil
}

// PowerOn boots a node that PowerOff has ended. It does not wait until the node
// is ready. A node that was booted through Open ends with this process, unless
// Detach is called.
func (c *Cluster) PowerOn(ctx context.Context, name string) error {
	if !slices.Contains(c.Nodes(), name) {
		return fmt.Errorf("cluster: power on: no node %q: there are %v", name, c.Nodes())
	}
	if _, err := c.nodeProcess(name); err == nil {
		return fmt.Errorf("cluster: power on: %s is running", name)
	}
	if err := c.boot(ctx, name); err != nil {
		return fmt.Errorf("cluster: power on: %w", err)
	}
	return nil
}

// Unplug cuts the node's network cable: everything on the node runs on, but it
// reaches no other node, and none reaches it.
func (c *Cluster) Unplug(ctx context.Context, name string) error { return c.cable(ctx, name, "down") }

// Plug connects the cable again.
func (c *Cluster) Plug(ctx context.Context, name string) error { return c.cable(ctx, name, "up") }

func (c *Cluster) cable(ctx context.Context, name, state string) error {
	if _, err := c.nodeProcess(name); err != nil {
		return err
	}
	c.mu.Lock()
	sw := c.state.Switch
	c.mu.Unlock()
	if err := runIn(ctx, sw.PID, "ip", "link", "set", portOf(name), state); err != nil {
		return fmt.Errorf("cluster: cable of %s %s: %w", name, state, err)
	}
	return nil
}

// SignalDaemon sends a signal to a daemon of a node. One that ends is started
// again after half a second.
func (c *Cluster) SignalDaemon(nodeName, daemon string, signal unix.Signal) error {
	return c.order(nodeName, node.Request{Daemon: daemon, Verb: "signal", Signal: int(signal)})
}

// StopDaemon ends a daemon and keeps it down until StartDaemon.
func (c *Cluster) StopDaemon(nodeName, daemon string) error {
	return c.order(nodeName, node.Request{Daemon: daemon, Verb: "stop"})
}

// StartDaemon starts a daemon that StopDaemon has ended.
func (c *Cluster) StartDaemon(nodeName, daemon string) error {
	return c.order(nodeName, node.Request{Daemon: daemon, Verb: "start"})
}

func (c *Cluster) order(name string, req node.Request) error {
	p, err := c.nodeProcess(name)
	if err != nil {
		return err
	}
	if _, err := node.Order(p.root()+node.ControlSocket, req); err != nil {
		return fmt.Errorf("cluster: %s: %w", name, err)
	}
	return nil
}
