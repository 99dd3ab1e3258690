// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import "slices"

// Route is what is used of an Ingress or of a route of the Gateway API.
type Route struct {
	Key ObjectKey
	// Backends are the Services that it names, sorted, each once.
	Backends []ObjectKey
}

func (r *Route) equal(o *Route) bool {
	return r == o || r != nil && o != nil && r.Key == o.Key && slices.Equal(r.Backends, o.Backends)
}

// setRoute counts, for each Service, the routes that name it.
func (s *Store) setRoute(kind Kind, k ObjectKey, r *Route) {
	old := s.routes[kind][k]
	if old.equal(r) {
		return
	}
	if r != nil {
		if s.routes[kind] == nil {
			s.routes[kind] = map[ObjectKey]*Route{}
		}
		s.routes[kind][k] = r
		for _, svc := range r.Backends {
			if s.routed[svc]++; s.routed[svc] == 1 {
				s.changed[Topic{kind: topicExposure, key: svc}] = struct{}{}
			}
		}
	}
	if old == nil {
		return
	}
	if r == nil {
		delete(s.routes[kind], k)
	}
	for _, svc := range old.Backends {
		if s.routed[svc]--; s.routed[svc] == 0 {
			delete(s.routed, svc)
			s.changed[Topic{kind: topicExposure, key: svc}] = struct{}{}
		}
	}
}

func (s *Store) exposure(svc *Service) Exposure {
	if svc.External || s.routed[svc.Key] > 0 {
		return ExposureExternal
	}
	return ExposureService
}
