// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/xds/api"
)

// using is the ServiceReport of one that reaches a service by these names.
func using(service string, active bool, names ...string) *api.ServiceReport {
	s := &api.ServiceReport{Service: service, Active: active}
	for _, n := range names {
		s.Destinations = append(s.Destinations, "name/shop/"+n)
	}
	return s
}

func (b *bench) wantUpstreams(why, pod string, want ...string) {
	b.t.Helper()
	var got []string
	for _, u := range b.st.learned.of(b.st.sidecars["uid-"+pod], b.now) {
		got = append(got, strings.TrimPrefix(u, "name/shop/"))
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %s is told of %q, want %q", why, pod, got, want)
	}
}

func TestUpstreams(t *testing.T) {
	b := newBench(t)
	b.track("web-1", says(using(pricing, true, "pricing:50051", "pricing.shop:50051"), using(stock, false, "stock:50051")))
	b.wantUpstreams("what it uses itself is no news", "web-1")
	b.track("web-2", says())
	b.wantUpstreams("used by another; what is only kept connected is not", "web-2", "pricing.shop:50051", "pricing:50051")
	b.track("cart-1", says())
	b.wantUpstreams("another workload", "cart-1")

	b.report("web-2", says(using(pricing, true, "pricing:50051")))
	b.wantUpstreams("used by both", "web-1", "pricing:50051")
	b.report("web-1", says(using(pricing, false, "pricing:50051"), using(stock, true, "stock:50051")))
	b.wantUpstreams("idle now, but used before; one name no more, another since", "web-2", "pricing.shop:50051", "pricing:50051", "stock:50051")

	b.st.podsLeft([]string{"uid-web-1", "uid-web-2"}, b.now)
	b.track("web-3", says())
	b.pass(time.Hour)
	b.track("web-3", says())
	b.wantUpstreams("all are gone since an hour", "web-3", "pricing.shop:50051", "pricing:50051", "stock:50051")
	b.pass(time.Second)
	b.track("web-3", says())
	b.wantUpstreams("and longer", "web-3")
	if n := len(b.st.learned.workloads["shop/deployment/web"].names); n != 0 {
		t.Errorf("%d names are kept", n)
	}
}

// The names are part of the status.
func TestUpstreamsAreTold(t *testing.T) {
	b := newBench(t)
	b.track("web-1", says(using(pricing, true, "pricing:50051")))
	b.track("web-2", says())
	if s := b.status("web-2"); !slices.Equal(s.GetUpstreams(), []string{"name/shop/pricing:50051"}) {
		t.Errorf("told: %v", s.GetUpstreams())
	}
}

// Beyond the bounds the least recently used goes, and is counted.
func TestLearnedIsBounded(t *testing.T) {
	b := newBench(t)
	for i := range 70 {
		b.pass(time.Second)
		b.track("web-1", says(using(pricing, true, fmt.Sprintf("n%d:1", i))))
	}
	b.track("web-2", says())
	got := b.st.learned.of(b.st.sidecars["uid-web-2"], b.now)
	if len(got) != maxUpstreams || slices.Contains(got, "name/shop/n5:1") || !slices.Contains(got, "name/shop/n6:1") {
		t.Errorf("%d names: %q", len(got), got)
	}
	if n := len(b.st.out.overflows); n != 6 || b.st.out.overflows[0] != (overflow{"upstreams", "shop/web-1", true}) || b.st.out.overflows[1].first {
		t.Errorf("counted: %+v", b.st.out.overflows)
	}

	for i := range maxWorkloads {
		b.pass(time.Second)
		b.learned(i)
	}
	if n := len(b.st.learned.workloads); n != maxWorkloads {
		t.Errorf("%d workloads are kept", n)
	}
	if b.st.learned.workloads["shop/deployment/web"] != nil {
		t.Error("the least recently used is kept")
	}
}

func (b *bench) learned(i int) {
	b.t.Helper()
	pod := fmt.Sprintf("w%d-1", i)
	b.track(pod, says(using(pricing, true, "pricing:50051")))
	b.wantUpstreams("its only pod", pod)
}

