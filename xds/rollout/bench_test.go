// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// fleetDirectory answers for pods 10.244.x.y, all of one service.
type fleetDirectory struct {
	members map[string]snapshot.Membership
}

func (d fleetDirectory) Membership(pod snapshot.ObjectKey) (snapshot.Membership, bool) {
	m, ok := d.members[pod.Name]
	return m, ok
}
func (fleetDirectory) SetDraining(string, snapshot.Drain)             {}
func (fleetDirectory) ServicesAt(netip.AddrPort) []snapshot.ObjectKey { return nil }

// newFleet has servers of one service, and clients that are active on it and
// have each said something of each server.
func newFleet(b *testing.B, servers, clients int) (*Tracker, fleetDirectory) {
	b.Helper()
	t, err := New(Config{Logger: slog.New(slog.DiscardHandler), Replica: "xds-1"})
	if err != nil {
		b.Fatal(err)
	}
	t.state.calm = time.Now().Add(-time.Second)
	d := fleetDirectory{map[string]snapshot.Membership{}}
	svc := parseService(b, pricing)
	var endpoints []*api.EndpointReport
	for i := range servers {
		pod := fmt.Sprintf("pricing-%d", i)
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 50051)
		d.members[pod] = snapshot.Membership{
			UID: "uid-" + pod, AppReady: true, IPs: []netip.Addr{addr.Addr()},
			Services: []snapshot.PodService{{Service: svc, Addr: addr, State: corepb.HealthStatus_UNHEALTHY}},
		}
		endpoints = append(endpoints, &api.EndpointReport{Address: addr.String(), Uid: "uid-" + pod, Answer: api.EndpointReport_CONNECTED})
		t.TrackOpened(uint64(i+1), node(pod), silentSink{})
		if err := t.TrackReport(uint64(i+1), &api.Report{}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range clients {
		id := uint64(1_000_000 + i)
		t.TrackOpened(id, node(fmt.Sprintf("web-%d", i)), silentSink{})
		if err := t.TrackReport(id, &api.Report{Services: []*api.ServiceReport{sees(pricing, endpoints...)}, Own: &api.OwnPod{Ready: true}}); err != nil {
			b.Fatal(err)
		}
	}
	return t, d
}

// BenchmarkHeartbeats is what 5,000 sidecars cost in one ReportInterval when
// nothing happens: an empty Report of each, and a status for each.
func BenchmarkHeartbeats(b *testing.B) {
	const n = 5000
	t, d := newFleet(b, 20, n)
	for _, c := range t.state.sidecars {
		c.pod.own.ready = true
	}
	empty := &api.Report{}
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	for b.Loop() {
		for i := range n {
			if err := t.TrackReport(uint64(1_000_000+i), empty); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range t.state.sidecars {
			c.pod.beat = time.Time{}
		}
		t.round(d, false)
	}
	b.ReportMetric(100*b.Elapsed().Seconds()/float64(b.N)/xds.ReportInterval.Seconds(), "%core")
	b.ReportMetric(float64(mem.HeapAlloc)/n/1024, "KiB/sidecar")
}

// BenchmarkTransition judges 100 pods in transition of which 100 active sidecars
// are clients: what one change costs in the middle of a rollout.
func BenchmarkTransition(b *testing.B) {
	for _, n := range []struct{ pods, clients int }{{100, 100}, {10, 5000}} {
		b.Run(fmt.Sprintf("pods=%d/clients=%d", n.pods, n.clients), func(b *testing.B) {
			t, d := newFleet(b, n.pods, n.clients)
			t.round(d, true)
			if c := t.state.sidecars["uid-pricing-1"]; !c.pod.propagated || c.pod.ready.clients != n.clients {
				b.Fatalf("it is not propagated: %+v", c.pod.ready)
			}
			for b.Loop() {
				t.round(d, true)
				if time.Since(t.state.sidecars["uid-web-0"].heard) > xds.Lease-time.Second { // leases go on meanwhile
					for i := range n.clients {
						_ = t.TrackReport(uint64(1_000_000+i), &api.Report{})
					}
				}
			}
		})
	}
}

// BenchmarkFirstReport is a sidecar's first Report with 1,000 endpoints, as after
// a restart of this replica.
func BenchmarkFirstReport(b *testing.B) {
	t, _ := newFleet(b, 0, 1)
	var endpoints []*api.EndpointReport
	for i := range 1000 {
		endpoints = append(endpoints, &api.EndpointReport{Address: fmt.Sprintf("10.244.%d.%d:50051", i>>8, i&255), Uid: fmt.Sprintf("0c4d9c1e-8d6f-4b0e-9a53-%012d", i)})
	}
	r := &api.Report{Services: []*api.ServiceReport{sees(pricing, endpoints...)}}
	for b.Loop() {
		t.TrackOpened(1_000_000, node("web-0"), silentSink{})
		if err := t.TrackReport(1_000_000, r); err != nil {
			b.Fatal(err)
		}
	}
}
