// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
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

	all   *Set
	specs []endpointSpec // what all's members were made of, in the same order
	// byNode is set when internalTrafficPolicy is Local: each node's own view;
	// empty is that of every other node.
	byNode map[string]*Set
	empty  *Set
}

// Set is the endpoints that a client is to have. It is immutable; two views are
// the same exactly when their pointers are.
type Set struct {
	Collection string
	Marker     *Resource
	Members    []*Resource // sorted by address

	addrs []netip.AddrPort // of the members
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

// endpointSpec is all that an endpoint's resource is made of, but for the
// namespace, which is the Service's.
type endpointSpec struct {
	addr   netip.AddrPort
	health corepb.HealthStatus
	pod    string
	uid    string // the pod's: a reused address is another resource version
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
	if prev != nil && local == (prev.byNode != nil) && slices.Equal(specs, prev.specs) {
		return prev
	}
	c := &Collection{specs: specs}
	var old []endpointSpec // of prev, those that are still to be met
	var oldMembers []*Resource
	if prev != nil {
		c.Name, c.Marker = prev.Name, prev.Marker
		old, oldMembers = prev.specs, prev.all.Members
	} else {
		c.Name = xds.EndpointCollection(svc.String())
		c.Marker = newResource(c.Name, xds.EndpointType, &endpointpb.LbEndpoint{})
	}
	c.all = c.newSet(len(specs))
	for _, spec := range specs {
		for len(old) > 0 && old[0].addr.Compare(spec.addr) < 0 {
			old, oldMembers = old[1:], oldMembers[1:]
		}
		if len(old) > 0 && old[0] == spec {
			c.all.add(spec.addr, oldMembers[0])
			continue
		}
		c.all.add(spec.addr, spec.resource(svc))
	}
	if local {
		c.splitByNode(prev)
	}
	return c
}

func (c *Collection) newSet(n int) *Set {
	return &Set{Collection: c.Name, Marker: c.Marker, Members: make([]*Resource, 0, n), addrs: make([]netip.AddrPort, 0, n)}
}

func (s *Set) add(a netip.AddrPort, r *Resource) {
	s.Members, s.addrs = append(s.Members, r), append(s.addrs, a)
}

func (c *Collection) splitByNode(prev *Collection) {
	c.byNode = map[string]*Set{}
	for i, spec := range c.specs {
		v := c.byNode[spec.node]
		if v == nil {
			v = c.newSet(0)
			c.byNode[spec.node] = v
		}
		v.add(spec.addr, c.all.Members[i])
	}
	if prev == nil || prev.empty == nil {
		c.empty = c.newSet(0)
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
// for nothing.
func (s *Set) Diff(old *Set) (changed []*Resource, removed []string) {
	var none Set
	if s == nil {
		s = &none
	}
	if old == nil {
		old = &none
	}
	i, j := 0, 0
	for i < len(s.addrs) || j < len(old.addrs) {
		order := 0
		switch {
		case i == len(s.addrs):
			order = 1
		case j == len(old.addrs):
			order = -1
		case s.Members[i] != old.Members[j]: // mostly the same, which is cheap to see
			order = s.addrs[i].Compare(old.addrs[j])
		}
		switch {
		case order < 0:
			changed = append(changed, s.Members[i])
			i++
		case order > 0:
			removed = append(removed, old.Members[j].Name)
			j++
		default:
			if s.Members[i].Version != old.Members[j].Version {
				changed = append(changed, s.Members[i])
			}
			i++
			j++
		}
	}
	return changed, removed
}

func (e endpointSpec) resource(svc xds.Service) *Resource {
	pod := e.pod
	if pod != "" {
		pod = ObjectKey{svc.Namespace, pod}.String()
	}
	fields := map[string]*structpb.Value{}
	for k, v := range map[string]string{xds.EndpointPod: pod, xds.EndpointUID: e.uid, xds.EndpointNode: e.node, xds.EndpointZone: e.zone} {
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
	return newResource(xds.EndpointName(svc.String(), e.addr), xds.EndpointType, ep)
}
