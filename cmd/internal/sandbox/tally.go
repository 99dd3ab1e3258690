// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"evenkeel.dev/sidecar"
)

// tally adds up what the sidecar counts, over time: an endpoint that is gone at the end had RPCs all the same, and a worker that was
// replaced starts again at zero.
type tally struct {
	endpoints map[endpointID]*endpointTally
}

// endpointID is an endpoint of a service; service is "" for an address that was reached without one.
type endpointID struct {
	service string
	addr    netip.AddrPort
}

type endpointTally struct {
	latest sidecar.EndpointSnapshot
	before EndpointReport // what workers before the present one counted
	gone   bool           // not in the latest snapshot
}

// add takes a snapshot, newer than those before.
func (t *tally) add(snap *sidecar.Snapshot) {
	if t.endpoints == nil {
		t.endpoints = make(map[endpointID]*endpointTally)
	}
	for _, ep := range t.endpoints {
		ep.gone = true
	}
	for _, svc := range snap.Services {
		for _, ep := range svc.Endpoints {
			t.addEndpoint(endpointID{svc.Name, ep.Addr}, ep)
		}
	}
	for _, ep := range snap.Direct {
		t.addEndpoint(endpointID{"", ep.Addr}, ep)
	}
}

func (t *tally) addEndpoint(id endpointID, now sidecar.EndpointSnapshot) {
	ep, ok := t.endpoints[id]
	if !ok {
		t.endpoints[id] = &endpointTally{latest: now}
		return
	}
	// Counters only grow: one that has not is another worker's, or that of an endpoint that went and came back.
	if now.Picked < ep.latest.Picked {
		ep.before.RPCs += ep.latest.Picked
		ep.before.Statuses = sum(ep.before.Statuses, ep.latest.RPCs)
	}
	ep.latest, ep.gone = now, false
}

// report writes the sums into r, sorted by service and address.
func (t *tally) report(r *Report) {
	r.Services, r.Other = []ServiceReport{}, []EndpointReport{}
	ids := slices.SortedFunc(maps.Keys(t.endpoints), func(a, b endpointID) int {
		return cmp.Or(strings.Compare(a.service, b.service), a.addr.Compare(b.addr))
	})
	for _, id := range ids {
		ep := t.endpoints[id].report()
		if id.service == "" {
			r.Other = append(r.Other, ep)
			continue
		}
		if n := len(r.Services); n == 0 || r.Services[n-1].Service != id.service {
			r.Services = append(r.Services, ServiceReport{Service: id.service})
		}
		svc := &r.Services[len(r.Services)-1]
		svc.RPCs += ep.RPCs
		svc.Endpoints = append(svc.Endpoints, ep)
	}
}

func (ep *endpointTally) report() EndpointReport {
	state := ep.latest.State
	if ep.gone {
		state = "gone"
	}
	return EndpointReport{
		Address: ep.latest.Addr.String(), Pod: ep.latest.Pod, State: state,
		RPCs:     ep.before.RPCs + ep.latest.Picked,
		Statuses: sum(ep.before.Statuses, ep.latest.RPCs),
	}
}

func sum(a, b map[string]uint64) map[string]uint64 {
	if len(a)+len(b) == 0 {
		return nil
	}
	all := maps.Clone(b)
	if all == nil {
		all = make(map[string]uint64, len(a))
	}
	for status, n := range a {
		all[status] += n
	}
	return all
}
