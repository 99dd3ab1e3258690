// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// problem is something in an object that cannot be used.
type problem struct {
	field string // its path: spec.ports[0].port
	text  string
	// advice: the object is used all the same, as if the field were not there.
	advice bool
}

func (p problem) String() string { return p.field + ": " + p.text }

type problems []problem

func (ps *problems) add(field, format string, args ...any) {
	*ps = append(*ps, problem{field: field, text: fmt.Sprintf(format, args...)})
}

func (ps *problems) advise(field, format string, args ...any) {
	*ps = append(*ps, problem{field: field, text: fmt.Sprintf(format, args...), advice: true})
}

func keyOf(m *metav1.ObjectMeta) snapshot.ObjectKey {
	return snapshot.ObjectKey{Namespace: names.of(m.Namespace), Name: m.Name}
}

// convert makes the snapshot's input of a Kubernetes object. What the snapshot
// does not use is left behind. Whatever can be used is, beside the problems.
func convert(obj any) (snapshot.Change, problems) {
	switch o := obj.(type) {
	case *corev1.Service:
		return convertService(o)
	case *discoveryv1.EndpointSlice:
		return convertSlice(o)
	case *corev1.Pod:
		return convertPod(o)
	case *networkingv1.Ingress:
		return convertIngress(o)
	case *unstructured.Unstructured:
		return convertGatewayRoute(o)
	case *corev1.Node:
		return snapshot.Change{
			Kind: snapshot.KindNode, Key: snapshot.ObjectKey{Name: o.Name},
			Node: &snapshot.Node{Name: o.Name, Zone: o.Labels[corev1.LabelTopologyZone]},
		}, nil
	}
	return snapshot.Change{}, problems{{field: "kind", text: fmt.Sprintf("%T is not watched", obj)}}
}

func convertService(o *corev1.Service) (snapshot.Change, problems) {
	var ps problems
	key := keyOf(&o.ObjectMeta)
	svc := &snapshot.Service{Key: key}
	switch {
	case o.Spec.Type == corev1.ServiceTypeExternalName:
		svc.ExternalName = strings.ToLower(strings.TrimSuffix(o.Spec.ExternalName, "."))
		if svc.ExternalName == "" {
			ps.add("spec.externalName", "required for type ExternalName")
		} else if msgs := validation.IsDNS1123Subdomain(svc.ExternalName); len(msgs) > 0 {
			ps.add("spec.externalName", "%.100q: %s", svc.ExternalName, msgs[0])
		}
	case o.Spec.ClusterIP == corev1.ClusterIPNone:
		svc.Headless = true
		svc.AnyPort = len(o.Spec.Ports) == 0
	default:
		svc.ClusterIPs = clusterIPs(&o.Spec, &ps)
	}
	if o.Spec.Type != corev1.ServiceTypeExternalName { // of which the selector is ignored
		svc.Selector = snapshot.NewLabels(o.Spec.Selector)
		svc.External = o.Spec.Type == corev1.ServiceTypeLoadBalancer || o.Spec.Type == corev1.ServiceTypeNodePort || len(o.Spec.ExternalIPs) > 0
	}
	if o.Spec.InternalTrafficPolicy != nil {
		svc.LocalOnly = *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	}
	if len(o.Spec.IPFamilies) > 0 {
		svc.PreferIPv6 = o.Spec.IPFamilies[0] == corev1.IPv6Protocol
	} else if len(svc.ClusterIPs) > 0 {
		svc.PreferIPv6 = svc.ClusterIPs[0].Is6()
	}
	for i, p := range o.Spec.Ports {
		switch p.Protocol {
		case corev1.ProtocolTCP, "":
		case corev1.ProtocolUDP, corev1.ProtocolSCTP:
			continue
		default:
			ps.add(fmt.Sprintf("spec.ports[%d].protocol", i), "%.50q is not a protocol (TCP, UDP, SCTP)", p.Protocol)
			continue
		}
		port, ok := portNumber(p.Port)
		if !ok {
			ps.add(fmt.Sprintf("spec.ports[%d].port", i), "%d is not a port (1 to 65535)", p.Port)
			continue
		}
		sp := snapshot.ServicePort{Name: p.Name, Port: port}
		if p.TargetPort.StrVal == "" {
			sp.TargetPort = port
			if p.TargetPort.IntVal != 0 {
				if sp.TargetPort, ok = portNumber(p.TargetPort.IntVal); !ok {
					ps.add(fmt.Sprintf("spec.ports[%d].targetPort", i), "%d is not a port (1 to 65535)", p.TargetPort.IntVal)
					continue
				}
			}
		}
		svc.Ports = append(svc.Ports, sp)
	}
	svc.Policy = policy(o.Annotations, &ps)
	return snapshot.Change{Kind: snapshot.KindService, Key: key, Service: svc}, ps
}

