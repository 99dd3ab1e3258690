// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// ObjectKey names a namespaced object; a Node has no namespace.
type ObjectKey struct {
	Namespace string
	Name      string
}

// String is "namespace/name", or "name" for a Node.
func (k ObjectKey) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by namespace, then by name.
func (k ObjectKey) Compare(o ObjectKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Kind is the kind of the object that changed.
type Kind uint8

// The kinds of input.
const (
	KindService Kind = iota + 1
	KindSlice
	KindPod
	KindNode
	KindIngress
	KindHTTPRoute
	KindGRPCRoute
	KindTCPRoute
	KindTLSRoute
)

// String is the Kubernetes name of the kind.
func (k Kind) String() string {
	switch k {
	case KindService:
		return "Service"
	case KindSlice:
		return "EndpointSlice"
	case KindPod:
		return "Pod"
	case KindNode:
		return "Node"
	case KindIngress:
		return "Ingress"
	case KindHTTPRoute:
		return "HTTPRoute"
	case KindGRPCRoute:
		return "GRPCRoute"
	case KindTCPRoute:
		return "TCPRoute"
	case KindTLSRoute:
		return "TLSRoute"
	}
	return "unknown kind"
}

// Change is the new state of one object. The field of its Kind is set; nil
// means that the object is gone. What it points to is never written again.
type Change struct {
	Kind    Kind
	Key     ObjectKey
	Service *Service
	Slice   *Slice
	Pod     *Pod
	Node    *Node
	Route   *Route // of an Ingress and of each kind of route
}

// Service is what is used of a Kubernetes Service.
type Service struct {
	Key ObjectKey
	// Headless: spec.clusterIP is None.
	Headless bool
	// ExternalName is spec.externalName, lower case, without a trailing dot; set
	// only for that type of Service.
	ExternalName string
	ClusterIPs   []netip.Addr
	// Ports are the TCP ports.
	Ports []ServicePort
	// AnyPort: a headless Service that names no ports at all, so that its DNS
	// name stands for whatever port is dialled.
	AnyPort bool
	// LocalOnly: spec.internalTrafficPolicy is Local.
	LocalOnly bool
	// PreferIPv6: the first of spec.ipFamilies. A pod that is in slices of both
	// families is one endpoint, of this family.
	PreferIPv6 bool
	// Policy is one of the xds.Policy values; empty means least_request.
	Policy string
	// Selector is spec.selector; none: nothing is selected.
	Selector Labels
	// External: type LoadBalancer or NodePort, or with externalIPs: clients outside
	// of the cluster may have its Pods' addresses.
	External bool
}

// ServicePort is a TCP port of a Service.
type ServicePort struct {
	Name string
	Port uint16
	// TargetPort is 0 when it is given by name: then the slices know it.
	TargetPort uint16
}

func (s *Service) equal(o *Service) bool {
	return s.Key == o.Key && s.Headless == o.Headless && s.ExternalName == o.ExternalName &&
		s.AnyPort == o.AnyPort && s.LocalOnly == o.LocalOnly && s.PreferIPv6 == o.PreferIPv6 &&
		s.Policy == o.Policy && s.Selector == o.Selector && s.External == o.External && slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.Ports, o.Ports)
}

// Slice is what is used of an EndpointSlice.
type Slice struct {
	Key ObjectKey
	// Service is the name of the Service, in the slice's namespace, from the
	// label kubernetes.io/service-name.
	Service string
	// Ports are the TCP ports.
	Ports     []SlicePort
	Endpoints []Endpoint
}

// SlicePort joins a Service's port to the port that its endpoints listen on: by name.
type SlicePort struct {
	Name string
	Port uint16
}

// Endpoint is one endpoint of a slice, with its conditions resolved: the API
// leaves room for "unknown", which means ready, serving and not terminating.
type Endpoint struct {
	Addr        netip.Addr
	Ready       bool
	Serving     bool
	Terminating bool
	Hostname    string
	Node        string
	Zone        string
	// Pod is the name of the Pod in the slice's namespace, PodUID its UID; empty
	// when the endpoint refers to none.
	Pod    string
	PodUID string
}

func (s *Slice) equal(o *Slice) bool {
	return s.Key == o.Key && s.Service == o.Service && slices.Equal(s.Ports, o.Ports) && slices.Equal(s.Endpoints, o.Endpoints)
}

// Pod is what is used of a Pod. Pods that have ended (Succeeded, Failed) are no
// input: they hold neither an address nor a place.
type Pod struct {
	Key  ObjectKey
	UID  string
	IPs  []netip.Addr
	Node string
	// HostNetwork: the addresses are the node's.
	HostNetwork bool
	// Terminating: metadata.deletionTimestamp is set.
	Terminating bool
	// AppReady: all containers but our sidecar are ready.
	AppReady bool
	// Ready is the Pod's condition, which its EndpointSlices are to follow.
	Ready  bool
	Labels Labels
	// DeletionGrace is metadata.deletionGracePeriodSeconds; 0 unless Terminating.
	DeletionGrace time.Duration
	// Created decides between two Pods that show the same address.
	Created time.Time
}

func (p *Pod) equal(o *Pod) bool {
	return p.Key == o.Key && p.UID == o.UID && p.Node == o.Node && p.HostNetwork == o.HostNetwork &&
		p.Terminating == o.Terminating && p.Labels == o.Labels && p.DeletionGrace == o.DeletionGrace && p.AppReady == o.AppReady && p.Ready == o.Ready && p.Created.Equal(o.Created) && slices.Equal(p.IPs, o.IPs)
}

// Node is what is used of a Node.
type Node struct {
	Name string
	Zone string
}
