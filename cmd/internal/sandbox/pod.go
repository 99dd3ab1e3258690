// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/xds"
)

// Redirect says how the connections of the programs in a Pod reach its sidecar.
type Redirect uint8

const (
	// RedirectEBPF: by the eBPF programs, as in a cluster. Needs root.
	RedirectEBPF Redirect = iota
	// RedirectNone: the programs dial the sidecar's listener themselves, and each RPC is routed by its :authority.
	RedirectNone
)

// String returns the flag's value.
func (r Redirect) String() string {
	if r == RedirectNone {
		return "none"
	}
	return "ebpf"
}

// ListenerEnv is the environment variable that tells programs the address of the sidecar's listener with RedirectNone.
const ListenerEnv = "EVENKEEL_LISTENER"

// PodConfig configures a Pod.
type PodConfig struct {
	// Namespace and Name are what the control plane is told; bare Service names are those of the namespace. Required.
	Namespace, Name string
	// ControlPlane is the scope's control plane. Required.
	ControlPlane *ControlPlane
	// Redirect says how connections reach the sidecar. Zero: by eBPF.
	Redirect Redirect
	// OutboundPorts are the destination ports that are redirected. Required with RedirectEBPF.
	OutboundPorts []uint16
	// Hosts is bound over /etc/hosts for the programs in the pod. "": they see the machine's own.
	Hosts string
	// LogLevel is the sidecar's: debug, info, warn or error. Zero: info.
	LogLevel string
	// UID is the pod's, as the manifests have it. "": one of its own.
	UID string
	// Holds are those of a pod that serves; the caller plays the kubelet. Nil: nothing is held.
	Holds *Holds
}

// Holds configures what the sidecar of a pod that serves holds back.
type Holds struct {
	// Secret is what the preStop hook must show. Required.
	Secret string
	// DrainMin is the least that a drain takes: for clients that have no sidecar. Zero: none.
	DrainMin time.Duration
}

// Pod is what a pod is in a cluster, as far as Evenkeel is concerned: a cgroup with the redirect on it, and in it a sidecar and the
// application, each in a cgroup of its own. The network namespace is this process's.
type Pod struct {
	scope   *Scope
	cfg     PodConfig
	cgroup  string // the pod's own, with the redirect on it
	app     string // below it, the application's
	ports   podPorts
	sidecar *component
}

type podPorts struct{ outbound, pod, debug uint16 }

// errPortTaken: something else listens on a port that was free when it was picked.
var errPortTaken = errors.New("the sidecar's port was taken meanwhile")

// StartPod makes the pod's cgroups, attaches the redirect, starts the sidecar, and returns when the sidecar can serve.
func (s *Scope) StartPod(ctx context.Context, cfg PodConfig) (*Pod, error) {
	for attempt := 1; ; attempt++ {
		p, err := s.startPod(ctx, cfg, attempt)
		if err == nil || !errors.Is(err, errPortTaken) || attempt == 5 {
			return p, err
		}
		s.logger.Info("pick other ports", "reason", err)
	}
}

func (s *Scope) startPod(ctx context.Context, cfg PodConfig, attempt int) (*Pod, error) {
	free, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	p := &Pod{scope: s, cfg: cfg, ports: podPorts{outbound: free[0], pod: free[1], debug: free[2]}}
	// A new name for each attempt: the redirect of a failed one has another listener port.
	name := fmt.Sprintf("pod-%s-%d", cfg.Name, attempt)
	if p.cgroup, err = s.subgroup(name); err != nil {
		return nil, err
	}
	if p.app, err = s.subgroup(filepath.Join(name, "app")); err != nil {
		return nil, err
	}
	sidecarGroup, err := s.subgroup(filepath.Join(name, "sidecar"))
	if err != nil {
		return nil, err
	}
	// The redirect comes first: its post_bind program learns the sidecar's cgroup, whose own connections it leaves alone,
	// when the sidecar binds its listener.
	if cfg.Redirect == RedirectEBPF {
		if err := attachRedirect(ctx, p.cgroup, p.ports.outbound, cfg.OutboundPorts, s.logger); err != nil {
			return nil, err
		}
	}
	if p.sidecar, err = s.startComponent("sidecar", sidecarGroup, p.env(), p.sidecarArgs()...); err != nil {
		return nil, err
	}
	if err := s.await(ctx, p.sidecar, p.ready); err != nil {
		return nil, p.explain(ctx, err)
	}
	return p, nil
}

func (p *Pod) sidecarArgs() []string {
	local := func(port uint16) string { return "127.0.0.1:" + strconv.Itoa(int(port)) }
	args := []string{
		SidecarCommand, "run",
		"--listen-port=" + strconv.Itoa(int(p.ports.outbound)),
		"--pod-listen=" + local(p.ports.pod),
		"--debug-listen=" + local(p.ports.debug),
		"--xds=" + p.cfg.ControlPlane.Target,
		"--namespace=" + p.cfg.Namespace,
		"--pod=" + p.cfg.Name,
		"--workload=" + p.cfg.Name,
		"--outbound-ports=" + joinPorts(p.cfg.OutboundPorts),
		"--log-format=text",
		"--log-level=" + logLevel(p.cfg.LogLevel),
		// Pods without a UID of their own must not be taken for one another.
		"--pod-uid=" + cmp.Or(p.cfg.UID, p.cfg.Namespace+"/"+p.cfg.Name),
	}
	if h := p.cfg.Holds; h != nil {
		args = append(args, "--drain-min="+h.DrainMin.String())
	}
	return args
}

// env is the sidecar's, besides what it inherits.
func (p *Pod) env() []string {
	if h := p.cfg.Holds; h != nil {
		return []string{xds.EnvHoldSecret + "=" + h.Secret}
	}
	return nil
}

// ready asks as the postStart hook does: the answer comes when the sidecar listens and the control plane has answered it.
func (p *Pod) ready(ctx context.Context) error {
	body, err := p.debug(ctx, "/wait")
	if err != nil {
		return err
	}
	return body.Close()
}

// explain turns the failure of a start into errPortTaken when that is what it was.
func (p *Pod) explain(ctx context.Context, err error) error {
	if p.sidecar.ended() == nil {
		return err
	}
	for _, port := range []uint16{p.ports.outbound, p.ports.pod, p.ports.debug} {
		if portFree(ctx, port) != nil {
			return fmt.Errorf("%w (%w)", errPortTaken, err)
		}
	}
	return err
}

// Listener is the address of the sidecar's outbound listener.
func (p *Pod) Listener() string { return "127.0.0.1:" + strconv.Itoa(int(p.ports.outbound)) }

// Start starts c in the pod.
func (p *Pod) Start(c Command) (*exec.Cmd, error) {
	if p.cfg.Redirect == RedirectEBPF {
		return p.scope.startCommand(c, p.app, enterConfig{Hosts: p.cfg.Hosts, Prove: true})
	}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Env = append(slices.Clip(c.Env), ListenerEnv+"="+p.Listener())
	return p.scope.startCommand(c, p.app, enterConfig{})
}

func joinPorts(ports []uint16) string {
	text := make([]string, len(ports))
	for i, port := range ports {
		text[i] = strconv.Itoa(int(port))
	}
	return strings.Join(text, ",")
}
