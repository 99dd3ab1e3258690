// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"fmt"
	"net/netip"
)

// State is the control plane's word about an endpoint.
type State uint8

// The states, in the order in which an endpoint lives through them.
const (
	Warming  State = iota // connect, do not pick
	Ready                 // pick
	Draining              // finish what runs, pick only while nothing else is there
)

func (s State) String() string {
	switch s {
	case Warming:
		return "warming"
	case Ready:
		return "ready"
	case Draining:
		return "draining"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Policy says how one of several endpoints is chosen.
type Policy uint8

// The policies.
const (
	LeastRequest Policy = iota
	RoundRobin
)

func (p Policy) String() string {
	switch p {
	case LeastRequest:
		return "least_request"
	case RoundRobin:
		return "round_robin"
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// ParsePolicy reads the name that Service annotations and the wire use. The
// empty string is the default policy.
func ParsePolicy(s string) (Policy, error) {
	switch s {
	case "", "least_request":
		return LeastRequest, nil
	case "round_robin":
		return RoundRobin, nil
	}
	return LeastRequest, fmt.Errorf("balancer policy %q is not known (least_request, round_robin)", s)
}

// EndpointSpec describes one endpoint.
type EndpointSpec struct {
	Addr  netip.AddrPort
	State State
	Pod   string // "namespace/name"; empty when the endpoint is no pod
	UID   string // of the pod: another pod may come to have the same name and address
	Node  string
	Zone  string
	// Weight of the endpoint relative to the others. Zero means 1.
	Weight uint32
}

// Spec describes a service and all of its endpoints. It is immutable once
// given away.
type Spec struct {
	Service   string // "namespace/name:port"
	Policy    Policy
	Endpoints []EndpointSpec
	// Version names this list; it is opaque. Empty: the list is never the base
	// of a Delta.
	Version string
	// Delta, when set, says how Endpoints differs from the list of an earlier
	// version, so that a change of one endpoint costs no walk over a thousand.
	Delta *Delta
}

// Delta is the difference between two versions of a service's endpoints.
type Delta struct {
	Base    string // the Version that it builds upon
	Upserts []EndpointSpec
	Removes []netip.AddrPort
}
