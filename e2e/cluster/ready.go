// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"
)

//go:embed coredns.yaml
var dnsManifest string

const (
	// startTimeout bounds each wait of Start. Each takes a few seconds on an
	// idle machine.
	startTimeout = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// poll calls f until it returns nil; its last error explains the time-out.
func poll(ctx context.Context, timeout time.Duration, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		// The error of a call that our own deadline cut short says nothing.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !pause(ctx, pollInterval) {
			return fmt.Errorf("%s: not after %s: %w", what, timeout, last)
		}
	}
}

// pause waits; it says false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// waitForAPI also notices when the control plane's node has ended.
func (c *Cluster) waitForAPI(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := poll(ctx, startTimeout, "API server ready", func(ctx context.Context) error {
		c.mu.Lock()
		p := c.state.Running[ControlPlane]
		c.mu.Unlock()
		if !p.alive() {
			cancel(fmt.Errorf("%s has ended: see %s", ControlPlane, c.logOf(ControlPlane)))
		}
		return c.api.get(ctx, "/readyz", nil)
	})
	return errors.Join(context.Cause(ctx), err)
}

// deployDNS installs CoreDNS. A first try may come before the API server has
// made the namespace.
func (c *Cluster) deployDNS(ctx context.Context) error {
	return poll(ctx, startTimeout, "deploy DNS", func(ctx context.Context) error {
		_, err := c.KubectlInput(ctx, dnsManifest, "apply", "-f", "-")
		return err
	})
}

func (c *Cluster) waitForDNS(ctx context.Context) error {
	return c.WaitDeployment(ctx, "kube-system", "coredns", startTimeout)
}

// WaitDeployment waits until all replicas of the Deployment's newest version,
// and no others, are available.
func (c *Cluster) WaitDeployment(ctx context.Context, namespace, name string, timeout time.Duration) error {
	var d struct {
		Metadata struct{ Generation int64 }
		Spec     struct{ Replicas int }
		Status   struct {
			ObservedGeneration                                                int64
			Replicas, UpdatedReplicas, AvailableReplicas, TerminatingReplicas int
		}
	}
	return poll(ctx, timeout, fmt.Sprintf("Deployment %s/%s available", namespace, name), func(ctx context.Context) error {
		d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.Replicas = 0, 0, 0 // absent when zero
		if err := c.api.get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/deployments/"+name, &d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration < d.Metadata.Generation {
			return errors.New("the controller has not seen it yet")
		}
		if n := d.Spec.Replicas; d.Status.UpdatedReplicas != n || d.Status.AvailableReplicas != n || d.Status.Replicas != n {
			return fmt.Errorf("of %d replicas: %d exist, %d are of the newest version, %d are available",
				n, d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas)
		}
		return nil
	})
}

// NodeCondition is what WaitNode waits for.
type NodeCondition string

// Conditions of a node.
const (
	NodeReady    NodeCondition = "ready"
	NodeNotReady NodeCondition = "not ready"
)

// WaitNode waits until the API server sees the node so. It sees late: a node that
// is gone is Ready for about 9 s more, so after PowerOff or Unplug wait for
// NodeNotReady before waiting for NodeReady.
func (c *Cluster) WaitNode(ctx context.Context, name string, want NodeCondition) error {
	return poll(ctx, startTimeout, fmt.Sprintf("node %s %s", name, want), func(ctx context.Context) error {
		var n struct {
			Status struct{ Conditions []condition }
		}
		if err := c.api.get(ctx, "/api/v1/nodes/"+name, &n); err != nil {
			return err
		}
		if conditionTrue(n.Status.Conditions, "Ready") != (want == NodeReady) {
			var why []string
			for _, k := range n.Status.Conditions {
				if k.Type == "Ready" {
					why = append(why, k.Reason, k.Message)
				}
			}
			return fmt.Errorf("condition Ready: %s", strings.Join(why, ": "))
		}
		return nil
	})
}
