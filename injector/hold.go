// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"evenkeel.dev/xds"
)

// The static helper that runs a container's own preStop command after the hold.
const (
	volumeHold = volumePrefix + "hold"
	mountHold  = "/var/run/evenkeel/hold"
	holdBinary = mountHold + "/hold"
	// linkedHold is mountHold where /var/run is a link, as in most images.
	linkedHold = "/run/evenkeel/hold"
)

const (
	// defaultGrace is what a pod without terminationGracePeriodSeconds has.
	defaultGrace = 30 * time.Second
	// maxGrace is a year: beyond it nothing that we add matters, nor fits every type.
	maxGrace = 365 * 24 * time.Hour
)

// holdGrace is what the helper waits beyond the sidecar's own bound.
const holdGrace = 5 * time.Second

// holds is what the pod's termination becomes.
type holds struct {
	// secret opens the sidecar's hook; empty: nothing is held.
	secret string
	// appGrace is the pod's own grace period.
	appGrace time.Duration
	// hooks are those that the sidecar performs in the containers' stead.
	hooks map[string]xds.Hook
	// installs: a container needs the helper.
	installs bool
}

// addHolds puts the hold in front of the end of each app container: its preStop
// hook becomes ours, and what it had still runs, after it. The time that this may
// take is added to the grace period.
func addHolds(spec *corev1.PodSpec, cfg *Config, secret string) (holds, []Warning) {
	h := holds{appGrace: grace(spec), hooks: map[string]xds.Hook{}}
	if cfg.DrainTimeout.Duration == 0 {
		return h, nil
	}
	if h.appGrace == 0 {
		// "the value zero indicates stop immediately via the kill signal (no
		// opportunity to shut down)": k8s.io/api/core/v1, PodSpec.
		return h, []Warning{warnf(ReasonNoGrace, "", "spec.terminationGracePeriodSeconds is 0: the pod is killed at once, RPCs that run on it fail")}
	}
	h.secret = secret
	var warnings []Warning
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c.Lifecycle == nil {
			c.Lifecycle = &corev1.Lifecycle{}
		}
		if w := h.take(c, spec.Volumes, cfg); w != nil {
			warnings = append(warnings, *w)
		}
	}
	if h.appGrace < maxGrace {
		seconds := int64((h.appGrace + cfg.DrainTimeout.Duration + time.Second - 1) / time.Second)
		spec.TerminationGracePeriodSeconds = &seconds
	}
	return h, warnings
}

// grace is the pod's own grace period, at most maxGrace.
func grace(spec *corev1.PodSpec) time.Duration {
	switch g := spec.TerminationGracePeriodSeconds; {
	case g == nil:
		return defaultGrace
	case *g < 0:
		return time.Second // what Kubernetes takes such values for
	default:
		return time.Duration(min(*g, int64(maxGrace/time.Second))) * time.Second
	}
}

// take makes c's hook ours. With a warning, it was left as it is.
func (h *holds) take(c *corev1.Container, volumes []corev1.Volume, cfg *Config) *Warning {
	old := c.Lifecycle.PreStop
	left := func(format string, args ...any) *Warning {
		w := warnf(ReasonHook, "", "container %s: lifecycle.preStop: %s; it is left as it is, and the container's end is not held back", c.Name, fmt.Sprintf(format, args...))
		return &w
	}
	switch {
	case old == nil:
	case old.Exec != nil:
		if m := inTheWay(c, volumes); m != nil {
			return left("the helper that would run its command cannot be mounted at %s, because volume %s is at %s", mountHold, m.Name, m.MountPath)
		}
		h.installs = true
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volumeHold, MountPath: mountHold, ReadOnly: true})
		c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: append([]string{
			holdBinary,
			"--port=" + strconv.Itoa(xds.PortPod),
			"--secret=" + h.secret,
			"--timeout=" + (cfg.DrainTimeout.Duration + holdGrace).String(),
			"--",
		}, old.Exec.Command...)}}
		return nil
	case old.HTTPGet != nil:
		get, err := sidecarGet(c, old.HTTPGet)
		if err != nil {
			return left("%s", err)
		}
		h.hooks[c.Name] = xds.Hook{HTTPGet: get}
	case old.Sleep != nil:
		if old.Sleep.Seconds > 0 {
			h.hooks[c.Name] = xds.Hook{SleepSeconds: old.Sleep.Seconds}
		}
	case old.TCPSocket != nil:
		// "TCPSocket is NOT supported as a LifecycleHandler and kept for backward
		// compatibility. There is no validation of this field and lifecycle hooks
		// will fail at runtime when it is specified": k8s.io/api/core/v1.
		return left("tcpSocket is none that Kubernetes performs")
	default:
		return left("its kind is not known to this version")
	}
	c.Lifecycle.PreStop = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Path:        xds.PathHold + "?" + xds.QueryContainer + "=" + c.Name, // a DNS label: nothing to escape
		Port:        intstr.FromInt32(xds.PortPod),
		Scheme:      corev1.URISchemeHTTP,
		HTTPHeaders: []corev1.HTTPHeader{{Name: xds.HeaderHold, Value: h.secret}},
	}}
	return nil
}

