// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"cmp"
	"net/netip"
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"evenkeel.dev/xds"
)

// Collection is the endpoints of one service as they are now. It is immutable.
type Collection struct {
	// Name is the name to subscribe to.
	Name string
	// Marker is the resource which says that the first whole list was sent.
	Marker *Resource

	all *Set
	// byNode is set when internalTrafficPolicy is Local: each node's own view.
	byNode map[string]*Set
	empty  *Set

	members map[netip.AddrPort]member
}

type member struct {
	spec     endpointSpec
	resource *Resource
}

// Set is the endpoints that a client is to have, sorted by name. It is
// immutable; two views are the same exactly when their pointers are.
type Set struct {
	Collection string
	Marker     *Resource
	Members    []*Resource
}

// View is what a client on the node is to have.
func (c *Collection) View(node string) *Set {
	if c.byNode == nil {
		return c.all
	}
	if v, ok := c.byNode[node]; ok {
		return v
	}
	return c.empty
}

// endpointSpec is all that an endpoint's resource is made of.
type endpointSpec struct {
	addr   netip.AddrPort
	health corepb.HealthStatus
	pod    string
	node   string
	zone   string
}

// CollectionTopics are what a collection of the Service depends on.
func (s *Store) CollectionTopics(svc xds.Service) []Topic {
	return []Topic{{kind: topicEndpoints, key: ObjectKey{svc.Namespace, svc.Name}}}
}

// Collection returns the endpoints of svc, or nil if there is no such Service or
// it has no such port. prev, when given, is what was returned before: whatever
// stayed the same is taken over from it, up to the whole.
func (s *Store) Collection(svc xds.Service, prev *Collection) *Collection {
	service := s.services[ObjectKey{svc.Namespace, svc.Name}]
	if service == nil {
		return nil
	}
	ports, ok := s.portsOf(service, svc.Port)
	if !ok {
		return nil
	}
	specs := s.endpoints(service, ports)
	local := service.LocalOnly && !service.Headless
	if prev != nil && local == (prev.byNode != nil) && prev.madeOf(specs) {
		return prev
	}
	c := &Collection{members: make(map[netip.AddrPort]member, len(specs))}
	if prev != nil {
		c.Name, c.Marker = prev.Name, prev.Marker
	} else {
		c.Name = xds.EndpointCollection(svc.String())
		c.Marker = newResource(c.Name, xds.EndpointType, &endpointpb.LbEndpoint{})
	}
	members := make([]*Resource, 0, len(specs))
	for addr, spec := range specs {
		m := member{spec: spec}
		if old, ok := prev.member(addr); ok && old.spec == spec {
			m.resource = old.resource
		} else {
			m.resource = spec.resource(xds.EndpointName(svc.String(), addr))
		}
		c.members[addr] = m
		members = append(members, m.resource)
	}
	slices.SortFunc(members, func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) })
	c.all = &Set{Collection: c.Name, Marker: c.Marker, Members: members}
	if local {
		c.splitByNode(prev)
	}
	return c
}

func (c *Collection) member(a netip.AddrPort) (member, bool) {
	if c == nil {
		return member{}, false
	}
	m, ok := c.members[a]
	return m, ok
}

func (c *Collection) madeOf(specs map[netip.AddrPort]endpointSpec) bool {
	if len(specs) != len(c.members) {
		return false
	}
	for a, spec := range specs {
		if m, ok := c.members[a]; !ok || m.spec != spec {
			return false
		}
	}
	return true
}

func (c *Collection) splitByNode(prev *Collection) {
	nodes := make(map[*Resource]string, len(c.members))
	for _, m := range c.members {
		nodes[m.resource] = m.spec.node
	}
	c.byNode = map[string]*Set{}
	for _, r := range c.all.Members { // sorted, so each view is
		node := nodes[r]
		v := c.byNode[node]
		if v == nil {
			v = &Set{Collection: c.Name, Marker: c.Marker}
			c.byNode[node] = v
		}
		v.Members = append(v.Members, r)
	}
	if prev == nil || prev.empty == nil {
		c.empty = &Set{Collection: c.Name, Marker: c.Marker}
		return
	}
	c.empty = prev.empty
	for node, v := range c.byNode {
		if old := prev.byNode[node]; old != nil && slices.Equal(old.Members, v.Members) {
			c.byNode[node] = old
		}
	}
}

// Diff returns what a client that has old must be told to have s: resources that
// are new or changed, and the names of those that are gone. Either may be nil,
// for nothing. Both are sorted by name.
func (s *Set) Diff(old *Set) (changed []*Resource, removed []string) {
	var was, is []*Resource
	if old != nil {
		was = old.Members
	}
	if s != nil {
		is = s.Members
	}
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].Name < is[0].Name:
			removed, was = append(removed, was[0].Name), was[1:]
		case len(was) == 0 || is[0].Name < was[0].Name:
			changed, is = append(changed, is[0]), is[1:]
		default:
			if was[0] != is[0] && was[0].Version != is[0].Version {
				changed = append(changed, is[0])
			}
			was, is = was[1:], is[1:]
		}
	}
	return changed, removed
}

func (e endpointSpec) resource(name string) *Resource {
	fields := map[string]*structpb.Value{}
	for k, v := range map[string]string{xds.EndpointPod: e.pod, xds.EndpointNode: e.node, xds.EndpointZone: e.zone} {
		if v != "" {
			fields[k] = structpb.NewStringValue(v)
		}
	}
	ep := &endpointpb.LbEndpoint{
		HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{
			Address: &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
				Address:       e.addr.Addr().String(),
				PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: uint32(e.addr.Port())},
			}}},
		}},
		HealthStatus: e.health,
	}
	if len(fields) > 0 {
		ep.Metadata = &corepb.Metadata{FilterMetadata: map[string]*structpb.Struct{
			xds.EndpointMetadata: {Fields: fields},
		}}
	}
	return newResource(name, xds.EndpointType, ep)
}