// What a sidecar says is bounded, and the rest goes on.
func TestReportsAreBounded(t *testing.T) {
	b := newBench(t)
	b.st.cfg.MaxServices, b.st.cfg.MaxEndpoints = 2, 3
	b.track("web-1", says(
		sees(pricing, at(1, "pricing-1"), at(2, "pricing-2")),
		sees(stock, at(3, "stock-1"), at(4, "stock-2")),
		sees("shop/cart:50051", at(5, "cart-1")),
	))
	b.report("web-1", &api.Report{Direct: []*api.EndpointReport{at(6, "x-1")}})
	c := b.st.sidecars["uid-web-1"]
	kept := func() int {
		n := len(c.direct)
		for _, u := range c.uses {
			n += len(u.endpoints)
		}
		return n
	}
	if len(c.uses) != 2 || kept() != 3 || c.kept != 3 {
		t.Errorf("%d services, %d endpoints (%d counted)", len(c.uses), kept(), c.kept)
	}
	var what []string
	for _, o := range b.st.out.overflows {
		what = append(what, fmt.Sprint(o.what, o.first))
	}
	if got := strings.Join(what, " "); got != "endpointstrue servicesfalse endpointsfalse" {
		t.Errorf("counted: %s", got)
	}
	// Room is made by what goes, one by one and with its service.
	b.report("web-1", says(sees(pricing, at(1, "pricing-1", isGone), at(7, "pricing-7"))))
	if kept() != 3 || c.kept != 3 {
		t.Errorf("after one went: %d endpoints (%d counted)", kept(), c.kept)
	}
	b.report("web-1", says(&api.ServiceReport{Service: pricing, Gone: true}, sees("shop/cart:50051", at(5, "cart-1"))))
	if len(c.uses) != 2 || kept() != 2 || c.kept != 2 {
		t.Errorf("after a service went: %d services, %d endpoints (%d counted)", len(c.uses), kept(), c.kept)
	}
	b.track("web-1", says(sees(pricing, at(1, "pricing-1"))))
	b.pass(firstPage)
	b.beat("web-1")
	if kept() != 1 || c.kept != 1 {
		t.Errorf("a new stream: %d endpoints (%d counted)", kept(), c.kept)
	}
	b.report("web-1", &api.Report{Leaving: true})
	if c.kept != 0 || len(c.uses) != 0 {
		t.Errorf("it has left: %d services, %d counted", len(c.uses), c.kept)
	}
}

// Nothing is left of sidecars that are gone, but what people may ask about.
func TestForgotten(t *testing.T) {
	b := newBench(t)
	full := func(pod string) {
		b.ads(pod, pricing, stock)
		b.track(pod, &api.Report{
			Services:          []*api.ServiceReport{sees(pricing, at(1, "pricing-1", func(e *api.EndpointReport) { e.Failed = 1 }))},
			Direct:            []*api.EndpointReport{at(1, "pricing-1", inFlight(1, 0))},
			DirectConnections: &api.DirectConnections{Destinations: []*api.DirectConnections_Destination{{Address: "10.0.0.1:1", Count: 1}}},
		})
	}
	full("web-1")
	full("web-2")
	b.server("pricing-1", 1, pricing)
	full("pricing-1")
	b.status("pricing-1")
	b.st.podsLeft([]string{"uid-web-1", "uid-pricing-1", "uid-unknown", ""}, b.now)
	b.report("web-2", &api.Report{Leaving: true})
	b.st.trackClosed(b.tracks["web-2"])
	for id, s := range b.st.streams {
		if s.sidecar.name == "shop/web-2" {
			b.st.closeADS(id, b.now)
		}
	}
	if len(b.st.gone) != 2 || len(b.st.tallies) != 1 {
		t.Errorf("%d are gone, %d tallies", len(b.st.gone), len(b.st.tallies))
	}
	b.pass(keepSilent + 2*time.Second)
	if n := len(b.st.sidecars) + len(b.st.streams) + len(b.st.tracks) + len(b.st.services) + len(b.st.direct) + len(b.st.dialling) + len(b.st.aliases) + len(b.st.gone) + len(b.st.tallies); n != 0 {
		t.Errorf("left behind: %+v", b.st)
	}
	// A report on a stream whose pod is gone ends it.
	if _, err := b.st.report(b.tracks["web-1"], &report{}, b.now); err != ErrGone { //nolint:errorlint // it promises this value
		t.Errorf("a report of one that is gone: %v", err)
	}
	for i := range maxGone + 5 {
		pod := fmt.Sprintf("web-%d", i)
		b.track(pod, says())
		b.st.podsLeft([]string{"uid-" + pod}, b.now)
	}
	if len(b.st.gone) != maxGone || b.st.gone[0].name != "shop/web-5" {
		t.Errorf("%d are remembered, the oldest is %s", len(b.st.gone), b.st.gone[0].name)
	}
}
