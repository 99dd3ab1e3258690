// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"evenkeel.dev/xds"
)

// volumePrefix is that of every volume we add.
const volumePrefix = "evenkeel-"

// Volumes and where they are mounted.
const (
	volumeToken  = volumePrefix + "token"
	volumeCA     = volumePrefix + "ca"
	volumeState  = volumePrefix + "state"
	volumeCgroup = volumePrefix + "cgroup"

	mountToken  = "/var/run/evenkeel/token"
	mountCA     = "/var/run/evenkeel/ca"
	mountState  = "/var/run/evenkeel/state"
	mountCgroup = "/host/cgroup"
)

// TrustConfigMap is the ConfigMap with the roots, in every namespace that has
// injected pods, and TrustKey its key.
const (
	TrustConfigMap = "evenkeel-ca"
	TrustKey       = "ca.crt"
)

const (
	sidecarBinary = "/sidecar"
	// nonRoot is the conventional uid of images without a user database.
	nonRoot         = 65532
	tokenExpiration = 3600
)

// initContainer attaches the redirect to the pod's cgroup, brings the helper for
// preStop commands where one is needed, and ends.
func initContainer(cfg *Config, resources corev1.ResourceRequirements, held *holds) corev1.Container {
	c := corev1.Container{
		Name:            xds.InitContainer,
		Image:           cfg.InitImage,
		ImagePullPolicy: cfg.ImagePullPolicy,
		Args: []string{
			"init",
			"--cgroup-root=" + mountCgroup,
			"--pod-uid=$(POD_UID)",
			"--outbound-ports=" + joinPorts(cfg.OutboundPorts),
			"--listener-port=" + strconv.Itoa(xds.PortOutbound),
			"--log-level=" + cfg.LogLevel,
			"--log-format=" + cfg.LogFormat,
		},
		Env: []corev1.EnvVar{fieldEnv("POD_UID", "metadata.uid")},
		// The sidecar's own: the step runs before it and alone, so the pod as a whole
		// asks for no more because of it, and its quality of service stays too.
		Resources: resources,
		SecurityContext: &corev1.SecurityContext{
			// With any other uid the added capabilities are not effective. Each field
			// is set, for the pod's securityContext would fill the ones that are not.
			RunAsUser:                new(int64(0)),
			RunAsGroup:               new(int64(0)),
			RunAsNonRoot:             new(false),
			Privileged:               new(false),
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities: &corev1.Capabilities{
				Drop: []corev1.Capability{"ALL"},
				Add:  []corev1.Capability{"BPF", "NET_ADMIN"},
			},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: volumeCgroup, MountPath: mountCgroup, ReadOnly: true}},
		// So that `kubectl describe pod` tells which kernel feature is missing.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
	}
	if held.installs {
		c.Args = append(c.Args, "--install-hold="+mountHold)
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volumeHold, MountPath: mountHold})
	}
	return c
}

// sidecarContainer relays the pod's RPCs as long as the pod lives.
func sidecarContainer(cfg *Config, resources corev1.ResourceRequirements, workload string, held *holds) corev1.Container {
	return corev1.Container{
		Name:            xds.SidecarContainer,
		Image:           cfg.SidecarImage,
		ImagePullPolicy: cfg.ImagePullPolicy,
		// An init container that stays: it runs before the app and outlives it.
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Args: append([]string{
			"run",
			"--listen-port=" + strconv.Itoa(xds.PortOutbound),
			fmt.Sprintf("--pod-listen=:%d", xds.PortPod),
			fmt.Sprintf("--debug-listen=127.0.0.1:%d", xds.PortDebug),
			"--xds=" + cfg.XDSAddress,
			"--xds-ca=" + mountCA + "/" + TrustKey,
			"--xds-token=" + mountToken + "/token",
			"--namespace=$(POD_NAMESPACE)",
			"--pod=$(POD_NAME)",
			"--pod-uid=$(POD_UID)",
			"--node=$(NODE_NAME)",
			"--workload=" + workload,
			"--outbound-ports=" + joinPorts(cfg.OutboundPorts),
			"--state-dir=" + mountState,
			"--log-level=" + cfg.LogLevel,
			"--log-format=" + cfg.LogFormat,
		}, held.args(cfg)...),
		Env: append([]corev1.EnvVar{
			fieldEnv("POD_NAMESPACE", "metadata.namespace"),
			fieldEnv("POD_NAME", "metadata.name"),
			fieldEnv("POD_UID", "metadata.uid"),
			fieldEnv("NODE_NAME", "spec.nodeName"),
			{Name: "GOMEMLIMIT", Value: goMemoryLimit(resources)},
		}, held.env()...),
		Ports:     []corev1.ContainerPort{{Name: "evenkeel", ContainerPort: xds.PortPod, Protocol: corev1.ProtocolTCP}},
		Resources: resources,
		// The next container starts when this returns: no probe period in the way.
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
			sidecarBinary, "wait",
			"--timeout=" + cfg.StartTimeout.Duration.String(),
			fmt.Sprintf("--debug=127.0.0.1:%d", xds.PortDebug),
		}}}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(xds.PortPod), Scheme: corev1.URISchemeHTTP}},
			PeriodSeconds:    1,
			TimeoutSeconds:   2,
			SuccessThreshold: 1,
			// A worker that is replaced (100 ms), or hangs (2 s), must not take its
			// pod out of its Services.
			FailureThreshold: 5,
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser:                new(int64(nonRoot)),
			RunAsGroup:               new(int64(nonRoot)),
			RunAsNonRoot:             new(true),
			Privileged:               new(false),
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeToken, MountPath: mountToken, ReadOnly: true},
			{Name: volumeCA, MountPath: mountCA, ReadOnly: true},
			{Name: volumeState, MountPath: mountState},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
	}
}

// volumes that the two containers mount; of the user's containers, those with a
// preStop command mount the helper's.
func volumes(cfg *Config, held *holds) []corev1.Volume {
	all := []corev1.Volume{
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			// Its own token for its own audience: independent of the pod's
			// automountServiceAccountToken, and worthless at the API server.
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: xds.TokenAudience, ExpirationSeconds: new(int64(tokenExpiration)), Path: "token",
			}}},
			DefaultMode: new(int32(0o644)),
		}}},
		{Name: volumeCA, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: TrustConfigMap},
			DefaultMode:          new(int32(0o644)),
			// Without the control plane pods still start.
			Optional: new(true),
		}}},
		{Name: volumeState, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: new(resource.MustParse("1Mi")),
		}}},
		{Name: volumeCgroup, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
			Path: cfg.CgroupRoot, Type: new(corev1.HostPathDirectory),
		}}},
	}
	if held.installs {
		all = append(all, corev1.Volume{Name: volumeHold, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: new(resource.MustParse("16Mi")),
		}}})
	}
	return all
}

// goMemoryLimit stays below the container's limit, so that the collector works
// harder before the kernel kills.
func goMemoryLimit(r corev1.ResourceRequirements) string {
	return strconv.FormatInt(r.Limits.Memory().Value()*8/10, 10)
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
	}}
}

func joinPorts(ports []uint16) string {
	s := make([]string, len(ports))
	for i, p := range ports {
		s[i] = strconv.Itoa(int(p))
	}
	return strings.Join(s, ",")
}