// inTheWay finds a mount of c's that the helper's could not be made beside: at the
// same place, below it, or above it in a volume in which the runtime could not make
// the directory (then the container would never start) or should not (it would stay
// there). Above it in an emptyDir is fine: images with a read-only root have one at
// /var/run.
func inTheWay(c *corev1.Container, volumes []corev1.Volume) *corev1.VolumeMount {
	scratch := func(m *corev1.VolumeMount) bool {
		return !m.ReadOnly && slices.ContainsFunc(volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.EmptyDir != nil })
	}
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		for _, place := range []string{mountHold, linkedHold} {
			at := path.Clean("/" + m.MountPath)
			if within(at, place) || within(place, at) && !scratch(m) {
				return m
			}
		}
	}
	return nil
}

// within: p is dir or below it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// sidecarGet is get with its port's name resolved, as the kubelet does it: among
// the ports of the container.
func sidecarGet(c *corev1.Container, get *corev1.HTTPGetAction) (*xds.HTTPGet, error) {
	port := get.Port.IntValue()
	if get.Port.Type == intstr.String && port == 0 {
		i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == get.Port.StrVal })
		if i < 0 {
			return nil, fmt.Errorf("httpGet.port %q names no port of the container", get.Port.StrVal)
		}
		port = int(c.Ports[i].ContainerPort)
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("httpGet.port %s is no port", get.Port.String())
	}
	g := &xds.HTTPGet{Scheme: string(get.Scheme), Host: get.Host, Port: port, Path: get.Path}
	for _, h := range get.HTTPHeaders {
		g.Headers = append(g.Headers, xds.HTTPHeader{Name: h.Name, Value: h.Value})
	}
	return g, nil
}

// args and env are what the sidecar is told.
func (h *holds) args(cfg *Config) []string {
	args := []string{
		"--ready-timeout=" + cfg.ReadyTimeout.Duration.String(),
		"--drain-streams=" + cfg.DrainStreams.Duration.String(),
	}
	if h.secret == "" {
		return args
	}
	return append(args,
		"--drain-timeout="+cfg.DrainTimeout.Duration.String(),
		"--drain-min="+cfg.DrainMin,
		"--app-grace="+h.appGrace.String(),
	)
}

func (h *holds) env() []corev1.EnvVar {
	if h.secret == "" {
		return nil
	}
	env := []corev1.EnvVar{fieldEnv(xds.EnvPodIP, "status.podIP"), {Name: xds.EnvHoldSecret, Value: h.secret}}
	if len(h.hooks) > 0 {
		text, err := json.Marshal(h.hooks) // sorted by name
		if err != nil {
			panic(err) // strings and numbers
		}
		// The kubelet expands $(NAME) in values, and makes $ of $$.
		env = append(env, corev1.EnvVar{Name: xds.EnvHooks, Value: strings.ReplaceAll(string(text), "$", "$$")})
	}
	return env
}
