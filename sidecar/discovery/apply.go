// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"errors"
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"evenkeel.dev/xds"
)

// maxFaults bounds how many malformed resources a NACK lists.
const maxFaults = 8

// apply takes one response. Every good resource in it counts; the error names
// the malformed ones, whose last good versions stay.
func (s *state) apply(res *discoveryv3.DeltaDiscoveryResponse) error {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	switch typ := res.GetTypeUrl(); typ {
	case xds.DestinationType:
		for _, r := range res.GetResources() {
			fault(s.applyDestination(r))
		}
		for _, name := range res.GetRemovedResources() {
			if d, ok := s.byName[name]; ok {
				s.unknown(d)
			} else {
				s.answered(name)
			}
		}
	case xds.EndpointType:
		// Removals first: a response that moves an address between two spellings
		// of one service must not end without it.
		for _, name := range res.GetRemovedResources() {
			fault(s.applyRemoved(name))
		}
		for _, r := range res.GetResources() {
			fault(s.applyEndpoint(r))
		}
	default:
		fault(fmt.Errorf("type_url: %s was not subscribed to", clip(typ)))
	}
	return joinFaults(faults)
}

func (s *state) applyDestination(r *discoveryv3.Resource) error {
	d, ok := s.byName[r.GetName()]
	if !ok {
		if s.answered(r.GetName()) {
			return nil
		}
		// Unsubscribed while the answer was on its way, or not ours at all.
		// Either way nobody waits for it; a malformed name is still said.
		_, err := xds.ParseDestinationName(r.GetName())
		return err
	}
	a, err := decodeDestination(r)
	if err != nil {
		return err
	}
	if a.note != nil {
		s.log.Warn("resource is used in part", "error", a.note)
	}
	s.answer(d, a, r.GetVersion())
	return nil
}

func (s *state) applyEndpoint(r *discoveryv3.Resource) error {
	name, err := xds.ParseEndpointResource(r.GetName())
	if err != nil {
		return err
	}
	svc, ok := s.services[name.Service.String()]
	if !ok || svc.barrier != "" {
		return nil // unsubscribed meanwhile
	}
	if name.Collection() {
		s.whole(svc, r.GetVersion())
		return nil
	}
	spec, err := decodeEndpoint(r, name.Addr)
	if err != nil {
		return err
	}
	s.upsert(svc, spec, r.GetVersion())
	return nil
}

func (s *state) applyRemoved(resource string) error {
	name, err := xds.ParseEndpointResource(resource)
	if err != nil {
		return err
	}
	svc, ok := s.services[name.Service.String()]
	switch {
	case !ok, svc.barrier != "":
	case name.Collection():
		s.deleted(svc)
	default:
		s.remove(svc, name.Addr)
	}
	return nil
}

func joinFaults(faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	var more string
	if n := len(faults) - maxFaults; n > 0 {
		faults, more = faults[:maxFaults], fmt.Sprintf("; and %d more", n)
	}
	lines := make([]string, len(faults))
	for i, err := range faults {
		lines[i] = err.Error()
	}
	// The text becomes a protobuf string, which must be UTF-8, in a NACK.
	return errors.New(strings.ToValidUTF8(strings.Join(lines, "; "), "?") + more)
}
