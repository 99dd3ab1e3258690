// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"
)

// Topic is what a derived resource depends on. Its fields are private: topics
// are only compared.
type Topic struct {
	kind topicKind
	key  ObjectKey
	addr netip.Addr
}

type topicKind uint8

const (
	topicService   topicKind = iota + 1 // the Service object
	topicEndpoints                      // its slices, the Pods and Nodes that they refer to
	topicAddress                        // who has an address
	topicExposure                       // whether routes name the Service
	topicPod                            // a Pod's Membership, beside what its services say
)

// Config configures a Store.
type Config struct {
	// ClusterDomain is the cluster's DNS domain. Default: cluster.local.
	ClusterDomain string
}

// Store keeps the inputs. It is owned by one goroutine at a time.
type Store struct {
	domain string

	services map[ObjectKey]*Service
	slices   map[ObjectKey]map[ObjectKey]*Slice // by Service, by slice
	sliceOf  map[ObjectKey]ObjectKey            // slice → Service
	pods     map[ObjectKey]*Pod
	nodes    map[string]*Node
	routes   map[Kind]map[ObjectKey]*Route
	routed   map[ObjectKey]int // Service → how many routes name it

	byClusterIP index[netip.Addr]
	byPodIP     index[netip.Addr]
	// byEndpoint: address → the Services whose slices have it, counted by endpoint.
	byEndpoint index[netip.Addr]
	// byPod: Pod → the Services whose slices refer to it, counted by endpoint.
	byPod index[ObjectKey]
	// bySelector: one pair of each selector → the Services that have it.
	bySelector index[selectorPair]
	podOf      map[string]*Pod // by UID

	// gone holds the UIDs of Pods that were deleted while a slice still referred
	// to them, until none does: such an endpoint must not look ready again
	// merely because its Pod is unknown now. byUID: UID → the Services whose
	// slices refer to it.
	byUID index[string]
	gone  map[string]struct{}

	draining map[string]struct{} // UIDs of Pods for which SetDraining is on

	hosts   map[ObjectKey]hostTable // lazily built, per Service
	changed map[Topic]struct{}
	left    []string // UIDs of Pods that are gone, for Drain
	came    []string // UIDs of Pods that are new, for Drain
	version uint64
}

// NewStore returns an empty Store.
func NewStore(cfg Config) *Store {
	if cfg.ClusterDomain == "" {
		cfg.ClusterDomain = "cluster.local"
	}
	return &Store{
		domain:      cfg.ClusterDomain,
		services:    map[ObjectKey]*Service{},
		slices:      map[ObjectKey]map[ObjectKey]*Slice{},
		sliceOf:     map[ObjectKey]ObjectKey{},
		pods:        map[ObjectKey]*Pod{},
		nodes:       map[string]*Node{},
		routes:      map[Kind]map[ObjectKey]*Route{},
		routed:      map[ObjectKey]int{},
		byClusterIP: index[netip.Addr]{},
		byPodIP:     index[netip.Addr]{},
		byEndpoint:  index[netip.Addr]{},
		byPod:       index[ObjectKey]{},
		bySelector:  index[selectorPair]{},
		podOf:       map[string]*Pod{},
		byUID:       index[string]{},
		gone:        map[string]struct{}{},
		draining:    map[string]struct{}{},
		hosts:       map[ObjectKey]hostTable{},
		changed:     map[Topic]struct{}{},
	}
}

// Delta is what a number of changes touched.
type Delta struct {
	// Version counts the drains that had something to tell.
	Version uint64
	Topics  map[Topic]struct{}
	// PodsCame and PodsLeft are UIDs. A Pod that is replaced by one of the same
	// name is in both lists.
	PodsCame []string
	PodsLeft []string
}

// Drain returns what changed since it was last called.
func (s *Store) Drain() Delta {
	if len(s.changed) > 0 {
		s.version++
	}
	d := Delta{Version: s.version, Topics: s.changed, PodsCame: s.came, PodsLeft: s.left}
	s.changed, s.came, s.left = map[Topic]struct{}{}, nil, nil
	return d
}

// Apply takes in a change. The same change twice is no change.
func (s *Store) Apply(c Change) {
	switch c.Kind {
	case KindService:
		s.setService(c.Key, c.Service)
	case KindSlice:
		s.setSlice(c.Key, c.Slice)
	case KindPod:
		s.setPod(c.Key, c.Pod)
	case KindNode:
		s.setNode(c.Key.Name, c.Node)
	case KindIngress, KindHTTPRoute, KindGRPCRoute, KindTCPRoute, KindTLSRoute:
		s.setRoute(c.Kind, c.Key, c.Route)
	}
}

// PodUID returns the UID of the Pod of that name.
func (s *Store) PodUID(k ObjectKey) (string, bool) {
	p, ok := s.pods[k]
	if !ok {
		return "", false
	}
	return p.UID, true
}

// PodNode returns the node that the Pod runs on, empty if either is unknown.
func (s *Store) PodNode(k ObjectKey) string {
	if p, ok := s.pods[k]; ok {
		return p.Node
	}
	return ""
}

// Counts returns the number of objects of each kind.
func (s *Store) Counts() map[Kind]int {
	counts := map[Kind]int{
		KindService: len(s.services), KindSlice: len(s.sliceOf), KindPod: len(s.pods), KindNode: len(s.nodes),
	}
	for kind, routes := range s.routes {
		counts[kind] = len(routes)
	}
	return counts
}

