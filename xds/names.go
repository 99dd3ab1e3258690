// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

import "time"

// Resource types.
const (
	// DestinationType is the type URL of evenkeel.v1.Destination (package xds/api).
	DestinationType = "type.googleapis.com/evenkeel.v1.Destination"
	// EndpointType is the type URL of one endpoint. Endpoints are resources of
	// their own so that one endpoint's change costs its own bytes.
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"
)

// Ports.
const (
	PortXDS      = 15950 // control plane: delta ADS
	PortOutbound = 15951 // sidecar, loopback: the redirect's target
	PortPod      = 15952 // sidecar, pod IP: /ready, /metrics, preStop
	PortDebug    = 15953 // sidecar, loopback: /debug, pprof
	PortXDSAdmin = 15954 // control plane: /healthz, /readyz, /metrics
)

// DefaultOutboundPort is the destination port that is redirected, and the one
// that a host name without a port means, unless configured.
const DefaultOutboundPort = 50051

// Times that both sides of the Rollout service (package xds/api) keep to.
const (
	// Lease is how long a sidecar that says nothing is still waited for, and how
	// long a silent replica's word counts.
	Lease = 5 * time.Second
	// ReportInterval is how often each side says something at least.
	ReportInterval = 2 * time.Second
	// Settle is how long a replica that has just started claims nothing: a lease,
	// and the longest pause between a sidecar's attempts to reconnect.
	Settle = Lease + 5*time.Second
)

// The preStop hook: GET PathHold on PortPod with HeaderHold, and the container's
// name in the query.
const (
	PathHold       = "/hold"
	HeaderHold     = "Evenkeel-Hold"
	QueryContainer = "container"
)

// Authentication: "authorization: Bearer <token>", a projected service-account
// token for TokenAudience. On a unix socket neither TLS nor a token is used.
const (
	TokenAudience       = "evenkeel"
	MetadataKeyAuth     = "authorization"
	AuthSchemeBearer    = "Bearer "
	DefaultServerName   = "evenkeel-xds.evenkeel-system.svc"
	DefaultClusterDNS   = "cluster.local"
	SidecarContainer    = "evenkeel-sidecar"
	InitContainer       = "evenkeel-init"
	InjectLabel         = "evenkeel.dev/inject"
	InjectLabelEnabled  = "enabled"
	InjectLabelDisabled = "disabled"
)

// Keys of Node.metadata in the first request of a stream. Node.id is
// "namespace/pod"; the server binds the stream to the pod of the token and
// refuses a node that says something else.
const (
	NodeNamespace = "namespace"
	NodePod       = "pod"
	NodeUID       = "uid"
	NodeWorkload  = "workload"
	NodeNode      = "node"
	NodeZone      = "zone"
)

// EndpointMetadata is the filter name of LbEndpoint.metadata.filter_metadata
// under which an endpoint's pod ("namespace/name"), the pod's UID, node and zone
// are found, each only when known.
const (
	EndpointMetadata = "evenkeel.dev"
	EndpointPod      = "pod"
	EndpointUID      = "uid"
	EndpointNode     = "node"
	EndpointZone     = "zone"
)

// Service annotations.
const (
	// AnnotationPolicy selects how RPCs to the Service are balanced.
	AnnotationPolicy = "balancer.evenkeel.dev/policy"
)

// Values of AnnotationPolicy and of Destination.policy.
const (
	PolicyLeastRequest = "least_request" // the default
	PolicyRoundRobin   = "round_robin"
)
