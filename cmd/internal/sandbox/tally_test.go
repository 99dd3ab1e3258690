// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"evenkeel.dev/sidecar"
)

func endpoint(addr string, picked, ok uint64) sidecar.EndpointSnapshot {
	return sidecar.EndpointSnapshot{Addr: netip.MustParseAddrPort(addr), Pod: "shop/p", State: "ready", Picked: picked, RPCs: map[string]uint64{"OK": ok}}
}

func snapshotOf(endpoints ...sidecar.EndpointSnapshot) *sidecar.Snapshot {
	return &sidecar.Snapshot{Services: []sidecar.ServiceSnapshot{{Name: "shop/pricing:50051", Endpoints: endpoints}}}
}

func TestTally(t *testing.T) {
	const a, b = "10.0.0.1:1", "10.0.0.2:1"
	report := func(addr, state string, rpcs, ok uint64) EndpointReport {
		return EndpointReport{Address: addr, Pod: "shop/p", State: state, RPCs: rpcs, Statuses: map[string]uint64{"OK": ok}}
	}
	for _, tc := range []struct {
		name  string
		snaps []*sidecar.Snapshot
		want  []EndpointReport
		total uint64
	}{
		{
			"counters grow",
			[]*sidecar.Snapshot{snapshotOf(endpoint(a, 5, 4)), snapshotOf(endpoint(b, 7, 7), endpoint(a, 9, 9))},
			[]EndpointReport{report(a, "ready", 9, 9), report(b, "ready", 7, 7)},
			16,
		},
		{
			"an endpoint goes",
			[]*sidecar.Snapshot{snapshotOf(endpoint(a, 5, 4), endpoint(b, 7, 7)), snapshotOf(endpoint(b, 8, 8))},
			[]EndpointReport{report(a, "gone", 5, 4), report(b, "ready", 8, 8)},
			13,
		},
		{
			"another worker counts from zero",
			[]*sidecar.Snapshot{snapshotOf(endpoint(a, 5, 4)), snapshotOf(endpoint(a, 2, 2)), snapshotOf(endpoint(a, 3, 3))},
			[]EndpointReport{report(a, "ready", 8, 7)},
			8,
		},
		{
			"an endpoint goes, and comes back",
			[]*sidecar.Snapshot{snapshotOf(endpoint(a, 5, 5)), snapshotOf(), snapshotOf(endpoint(a, 1, 1))},
			[]EndpointReport{report(a, "ready", 6, 6)},
			6,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sum tally
			for _, snap := range tc.snaps {
				sum.add(snap)
			}
			var got Report
			sum.report(&got)
			want := []ServiceReport{{Service: "shop/pricing:50051", RPCs: tc.total, Endpoints: tc.want}}
			if diff := cmp.Diff(want, got.Services); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestReportText(t *testing.T) {
	var sum tally
	snap := snapshotOf(endpoint("10.0.0.1:1", 1, 1), endpoint("10.0.0.2:1", 3, 3))
	snap.Direct = []sidecar.EndpointSnapshot{{Addr: netip.MustParseAddrPort("[fd00::9]:50051"), Picked: 2, RPCs: map[string]uint64{"OK": 0, "UNAVAILABLE": 1, "CANCELLED": 1}}}
	sum.add(snap)
	report := Report{Redirect: "ebpf", Seconds: 1.26, Connections: &Connections{Redirected: 2, Direct: 1}}
	sum.report(&report)
	var b strings.Builder
	if err := report.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `evenkeel: 6 RPCs through the sidecar in 1.3 s
  shop/pricing:50051
    10.0.0.1:1               ready              1   25.0 %  shop/p
    10.0.0.2:1               ready              3   75.0 %  shop/p
  not a known Service: relayed to where the command meant
    [fd00::9]:50051                             2  100.0 %  failed: 1 CANCELLED, 1 UNAVAILABLE
  1 connection went past the sidecar, while it was away
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