func clusterIPs(spec *corev1.ServiceSpec, ps *problems) []netip.Addr {
	texts, field := spec.ClusterIPs, "spec.clusterIPs"
	if len(texts) == 0 && spec.ClusterIP != "" {
		texts, field = []string{spec.ClusterIP}, "spec.clusterIP"
	}
	var ips []netip.Addr
	for i, t := range texts {
		a, err := parseIP(t)
		if err != nil {
			if field == "spec.clusterIPs" {
				field = fmt.Sprintf("spec.clusterIPs[%d]", i)
			}
			ps.add(field, "%s", err)
			continue
		}
		ips = append(ips, a)
	}
	return ips
}

// servicePrefixes are those of the annotations that are ours on a Service.
var servicePrefixes = [...]string{"balancer.evenkeel.dev/", "retry.evenkeel.dev/", "timeout.evenkeel.dev/", "limit.evenkeel.dev/"}

func policy(annotations map[string]string, ps *problems) string {
	for k := range annotations {
		if k == xds.AnnotationPolicy {
			continue
		}
		for _, p := range servicePrefixes {
			if strings.HasPrefix(k, p) {
				ps.advise("metadata.annotations["+k+"]", "not known to this version; ignored (known: %s)", xds.AnnotationPolicy)
			}
		}
	}
	switch v := annotations[xds.AnnotationPolicy]; v {
	case "", xds.PolicyLeastRequest, xds.PolicyRoundRobin:
		return v
	default:
		ps.advise("metadata.annotations["+xds.AnnotationPolicy+"]", "%.100q is not a policy; using %s (known: %s, %s)",
			v, xds.PolicyLeastRequest, xds.PolicyLeastRequest, xds.PolicyRoundRobin)
		return ""
	}
}

func convertSlice(o *discoveryv1.EndpointSlice) (snapshot.Change, problems) {
	var ps problems
	key := keyOf(&o.ObjectMeta)
	c := snapshot.Change{Kind: snapshot.KindSlice, Key: key}
	service := o.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		ps.add("metadata.labels["+discoveryv1.LabelServiceName+"]", "required: it says which Service the slice belongs to")
		return c, ps
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		return c, nil // names are not dialled; kube-proxy ignores these slices too
	default:
		ps.add("addressType", "%.50q is not an address type (IPv4, IPv6)", o.AddressType)
		return c, ps
	}
	sl := &snapshot.Slice{Key: key, Service: service}
	for i, p := range o.Ports {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP && *p.Protocol != "" {
			continue
		}
		if p.Port == nil {
			continue // "all ports": not a Service's
		}
		port, ok := portNumber(*p.Port)
		if !ok {
			ps.add(fmt.Sprintf("ports[%d].port", i), "%d is not a port (1 to 65535)", *p.Port)
			continue
		}
		sp := snapshot.SlicePort{Port: port}
		if p.Name != nil {
			sp.Name = *p.Name
		}
		sl.Ports = append(sl.Ports, sp)
	}
	for i := range o.Endpoints {
		if ep, ok := convertEndpoint(o, i, &ps); ok {
			sl.Endpoints = append(sl.Endpoints, ep)
		}
	}
	c.Slice = sl
	return c, ps
}

