// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import "slices"

// portMatch says which ports of a Service's slices a dialled port stands for.
type portMatch struct {
	// names are the names of ports, shared by the Service and its slices.
	names map[string]struct{}
	// any is set for a headless Service without ports: its endpoints are dialled
	// on this port.
	any uint16
}

// portsOf resolves the port of "namespace/name:port". With a ClusterIP it is the
// Service's own port. Of a headless Service the client dials pods, so it is a
// target port, of which the slices know the named ones; only when no target port
// matches is it tried as the Service's own port.
//
// The match is by port name, not by number: pods of two generations may give
// the same name to different numbers, and each is then reached on its own.
func (s *Store) portsOf(svc *Service, port uint16) (portMatch, bool) {
	if svc.ExternalName != "" {
		return portMatch{}, false
	}
	if svc.AnyPort {
		return portMatch{any: port}, true
	}
	m := portMatch{names: map[string]struct{}{}}
	if svc.Headless {
		known := map[string]struct{}{}
		for _, p := range svc.Ports {
			known[p.Name] = struct{}{}
			if p.TargetPort == port {
				m.names[p.Name] = struct{}{}
			}
		}
		for _, sl := range s.slices[svc.Key] {
			for _, p := range sl.Ports {
				if _, ok := known[p.Name]; ok && p.Port == port {
					m.names[p.Name] = struct{}{}
				}
			}
		}
		if len(m.names) > 0 {
			return m, true
		}
	}
	for _, p := range svc.Ports {
		if p.Port == port {
			m.names[p.Name] = struct{}{}
		}
	}
	return m, len(m.names) > 0
}

// of returns the numbers that the match has in a slice.
func (m portMatch) of(sl *Slice) []uint16 {
	if m.any != 0 {
		return []uint16{m.any}
	}
	var ports []uint16
	for _, p := range sl.Ports {
		if _, ok := m.names[p.Name]; ok && p.Port != 0 {
			ports = append(ports, p.Port)
		}
	}
	return ports
}

// dialledPorts are the ports under which clients may know a Service: those for
// which portsOf has an answer, sorted. Of a Service with AnyPort they cannot be
// listed.
func (s *Store) dialledPorts(svc *Service) []uint16 {
	if svc.ExternalName != "" {
		return nil
	}
	var list []uint16
	for _, p := range svc.Ports {
		list = append(list, p.Port)
		if svc.Headless && p.TargetPort != 0 {
			list = append(list, p.TargetPort)
		}
	}
	if svc.Headless {
		for _, sl := range s.slices[svc.Key] {
			for _, p := range sl.Ports {
				if p.Port != 0 && slices.ContainsFunc(svc.Ports, func(sp ServicePort) bool { return sp.Name == p.Name }) {
					list = append(list, p.Port)
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
