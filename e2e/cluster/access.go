// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"evenkeel.dev/e2e/cluster/internal/netns"
)

// Kubeconfig is a file by which any Kubernetes client on this machine reaches
// the cluster as its administrator.
func (c *Cluster) Kubeconfig() string {
	return filepath.Join(c.cfg.runDir(), "pki", "host.kubeconfig")
}

// Program returns the file of "kubectl", "helm" or "ctr".
func (c *Cluster) Program(name string) string { return c.programs[name] }

// Kubectl runs kubectl and returns what it printed on standard output. Its error
// has what it printed on standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with a standard input: "apply -f -".
func (c *Cluster) KubectlInput(ctx context.Context, stdin string, args ...string) (string, error) {
	return c.runClient(ctx, stdin, "kubectl", args)
}

// Helm runs the helm CLI.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	return c.runClient(ctx, "", "helm", args)
}

func (c *Cluster) runClient(ctx context.Context, stdin, name string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, c.programs[name], args...)
	cmd.Env = c.ClientEnv()
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), errors.Join(fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String())), ctx.Err())
	}
	return stdout.String(), nil
}

// ClientEnv is the environment for kubectl and helm: this one, pointed at the
// cluster. It keeps their caches with the cluster.
func (c *Cluster) ClientEnv() []string {
	home := filepath.Join(c.cfg.runDir(), "home")
	return append(os.Environ(),
		"KUBECONFIG="+c.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(home, "kube"),
		"HELM_CACHE_HOME="+filepath.Join(home, "helm/cache"),
		"HELM_CONFIG_HOME="+filepath.Join(home, "helm/config"),
		"HELM_DATA_HOME="+filepath.Join(home, "helm/data"),
	)
}

// StartIn starts cmd in the network namespace of a node: there pods and Services
// are reachable. Files, users and processes are the machine's. cmd must not use
// Pdeathsig.
func (c *Cluster) StartIn(nodeName string, cmd *exec.Cmd) error {
	p, err := c.nodeProcess(nodeName)
	if err != nil {
		return err
	}
	return netns.Start(p.PID, cmd)
}

// DialContext connects from the network namespace of the control-plane node,
// where pods and Services are reachable. addr may have an address or a full DNS
// name of the cluster ("pricing.shop.svc.cluster.local:50051").
// It fits net/http, grpc.WithContextDialer (after wrapping) and client-go.
func (c *Cluster) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return c.DialFrom(ctx, ControlPlane, network, addr)
}

// DialFrom is DialContext from another node.
func (c *Cluster) DialFrom(ctx context.Context, nodeName, network, addr string) (net.Conn, error) {
	p, err := c.nodeProcess(nodeName)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("cluster: dial %s: %w", addr, err)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		ips, err := c.lookup(ctx, p, host)
		if err != nil {
			return nil, err
		}
		host = ips[0].String()
	}
	return netns.Dial(ctx, p.PID, network, net.JoinHostPort(host, port))
}

// LookupHost asks the cluster's DNS for a full name, from the control-plane
// node.
func (c *Cluster) LookupHost(ctx context.Context, name string) ([]netip.Addr, error) {
	p, err := c.nodeProcess(ControlPlane)
	if err != nil {
		return nil, err
	}
	return c.lookup(ctx, p, name)
}

func (c *Cluster) lookup(ctx context.Context, from process, name string) ([]netip.Addr, error) {
	r := net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, proto, _ string) (net.Conn, error) {
			return netns.Dial(ctx, from.PID, proto, netip.AddrPortFrom(network.DNS, 53).String())
		},
	}
	// The dot keeps the machine's search domains out.
	ips, err := r.LookupNetIP(ctx, "ip4", strings.TrimSuffix(name, ".")+".")
	if err != nil {
		return nil, fmt.Errorf("cluster: look up %s: %w", name, err)
	}
	return ips, nil
}

// Listen listens in the network namespace of a node: pods reach it at the
// node's address (NodeIP).
func (c *Cluster) Listen(ctx context.Context, nodeName, network, addr string) (net.Listener, error) {
	p, err := c.nodeProcess(nodeName)
	if err != nil {
		return nil, err
	}
	return netns.Listen(ctx, p.PID, network, addr)
}

// nodeProcess returns PID 1 of a running node.
func (c *Cluster) nodeProcess(name string) (process, error) {
	c.mu.Lock()
	p, ok := c.state.Running[name]
	c.mu.Unlock()
	if !ok || !p.alive() {
		return process{}, fmt.Errorf("cluster: node %s is not running", name)
	}
	return p, nil
}
