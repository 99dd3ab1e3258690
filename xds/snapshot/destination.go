// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"net/netip"
	"strings"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// maxAliases bounds a chain of ExternalName Services that point at each other.
const maxAliases = 8

// Destination answers what name means, nil if nothing is known of it, together
// with the topics that can change the answer.
func (s *Store) Destination(name xds.DestinationName) (*Resource, []Topic) {
	var topics topicList
	var d *api.Destination
	if name.Host == "" {
		d = s.address(name.Addr, &topics)
	} else if ip, err := netip.ParseAddr(name.Host); err == nil {
		d = s.address(netip.AddrPortFrom(ip, name.Port), &topics)
	} else {
		d = s.host(name.Namespace, name.Host, name.Port, &topics)
	}
	if d == nil {
		return nil, topics
	}
	return newResource(name.String(), xds.DestinationType, d), topics
}

type topicList []Topic

func (t *topicList) service(k ObjectKey)   { *t = append(*t, Topic{kind: topicService, key: k}) }
func (t *topicList) endpoints(k ObjectKey) { *t = append(*t, Topic{kind: topicEndpoints, key: k}) }
func (t *topicList) address(a netip.Addr)  { *t = append(*t, Topic{kind: topicAddress, addr: a}) }

func (s *Store) address(a netip.AddrPort, topics *topicList) *api.Destination {
	topics.address(a.Addr())
	if keys := s.byClusterIP[a.Addr()]; len(keys) > 0 {
		// Two Services with one ClusterIP exist only while a deleted one's address
		// is given to the next: the one whose port matches, then by name.
		var best *Service
		for i := range keys {
			svc := s.services[keys[i].key]
			if _, ok := s.portsOf(svc, a.Port()); ok && (best == nil || svc.Key.String() < best.Key.String()) {
				best = svc
			}
		}
		if best == nil {
			return nil
		}
		// Only a Service's own ports are asked for here, so its slices do not matter.
		return serviceDestination(best, a.Port())
	}
	pod := s.podAt(a.Addr())
	if pod == nil {
		return nil
	}
	return &api.Destination{Kind: api.Destination_POD, Endpoint: a.String(), Pod: pod.Key.String()}
}

// podAt returns the Pod that has the address now: of several, one that is not
// being deleted, then the youngest.
func (s *Store) podAt(a netip.Addr) *Pod {
	var best *Pod
	for _, c := range s.byPodIP[a] {
		if p := s.pods[c.key]; best == nil || p.younger(best) {
			best = p
		}
	}
	return best
}

func (p *Pod) younger(o *Pod) bool {
	switch {
	case p.Terminating != o.Terminating:
		return o.Terminating
	case !p.Created.Equal(o.Created):
		return p.Created.After(o.Created)
	}
	return p.Key.String() < o.Key.String()
}

func serviceDestination(svc *Service, port uint16) *api.Destination {
	policy := svc.Policy
	if policy == "" {
		policy = xds.PolicyLeastRequest
	}
	return &api.Destination{
		Kind:     api.Destination_SERVICE,
		Service:  xds.Service{Namespace: svc.Key.Namespace, Name: svc.Key.Name, Port: port}.String(),
		Headless: svc.Headless,
		Policy:   policy,
	}
}

// host walks the search list of a pod in namespace, as its resolver does
// (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#namespaces-of-services):
// the first name that exists is the one that is meant.
func (s *Store) host(namespace, host string, port uint16, topics *topicList) *api.Destination {
	for _, suffix := range []string{"." + namespace + ".svc." + s.domain, ".svc." + s.domain, "." + s.domain, ""} {
		if d, found := s.fqdn(host+suffix, port, topics, maxAliases); found {
			return d
		}
	}
	return nil
}

// fqdn resolves a full name. found says that the name exists in the cluster's
// DNS, though the destination may still be unknown (no such port).
func (s *Store) fqdn(name string, port uint16, topics *topicList, aliases int) (d *api.Destination, found bool) {
	rest, ok := strings.CutSuffix(name, "."+s.domain)
	if !ok {
		return nil, false
	}
	labels := strings.Split(rest, ".")
	switch n := len(labels); {
	case n == 3 && labels[2] == "svc": // service.namespace.svc
		return s.serviceHost(ObjectKey{labels[1], labels[0]}, port, topics, aliases)
	case n == 4 && labels[3] == "svc": // hostname.service.namespace.svc
		return s.podHost(ObjectKey{labels[2], labels[1]}, labels[0], port, topics)
	case n == 3 && labels[2] == "pod": // 10-244-1-7.namespace.pod
		return s.dashedPod(labels[1], labels[0], port, topics)
	}
	return nil, false
}

func (s *Store) serviceHost(k ObjectKey, port uint16, topics *topicList, aliases int) (*api.Destination, bool) {
	topics.service(k)
	svc := s.services[k]
	if svc == nil {
		return nil, false
	}
	if svc.ExternalName != "" {
		// A CNAME. It may lead back into the cluster, to a Service that is balanced.
		if aliases > 0 {
			if d, found := s.fqdn(svc.ExternalName, port, topics, aliases-1); found {
				return d, true
			}
		}
		return &api.Destination{Kind: api.Destination_EXTERNAL, ExternalName: svc.ExternalName}, true
	}
	if svc.Headless {
		topics.endpoints(k) // they know the numbers of named target ports
	}
	if _, ok := s.portsOf(svc, port); !ok {
		return nil, true
	}
	return serviceDestination(svc, port), true
}

func (s *Store) podHost(k ObjectKey, hostname string, port uint16, topics *topicList) (*api.Destination, bool) {
	topics.service(k)
	topics.endpoints(k)
	svc := s.services[k]
	if svc == nil || !svc.Headless {
		return nil, false // only headless Services have names for their endpoints
	}
	e, ok := s.hostsOf(svc)[hostname]
	if !ok {
		return nil, false
	}
	d := &api.Destination{Kind: api.Destination_POD, Endpoint: netip.AddrPortFrom(e.Addr, port).String()}
	if e.Pod != "" {
		d.Pod = ObjectKey{k.Namespace, e.Pod}.String()
	}
	return d, true
}

func (s *Store) dashedPod(namespace, dashed string, port uint16, topics *topicList) (*api.Destination, bool) {
	a, ok := parseDashed(dashed)
	if !ok {
		return nil, false
	}
	topics.address(a)
	pod := s.podAt(a)
	if pod == nil || pod.Key.Namespace != namespace {
		return nil, false
	}
	return &api.Destination{Kind: api.Destination_POD, Endpoint: netip.AddrPortFrom(a, port).String(), Pod: pod.Key.String()}, true
}