func (s *Store) setService(k ObjectKey, svc *Service) {
	old := s.services[k]
	if old == svc || old != nil && svc != nil && old.equal(svc) {
		return
	}
	if old != nil {
		for _, a := range old.ClusterIPs {
			s.byClusterIP.remove(a, k)
			s.touchAddress(a)
		}
		s.unselect(old)
	}
	if svc == nil {
		delete(s.services, k)
	} else {
		s.services[k] = svc
		for _, a := range svc.ClusterIPs {
			s.byClusterIP.add(a, k)
			s.touchAddress(a)
		}
		s.choose(svc)
	}
	s.changed[Topic{kind: topicService, key: k}] = struct{}{}
	s.touchEndpoints(k)
}

func (s *Store) setSlice(k ObjectKey, sl *Slice) {
	owner, had := s.sliceOf[k]
	var old *Slice
	if had {
		old = s.slices[owner][k]
	}
	if old == sl || old != nil && sl != nil && old.equal(sl) {
		return
	}
	// The new references first: a Pod that both refer to must not lose its
	// tombstone in between.
	if sl != nil {
		svc := ObjectKey{k.Namespace, sl.Service}
		s.refer(svc, sl)
		s.touchEndpoints(svc)
	}
	if old != nil {
		s.unrefer(owner, old)
		s.touchEndpoints(owner)
		delete(s.slices[owner], k)
		if len(s.slices[owner]) == 0 {
			delete(s.slices, owner)
		}
		delete(s.sliceOf, k)
	}
	if sl != nil {
		svc := ObjectKey{k.Namespace, sl.Service}
		if s.slices[svc] == nil {
			s.slices[svc] = map[ObjectKey]*Slice{}
		}
		s.slices[svc][k] = sl
		s.sliceOf[k] = svc
	}
}

func (s *Store) refer(svc ObjectKey, sl *Slice) {
	for i := range sl.Endpoints {
		ep := &sl.Endpoints[i]
		s.byEndpoint.add(ep.Addr, svc)
		if ep.Pod != "" {
			s.byPod.add(ObjectKey{sl.Key.Namespace, ep.Pod}, svc)
		}
		if ep.PodUID != "" {
			s.byUID.add(ep.PodUID, svc)
		}
	}
}

func (s *Store) unrefer(svc ObjectKey, sl *Slice) {
	for i := range sl.Endpoints {
		ep := &sl.Endpoints[i]
		s.byEndpoint.remove(ep.Addr, svc)
		if ep.Pod != "" {
			s.byPod.remove(ObjectKey{sl.Key.Namespace, ep.Pod}, svc)
		}
		if ep.PodUID == "" {
			continue
		}
		if s.byUID.remove(ep.PodUID, svc); len(s.byUID[ep.PodUID]) == 0 {
			delete(s.gone, ep.PodUID)
		}
	}
}

func (s *Store) setPod(k ObjectKey, p *Pod) {
	old := s.pods[k]
	if old == p || old != nil && p != nil && old.equal(p) {
		return
	}
	if old != nil {
		for _, a := range old.addresses() {
			s.byPodIP.remove(a, k)
			s.touchAddress(a)
		}
		if s.podOf[old.UID] == old {
			delete(s.podOf, old.UID)
		}
		if p == nil || p.UID != old.UID {
			s.left = append(s.left, old.UID)
			delete(s.draining, old.UID)
			if len(s.byUID[old.UID]) > 0 {
				s.gone[old.UID] = struct{}{}
				s.touchReferrers(s.byUID[old.UID])
			}
		}
	}
	if p == nil {
		delete(s.pods, k)
	} else {
		s.pods[k] = p
		if p.UID != "" {
			s.podOf[p.UID] = p
		}
		// A watch that starts anew may show a Pod again whose end it had reported.
		if _, was := s.gone[p.UID]; was {
			delete(s.gone, p.UID)
			s.touchReferrers(s.byUID[p.UID])
		}
		for _, a := range p.addresses() {
			s.byPodIP.add(a, k)
			s.touchAddress(a)
		}
		if old == nil || old.UID != p.UID {
			s.came = append(s.came, p.UID)
		}
	}
	s.changed[Topic{kind: topicPod, key: k}] = struct{}{}
	s.touchReferrers(s.byPod[k])
}

// addresses are those that are the Pod's own.
func (p *Pod) addresses() []netip.Addr {
	if p.HostNetwork {
		return nil
	}
	return p.IPs
}

func (s *Store) setNode(name string, n *Node) {
	old := s.nodes[name]
	zone := func(n *Node) string {
		if n == nil {
			return ""
		}
		return n.Zone
	}
	if n == nil {
		delete(s.nodes, name)
	} else {
		s.nodes[name] = n
	}
	if zone(old) == zone(n) {
		return
	}
	// Rare: a node joins, leaves or is relabelled. Only endpoints whose slice
	// has no zone look at the node's.
	for svc, byName := range s.slices {
		if refersToNode(byName, name) {
			s.touchEndpoints(svc)
		}
	}
}

func refersToNode(byName map[ObjectKey]*Slice, node string) bool {
	for _, sl := range byName {
		for i := range sl.Endpoints {
			if sl.Endpoints[i].Node == node && sl.Endpoints[i].Zone == "" {
				return true
			}
		}
	}
	return false
}

func (s *Store) touchEndpoints(svc ObjectKey) {
	s.changed[Topic{kind: topicEndpoints, key: svc}] = struct{}{}
	delete(s.hosts, svc)
}

func (s *Store) touchReferrers(services []counted) {
	for i := range services {
		s.touchEndpoints(services[i].key)
	}
}

func (s *Store) touchAddress(a netip.Addr) {
	s.changed[Topic{kind: topicAddress, addr: a}] = struct{}{}
}
