// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"evenkeel.dev/xds"
)

// InjectedLabel marks an injected pod: selectors, the trust bundle's controller
// and people find them by it.
const InjectedLabel = "evenkeel.dev/injected"

// podSecurityEnforce is the label of https://kubernetes.io/docs/concepts/security/pod-security-admission/.
const podSecurityEnforce = "pod-security.kubernetes.io/enforce"

// Outcome of an admission.
type Outcome string

// The outcomes; they are label values of metrics.
const (
	Injected Outcome = "injected"
	Skipped  Outcome = "skipped"
)

// Reason says why a pod was skipped or warned about; CamelCase, as in Events.
type Reason string

// The reasons. Those of a skip that nobody needs to hear about come first.
const (
	ReasonDisabled        Reason = "Disabled"
	ReasonAlreadyInjected Reason = "AlreadyInjected"
	ReasonSystemNamespace Reason = "SystemNamespace"
	ReasonMirrorPod       Reason = "MirrorPod"

	ReasonBadLabel      Reason = "InvalidInjectLabel"
	ReasonBadAnnotation Reason = "InvalidAnnotation"
	ReasonHostNetwork   Reason = "HostNetwork"
	ReasonWindows       Reason = "Windows"
	ReasonUserNamespace Reason = "UserNamespace"
	ReasonPodSecurity   Reason = "PodSecurity"
	ReasonNameTaken     Reason = "NameTaken"
	ReasonPortTaken     Reason = "PortTaken"
	ReasonNodeDNS       Reason = "NodeDNS"
	ReasonHook          Reason = "PreStopHook"
	ReasonNoGrace       Reason = "NoGracePeriod"
	ReasonNamespaceLost Reason = "NamespaceUnreadable"
)

// Warning is told to who creates the pod, to an Event and to a metric.
type Warning struct {
	Reason Reason
	// Annotation is the one it is about ("unknown" for one that is not ours), a
	// label value of the metric. Empty: it is not about one.
	Annotation string
	Message    string
}

func warnf(r Reason, annotation, format string, args ...any) Warning {
	return Warning{Reason: r, Annotation: annotation, Message: fmt.Sprintf(format, args...)}
}

// Namespace is what the injector needs to know of a pod's namespace.
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
}

// Cluster is what the injector knows of the cluster that it runs in.
type Cluster struct {
	// OwnNamespace is never injected. It must be set.
	OwnNamespace string
	// Domain of the cluster's DNS. Empty: cluster.local.
	Domain string
	// Nameservers that pods of the cluster have by default. Empty: not known, and
	// nobody is warned about others.
	Nameservers []netip.Addr
}

// wanted applies the labels: the pod's wins over the namespace's.
func wanted(pod *corev1.Pod, ns *Namespace) (bool, []Warning) {
	var warnings []Warning
	for _, source := range []struct {
		name   string
		labels map[string]string
	}{{"pod", pod.Labels}, {"namespace", ns.Labels}} {
		switch v, ok := source.labels[xds.InjectLabel]; {
		case v == xds.InjectLabelEnabled:
			return true, warnings
		case v == xds.InjectLabelDisabled:
			return false, warnings
		case ok:
			warnings = append(warnings, warnf(ReasonBadLabel, "", "%s label %s is %q, want enabled or disabled; ignored", source.name, xds.InjectLabel, v))
		}
	}
	return false, warnings
}

// obstacle says why a pod that wants a sidecar cannot have one; nil: it can.
// Whatever is found, the pod runs as without a mesh.
func obstacle(pod *corev1.Pod, ns *Namespace, cluster *Cluster) *Warning {
	spec := &pod.Spec
	never := func(r Reason, format string, args ...any) *Warning {
		w := warnf(r, "", "evenkeel: no sidecar: "+format, args...)
		return &w
	}
	switch {
	case ns.Name == cluster.OwnNamespace, ns.Name == "kube-system", ns.Name == "kube-node-lease":
		// What the mesh itself needs to start must not wait for the mesh.
		return never(ReasonSystemNamespace, "namespace %s is never injected", ns.Name)
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return never(ReasonMirrorPod, "a static pod's mirror cannot be changed")
	case injected(spec):
		return never(ReasonAlreadyInjected, "the pod has one")
	case spec.HostNetwork:
		return never(ReasonHostNetwork, "the pod uses the node's network (spec.hostNetwork), whose ports it would take")
	case spec.OS != nil && spec.OS.Name == corev1.Windows:
		return never(ReasonWindows, "spec.os.name is windows, the redirect is Linux only")
	case spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		// The way from before spec.os, and still the one that many charts go.
		return never(ReasonWindows, "spec.nodeSelector[%s] is windows, the redirect is Linux only", corev1.LabelOSStable)
	case spec.HostUsers != nil && !*spec.HostUsers:
		// bpf(2) needs CAP_BPF in the initial user namespace.
		return never(ReasonUserNamespace, "the pod has a user namespace of its own (spec.hostUsers: false), in which no eBPF program can be loaded")
	}
	if level := ns.Labels[podSecurityEnforce]; level == "baseline" || level == "restricted" {
		return never(ReasonPodSecurity, "namespace %s enforces Pod Security %q, which would refuse the pod because of the init step's capabilities", ns.Name, level)
	}
	if what := taken(spec); what != "" {
		return never(ReasonNameTaken, "the pod has %s, a name that Evenkeel needs", what)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, p := range c.Ports {
			if p.Protocol != corev1.ProtocolUDP && sidecarPort(p.ContainerPort) {
				return never(ReasonPortTaken, "container %s has port %d, which the sidecar listens on", c.Name, p.ContainerPort)
			}
		}
	}
	return nil
}

// injected tells a pod that went through here before: the API server calls again
// when another webhook changed the pod after us, and people apply what they got.
func injected(spec *corev1.PodSpec) bool {
	has := func(name string) bool {
		return slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	}
	return has(xds.InitContainer) && has(xds.SidecarContainer)
}

// taken finds a container or volume of the user's with one of our names.
func taken(spec *corev1.PodSpec) string {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Name == xds.InitContainer || c.Name == xds.SidecarContainer {
			return "a container " + c.Name
		}
	}
	for _, v := range spec.Volumes {
		if strings.HasPrefix(v.Name, volumePrefix) {
			return "a volume " + v.Name
		}
	}
	return ""
}

// quiet reasons are the normal course of things: no warning, no Event.
func quiet(r Reason) bool {
	switch r {
	case ReasonDisabled, ReasonAlreadyInjected, ReasonMirrorPod, ReasonSystemNamespace:
		return true
	}
	return false
}