func convertEndpoint(o *discoveryv1.EndpointSlice, i int, ps *problems) (snapshot.Endpoint, bool) {
	e := &o.Endpoints[i]
	field := fmt.Sprintf("endpoints[%d].addresses", i)
	if len(e.Addresses) == 0 {
		ps.add(field, "required: one address")
		return snapshot.Endpoint{}, false
	}
	// "These are all assumed to be fungible and clients may choose to only use
	// the first element" (discovery/v1, Endpoint.addresses).
	addr, err := parseIP(e.Addresses[0])
	if err == nil && addr.Is4() != (o.AddressType == discoveryv1.AddressTypeIPv4) {
		err = fmt.Errorf("%s is not of the slice's addressType %s", addr, o.AddressType)
	}
	if err != nil {
		ps.add(field+"[0]", "%s", err)
		return snapshot.Endpoint{}, false
	}
	// "A nil value should be interpreted as "true"" (ready); serving: "If nil,
	// consumers should defer to the ready condition"; terminating: "A nil value
	// indicates an unknown state. In most cases consumers should interpret this
	// unknown state to mean that the endpoint is not terminating."
	ready := boolOr(e.Conditions.Ready, true)
	ep := snapshot.Endpoint{
		Addr:        addr,
		Ready:       ready,
		Serving:     boolOr(e.Conditions.Serving, ready),
		Terminating: boolOr(e.Conditions.Terminating, false),
		Hostname:    stringOr(e.Hostname),
		Node:        names.of(stringOr(e.NodeName)),
		Zone:        names.of(stringOr(e.Zone)),
	}
	if ep.Hostname != "" {
		if msgs := validation.IsDNS1123Label(ep.Hostname); len(msgs) > 0 {
			ps.add(fmt.Sprintf("endpoints[%d].hostname", i), "%.100q: %s", ep.Hostname, msgs[0])
			ep.Hostname = ""
		}
	}
	if t := e.TargetRef; t != nil && (t.Kind == "Pod" || t.Kind == "") {
		if t.Namespace == "" || t.Namespace == o.Namespace {
			ep.Pod, ep.PodUID = t.Name, string(t.UID)
		}
	}
	return ep, true
}

func convertPod(o *corev1.Pod) (snapshot.Change, problems) {
	var ps problems
	key := keyOf(&o.ObjectMeta)
	c := snapshot.Change{Kind: snapshot.KindPod, Key: key}
	if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return c, nil // its address may be another's already
	}
	p := &snapshot.Pod{
		Key:         key,
		UID:         string(o.UID),
		Node:        names.of(o.Spec.NodeName),
		HostNetwork: o.Spec.HostNetwork,
		Labels:      snapshot.NewLabels(o.Labels),
		Terminating: o.DeletionTimestamp != nil,
		AppReady:    appReady(o),
		Ready:       podReady(o),
		Created:     o.CreationTimestamp.Time,
	}
	if g := o.DeletionGracePeriodSeconds; p.Terminating && g != nil {
		p.DeletionGrace = time.Duration(max(0, *g)) * time.Second
	}
	texts := make([]string, 0, 2)
	for _, ip := range o.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if len(texts) == 0 && o.Status.PodIP != "" {
		texts = append(texts, o.Status.PodIP)
	}
	for i, t := range texts {
		a, err := parseIP(t)
		if err != nil {
			ps.add(fmt.Sprintf("status.podIPs[%d].ip", i), "%s", err)
			continue
		}
		p.IPs = append(p.IPs, a)
	}
	c.Pod = p
	return c, ps
}

func podReady(o *corev1.Pod) bool {
	i := slices.IndexFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	return i >= 0 && o.Status.Conditions[i].Status == corev1.ConditionTrue
}

// appReady reports whether the Pod would be ready but for our sidecar: what the
// kubelet asks of the condition ContainersReady, which are the containers and
// the init containers that go on running (sidecars).
func appReady(o *corev1.Pod) bool {
	if o.Status.Phase != corev1.PodRunning {
		return false
	}
	ready := func(statuses []corev1.ContainerStatus, name string) bool {
		for i := range statuses {
			if statuses[i].Name == name {
				return statuses[i].Ready
			}
		}
		return false
	}
	for i := range o.Spec.Containers {
		if name := o.Spec.Containers[i].Name; name != xds.SidecarContainer && !ready(o.Status.ContainerStatuses, name) {
			return false
		}
	}
	for i := range o.Spec.InitContainers {
		ic := &o.Spec.InitContainers[i]
		if ic.RestartPolicy == nil || *ic.RestartPolicy != corev1.ContainerRestartPolicyAlways || ic.Name == xds.SidecarContainer {
			continue
		}
		if !ready(o.Status.InitContainerStatuses, ic.Name) {
			return false
		}
	}
	return len(o.Spec.Containers) > 0
}

func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%.50q is not an IP address", s)
	}
	return a.Unmap(), nil
}

func portNumber(p int32) (uint16, bool) { return uint16(p), p > 0 && p <= 65535 }

func boolOr(b *bool, d bool) bool {
	if b == nil {
		return d
	}
	return *b
}

func stringOr(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
