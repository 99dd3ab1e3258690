// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
)

// Pod is what tests most often want to know of one.
type Pod struct {
	Namespace, Name, UID string
	Node                 string
	IP                   netip.Addr
	Phase                string
	// Ready is the pod's condition; Deleting says that it is being deleted.
	Ready, Deleting bool
	// Containers has init containers first, in the pod's order.
	Containers []Container
}

// Container is one container of a Pod.
type Container struct {
	Name string
	// ID is containerd's, empty before it was created.
	ID             string
	Init           bool
	Ready, Running bool
	Restarts       int
	// Reason says why it waits or has ended; ExitCode how it has ended, now or
	// the last time.
	Reason   string
	ExitCode int
}

// Container returns the container of that name.
func (p *Pod) Container(name string) (*Container, error) {
	var names []string
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i], nil
		}
		names = append(names, p.Containers[i].Name)
	}
	return nil, fmt.Errorf("pod %s/%s has no container %q, but %s", p.Namespace, p.Name, name, strings.Join(names, ", "))
}

// apiPod is the part of the API's Pod that we read.
type apiPod struct {
	Metadata struct {
		Namespace, Name, UID string
		DeletionTimestamp    *time.Time
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase, PodIP          string
		Conditions            []condition
		InitContainerStatuses []apiContainer
		ContainerStatuses     []apiContainer
	}
}

type apiContainer struct {
	Name, ContainerID string
	Ready             bool
	RestartCount      int
	State, LastState  struct {
		Running    *struct{}
		Waiting    *struct{ Reason string }
		Terminated *struct {
			Reason   string
			ExitCode int
		}
	}
}

func (a *apiPod) pod() Pod {
	p := Pod{
		Namespace: a.Metadata.Namespace, Name: a.Metadata.Name, UID: a.Metadata.UID,
		Node: a.Spec.NodeName, Phase: a.Status.Phase,
		Ready:    conditionTrue(a.Status.Conditions, "Ready"),
		Deleting: a.Metadata.DeletionTimestamp != nil,
	}
	p.IP, _ = netip.ParseAddr(a.Status.PodIP) // empty until it has one
	for _, c := range a.Status.InitContainerStatuses {
		p.Containers = append(p.Containers, c.container(true))
	}
	for _, c := range a.Status.ContainerStatuses {
		p.Containers = append(p.Containers, c.container(false))
	}
	return p
}

func (a *apiContainer) container(isInit bool) Container {
	_, id, _ := strings.Cut(a.ContainerID, "://")
	c := Container{Name: a.Name, ID: id, Init: isInit, Ready: a.Ready, Running: a.State.Running != nil, Restarts: a.RestartCount}
	if a.State.Waiting != nil {
		c.Reason = a.State.Waiting.Reason
	}
	if t := a.LastState.Terminated; t != nil {
		c.ExitCode = t.ExitCode
	}
	if t := a.State.Terminated; t != nil {
		c.Reason, c.ExitCode = t.Reason, t.ExitCode
	}
	return c
}

// Pod reads one pod.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	var a apiPod
	if err := c.api.get(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+name, &a); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	p := a.pod()
	return &p, nil
}

// Pods lists the pods that a label selector ("app=echo"; empty: all) selects.
func (c *Cluster) Pods(ctx context.Context, namespace, selector string) ([]Pod, error) {
	var list struct{ Items []apiPod }
	path := "/api/v1/namespaces/" + namespace + "/pods?labelSelector=" + url.QueryEscape(selector)
	if err := c.api.get(ctx, path, &list); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	pods := make([]Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, list.Items[i].pod())
	}
	return pods, nil
}

// WaitPods waits until the selector's pods are n, all Ready and none being
// deleted, and returns them.
func (c *Cluster) WaitPods(ctx context.Context, namespace, selector string, n int, timeout time.Duration) ([]Pod, error) {
	var pods []Pod
	err := poll(ctx, timeout, fmt.Sprintf("%d pods %s in %s ready", n, selector, namespace), func(ctx context.Context) error {
		var err error
		if pods, err = c.Pods(ctx, namespace, selector); err != nil {
			return err
		}
		var not []string
		for _, p := range pods {
			if !p.Ready || p.Deleting {
				not = append(not, p.Name+" "+p.why())
			}
		}
		if len(pods) != n || len(not) > 0 {
			return fmt.Errorf("%d exist, not ready or being deleted: %s", len(pods), strings.Join(not, ", "))
		}
		return nil
	})
	return pods, err
}

// why says what a pod waits for.
func (p *Pod) why() string {
	parts := []string{p.Phase}
	for _, c := range p.Containers {
		if !c.Ready && c.Reason != "" {
			parts = append(parts, c.Name+": "+c.Reason)
		}
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// Process is one process of a container.
type Process struct {
	// PID is in the machine's PID namespace: signals can be sent to it.
	PID int
	// Command is its command line.
	Command []string
}

// Processes lists the processes of a container, the first one first.
func (c *Cluster) Processes(ctx context.Context, namespace, pod, container string) ([]Process, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return nil, err
	}
	ct, err := p.Container(container)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	dir, err := c.cgroupOf(p.Node, ct.ID)
	if err != nil {
		return nil, fmt.Errorf("cluster: container %s of pod %s/%s: %w", container, namespace, pod, err)
	}
	pids, err := cgroup.Procs(dir)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	var ps []Process
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			continue // has ended meanwhile
		}
		ps = append(ps, Process{PID: pid, Command: strings.Split(string(bytes.TrimRight(b, "\x00")), "\x00")})
	}
	return ps, nil
}

// PodCgroup returns a pod's cgroup2 directory on the machine.
func (c *Cluster) PodCgroup(ctx context.Context, namespace, pod string) (string, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return "", err
	}
	return c.cgroupOf(p.Node, "pod"+p.UID)
}

// cgroupOf finds the cgroup2 directory of that name below a node's.
func (c *Cluster) cgroupOf(nodeName, name string) (string, error) {
	if name == "" {
		return "", errors.New("it does not run yet")
	}
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return "", err
	}
	unified, err := cgroup.Unified(hs)
	if err != nil {
		return "", err
	}
	var found string
	err = filepath.WalkDir(filepath.Join(unified.Mount, c.cfg.id(), nodeName), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			found = path
			return filepath.SkipAll
		}
		return nil // what vanishes meanwhile is not it
	})
	if err == nil && found == "" {
		err = fmt.Errorf("it has no cgroup %q on node %s", name, nodeName)
	}
	return found, err
}

// LoadImage imports OCI archives into every running node. Pods use them with
// imagePullPolicy Never or IfNotPresent.
func (c *Cluster) LoadImage(ctx context.Context, archives ...string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range c.Nodes() {
		p, err := c.nodeProcess(name)
		if err != nil {
			continue // is off; PowerOn keeps what it has on its disk
		}
		g.Go(func() error {
			for _, archive := range archives {
				cmd := exec.CommandContext(ctx, c.programs["ctr"], "-a", p.root()+"/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", archive)
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("cluster: load %s into %s: %w: %s", archive, name, err, bytes.TrimSpace(out))
				}
			}
			return nil
		})
	}
	return g.Wait()
}
