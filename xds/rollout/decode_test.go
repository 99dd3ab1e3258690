// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

func TestDecode(t *testing.T) {
	got, err := decode(&api.Report{
		Services: []*api.ServiceReport{{Service: pricing, Active: true, Destinations: []string{"name/shop/pricing:50051"}, Endpoints: []*api.EndpointReport{{
			Address: "[::ffff:10.244.0.1]:50051", Uid: "u", Answer: api.EndpointReport_FAILED, Draining: true, Picked: true, InFlight: 2, YoungestMs: 1500, Failed: 3, Replayed: 4,
		}}}, {Service: stock, Gone: true}},
		Direct:            []*api.EndpointReport{{Address: "[2001:db8::1]:1", Gone: true, Answer: 99}},
		DirectConnections: &api.DirectConnections{Destinations: []*api.DirectConnections_Destination{{Address: "10.96.0.4:50051", Count: 2}, {Address: "10.96.0.5:50051"}}},
		Own:               &api.OwnPod{Ready: true, Draining: true, Drained: true, DrainStreamsMs: 1 << 63},
		Holds:             []*api.HoldEnd{{Hold: "ready", WaitedMs: 1200, Reason: "timeout", Missing: []string{"shop/web-1"}, Record: true}},
		Leaving:           true,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &report{
		services: []serviceReport{
			{
				svc: parseService(t, pricing), active: true, destinations: []string{"name/shop/pricing:50051"},
				endpoints: []endpointReport{{id: idOf(netip.MustParseAddrPort("10.244.0.1:50051"), "u"), endpoint: endpoint{
					answer: failed, draining: true, picked: true, inFlight: 2, youngest: 1500 * time.Millisecond, failed: 3, replayed: 4,
				}}},
			},
			{svc: parseService(t, stock), gone: true},
		},
		direct:  []endpointReport{{id: idOf(netip.MustParseAddrPort("[2001:db8::1]:1"), ""), gone: true}},
		dialled: []dialled{{netip.MustParseAddrPort("10.96.0.4:50051"), 2}},
		own:     &own{true, true, true, 24 * time.Hour},
		holds:   []holdEnd{{"ready", 1200 * time.Millisecond, "timeout", []string{"shop/web-1"}, true}},
		leaving: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	endpoint := func(e *api.EndpointReport) *api.Report {
		return says(sees(stock), sees(pricing, at(1, "x-1"), e))
	}
	hold := func(h *api.HoldEnd) *api.Report { return &api.Report{Holds: []*api.HoldEnd{h}} }
	for field, r := range map[string]*api.Report{
		"services[1].service: ":                            says(sees(pricing), &api.ServiceReport{Service: "pricing"}),
		"services[0].destinations: ":                       says(using(pricing, true, "Pricing:1")),
		"services[1].endpoints[1].address: ":               endpoint(&api.EndpointReport{Address: "10.0.0.1"}),
		"services[1].endpoints[1].address: \"10.0.0.1:0\"": endpoint(&api.EndpointReport{Address: "10.0.0.1:0"}),
		"services[1].endpoints[1].address: \"[fe80::1%e":   endpoint(&api.EndpointReport{Address: "[fe80::1%eth0]:1"}),
		"services[1].endpoints[1].uid: 513 bytes":          endpoint(&api.EndpointReport{Address: "10.0.0.1:1", Uid: strings.Repeat("x", 513)}),
		"direct[0].address: ":                              {Direct: []*api.EndpointReport{{}}},
		"direct_connections.destinations[0].address: ":     {DirectConnections: &api.DirectConnections{Destinations: []*api.DirectConnections_Destination{{Address: "x"}}}},
		"holds[0].hold: \"x\"":                             hold(&api.HoldEnd{Hold: "x", Reason: "timeout"}),
		"holds[0].reason: \"\"":                            hold(&api.HoldEnd{Hold: "drain"}),
		"holds[0].missing: it has characters":              hold(&api.HoldEnd{Hold: "drain", Reason: "timeout", Missing: []string{"a\nb"}}),
	} {
		_, err := decode(r)
		if !errors.Is(err, ErrReport) || !strings.HasPrefix(fmt.Sprint(err), ErrReport.Error()+": "+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// What is too much of something is left out; the stream goes on.
func TestDecodeLeavesOut(t *testing.T) {
	r := &api.Report{
		Services:          []*api.ServiceReport{using(pricing, true, strings.Split(strings.Repeat("a:1 ", 300)+"a:1", " ")...)},
		DirectConnections: &api.DirectConnections{},
	}
	for i := range 5000 {
		r.DirectConnections.Destinations = append(r.DirectConnections.Destinations, &api.DirectConnections_Destination{Address: fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255), Count: 1})
	}
	for i := range 100 {
		r.Holds = append(r.Holds, &api.HoldEnd{Hold: "drain", Reason: "timeout", WaitedMs: uint64(i), Missing: make([]string, 100)})
	}
	d, err := decode(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.services[0].destinations) != maxDestinations || len(d.dialled) != maxDirect || len(d.holds) != maxHolds || len(d.holds[0].missing) != maxNames {
		t.Errorf("%d destinations, %d dialled, %d holds, %d missing", len(d.services[0].destinations), len(d.dialled), len(d.holds), len(d.holds[0].missing))
	}
	if got := d.holds[len(d.holds)-1].waited; got != 99*time.Millisecond {
		t.Errorf("the last hold that is kept took %s", got)
	}
}

// Whatever is decoded can be taken in, and leaves the bookkeeping right.
func FuzzReport(f *testing.F) {
	for _, r := range []*api.Report{
		says(sees(pricing, at(1, "pricing-1", isConnected)), idle(sees(stock))), readyEnd("timeout", "shop/web-1"),
		{Leaving: true},
		{Direct: []*api.EndpointReport{at(1, "pricing-1", inFlight(1, 0))}, Own: &api.OwnPod{Draining: true}},
	} {
		raw, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, raw)
	}
	f.Fuzz(func(t *testing.T, a, c []byte) {
		b := newBench(t)
		b.server("pricing-1", 1, pricing)
		b.st.cfg.MaxServices, b.st.cfg.MaxEndpoints = 3, 5
		for i, raw := range [][]byte{a, c, a} {
			r := &api.Report{}
			if proto.Unmarshal(raw, r) != nil {
				return
			}
			d, err := decode(r)
			if err != nil {
				if !errors.Is(err, ErrReport) {
					t.Fatal(err)
				}
				return
			}
			if i != 1 { // the second is a change on the first one's stream
				b.ids++
				b.tracks["pricing-1"] = b.ids
				b.st.trackOpened(b.ids, node("pricing-1"), &lastStatus{}, b.now)
			}
			if _, err := b.st.report(b.ids, d, b.now); err != nil {
				t.Fatal(err)
			}
			b.status("pricing-1")
			s := b.st.sidecars["uid-pricing-1"]
			n := len(s.direct)
			for _, u := range s.uses {
				n += len(u.endpoints)
			}
			if n != s.kept || n > 5 || len(s.uses) > 3 {
				t.Fatalf("%d endpoints are kept, %d counted; %d services", n, s.kept, len(s.uses))
			}
			b.pass(xds.ReportInterval)
		}
	})
}
