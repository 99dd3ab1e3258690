// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster/internal/netns"
)

// KillContainer sends SIGKILL to every process of a container at once, as the
// kernel's OOM killer does. The kubelet then treats it by the pod's restart
// policy.
func (c *Cluster) KillContainer(ctx context.Context, namespace, pod, container string) error {
	return c.SignalContainer(ctx, namespace, pod, container, unix.SIGKILL)
}

// SignalContainer sends a signal to every process of a container: SIGSTOP freezes
// it, its connections stay open and the kernel answers for it; SIGCONT ends that.
func (c *Cluster) SignalContainer(ctx context.Context, namespace, pod, container string, signal unix.Signal) error {
	ps, err := c.Processes(ctx, namespace, pod, container)
	if err != nil {
		return err
	}
	if len(ps) == 0 {
		return fmt.Errorf("cluster: container %s of pod %s/%s has no process", container, namespace, pod)
	}
	for _, p := range ps {
		// The first one may take the others along: they are gone by now.
		if err := unix.Kill(p.PID, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cluster: %s to process %d of container %s: %w", unix.SignalName(signal), p.PID, container, err)
		}
	}
	return nil
}

// ErrDisruption says that a PodDisruptionBudget does not allow an eviction now.
var ErrDisruption = errors.New("the disruption budget does not allow it")

// Evict asks for the eviction of a pod, as `kubectl drain` does. The error is
// ErrDisruption where a PodDisruptionBudget forbids it at the moment.
func (c *Cluster) Evict(ctx context.Context, namespace, pod string) error {
	body := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, namespace)
	code, answer, err := c.api.do(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/eviction", body)
	switch {
	case err != nil:
		return fmt.Errorf("cluster: evict pod %s/%s: %w", namespace, pod, err)
	case code == http.StatusTooManyRequests:
		return fmt.Errorf("cluster: evict pod %s/%s: %w", namespace, pod, ErrDisruption)
	case code != http.StatusCreated && code != http.StatusOK:
		return fmt.Errorf("cluster: evict pod %s/%s: %d: %s", namespace, pod, code, answer)
	}
	return nil
}

// cutTable is the nftables table of CutOff in a pod's network namespace.
const cutTable = "inet evenkeel_e2e"

// CutOff drops what a pod sends and each of the nftables matches ("tcp dport
// 6001", "ip daddr 10.244.0.0/16") holds for, as a NetworkPolicy for egress would:
// the cluster's network plugin has none. Connections stay open and are silent.
// Loopback is never cut. A second call replaces the first; without matches nothing
// is cut any more.
func (c *Cluster) CutOff(ctx context.Context, namespace, pod string, matches ...string) error {
	ps, err := c.anyProcess(ctx, namespace, pod)
	if err != nil {
		return err
	}
	var rules strings.Builder
	fmt.Fprintf(&rules, "table %s {}\ndelete table %s\n", cutTable, cutTable)
	if len(matches) > 0 {
		fmt.Fprintf(&rules, "table %s { chain out { type filter hook output priority 0; oif lo accept\n", cutTable)
		for _, m := range matches {
			fmt.Fprintf(&rules, "%s drop\n", m)
		}
		rules.WriteString("}\n}\n")
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		nft = "/usr/sbin/nft" // not in the PATH of an ordinary user's shell
	}
	cmd := exec.CommandContext(ctx, nft, "-f", "-")
	cmd.Stdin = strings.NewReader(rules.String())
	out := &tail{limit: 4096}
	cmd.Stdout, cmd.Stderr = out, out
	if err := netns.Start(ps, cmd); err != nil {
		return fmt.Errorf("cluster: cut pod %s/%s off: %w", namespace, pod, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("cluster: cut pod %s/%s off: nft: %w: %s", namespace, pod, err, out)
	}
	return nil
}

// anyProcess finds one process in a pod's network namespace.
func (c *Cluster) anyProcess(ctx context.Context, namespace, pod string) (int, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return 0, err
	}
	for _, ct := range p.Containers {
		if !ct.Running {
			continue
		}
		ps, err := c.Processes(ctx, namespace, pod, ct.Name)
		if err == nil && len(ps) > 0 {
			return ps[0].PID, nil
		}
	}
	return 0, fmt.Errorf("cluster: pod %s/%s has no process", namespace, pod)
}
