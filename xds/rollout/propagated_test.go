// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// What one client says of one pod, and whether that is an answer.
func TestAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		client func(b *bench)
		want   bool
		told   string
	}{
		"nobody": {func(*bench) {}, true, "0/0"},
		"subscribed over ADS, no report yet": {
			func(b *bench) { b.ads("web-1", pricing) }, false, "0/1 shop/web-1",
		},
		"active, not told of the pod yet": {
			func(b *bench) { b.track("web-1", says(sees(pricing))) }, false, "0/1 shop/web-1",
		},
		"active, told": {
			func(b *bench) { b.track("web-1", says(sees(pricing, at(1, "pricing-1")))) }, false, "0/1 shop/web-1",
		},
		"active, connected": {
			func(b *bench) { b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected)))) }, true, "1/1",
		},
		"active, failed": {
			func(b *bench) { b.track("web-1", says(sees(pricing, at(1, "pricing-1", hasFailed)))) }, true, "1/1",
		},
		"idle, told": {
			func(b *bench) { b.track("web-1", says(idle(sees(pricing, at(1, "pricing-1"))))) }, true, "1/1",
		},
		"idle, not told": {
			func(b *bench) { b.track("web-1", says(idle(sees(pricing)))) }, false, "0/1 shop/web-1",
		},
		"another pod's answer at the same address": {
			func(b *bench) { b.track("web-1", says(sees(pricing, at(1, "pricing-0", isConnected)))) }, false, "0/1 shop/web-1",
		},
		"an answer without a UID": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected, func(e *api.EndpointReport) { e.Uid = "" }))))
			}, false, "0/1 shop/web-1",
		},
		"the same pod in another service": {
			func(b *bench) { b.track("web-1", says(sees(stock, at(1, "pricing-1", isConnected)), sees(pricing))) }, false, "0/1 shop/web-1",
		},
		"a client of another service": {
			func(b *bench) { b.track("web-1", says(sees(stock))) }, true, "0/0",
		},
		"let the service go": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing)))
				b.report("web-1", says(&api.ServiceReport{Service: pricing, Gone: true}))
			}, true, "0/0",
		},
		"leaves": {
			func(b *bench) {
				b.ads("web-1", pricing)
				b.track("web-1", says(sees(pricing)))
				b.report("web-1", &api.Report{Leaving: true})
			}, true, "0/0",
		},
		"its Pod is gone": {
			func(b *bench) { b.track("web-1", says(sees(pricing))); b.st.podsLeft([]string{"uid-web-1"}, b.now) }, true, "0/0",
		},
		"a leftover stream says otherwise": {
			func(b *bench) {
				old := b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
				b.track("web-1", says(sees(pricing, at(1, "pricing-1"))))
				d, _ := decode(says(sees(pricing, at(1, "pricing-1", isConnected))))
				if _, err := b.st.report(old, d, b.now); err != nil {
					t.Error(err)
				}
			}, false, "0/1 shop/web-1",
		},
		"connected, and its stream came anew": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
				b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
			}, true, "1/1",
		},
		"its new stream names the service no more": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing)))
				b.track("web-1", says())
				b.pass(firstPage)
				b.beat("web-1")
			}, true, "0/0",
		},
		"its new stream may still name it": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing)))
				b.track("web-1", says())
				b.beat("web-1")
			}, false, "0/1 shop/web-1",
		},
		"its new stream names it in a second message": {
			func(b *bench) {
				b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
				b.track("web-1", says(sees(stock)))
				b.report("web-1", says(sees(pricing, at(2, "pricing-2"))))
				b.pass(firstPage)
				b.beat("web-1")
			}, false, "0/1 shop/web-1",
		},
		"the pod itself": {
			func(b *bench) { b.report("pricing-1", says(sees(pricing))) }, true, "0/0",
		},
		"two of three": {
			func(b *bench) {
				b.track("web-2", says(sees(pricing, at(1, "pricing-1"))))
				b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
				b.track("web-3", says(idle(sees(pricing, at(1, "pricing-1")))))
			}, false, "2/3 shop/web-2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.server("pricing-1", 1, pricing)
			b.track("pricing-1", says())
			tt.client(b)
			b.wantReady(name, "pricing-1", tt.want, tt.told)
		})
	}
}

// What is asked of the pod itself.
func TestPropagatedNeeds(t *testing.T) {
	connect := func(b *bench) { b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected)))) }
	for name, tt := range map[string]struct {
		prepare func(b *bench)
		want    bool
	}{
		"all well":                         {func(b *bench) { connect(b) }, true},
		"app not ready":                    {func(b *bench) { connect(b); b.members["pricing-1"].AppReady = false }, false},
		"app not ready, nobody subscribes": {func(b *bench) { b.members["pricing-1"].AppReady = false }, false},
		"no Service, app not ready":        {func(b *bench) { m := b.members["pricing-1"]; m.AppReady, m.Services = false, nil }, true},
		"not listed yet, a subscriber":     {func(b *bench) { connect(b); b.members["pricing-1"].Services[0].State = corepb.HealthStatus_UNKNOWN }, false},
		"in no slice yet, a subscriber":    {func(b *bench) { connect(b); b.members["pricing-1"].Services[0].Addr = netip.AddrPort{} }, false},
		"in no slice yet, no subscriber":   {func(b *bench) { b.members["pricing-1"].Services[0].Addr = netip.AddrPort{} }, true},
		"Local, a client on another node": {func(b *bench) {
			b.ads("web-1", pricing)
			m := b.members["pricing-1"]
			m.Services[0].LocalOnly, m.Node = true, "node2"
		}, true},
		"Local, a client on its node":       {func(b *bench) { b.ads("web-1", pricing); b.members["pricing-1"].Services[0].LocalOnly = true }, false},
		"another Pod has the name now":      {func(b *bench) { connect(b); b.members["pricing-1"].UID = "uid-other" }, false},
		"the watch does not know it, yet":   {func(b *bench) { delete(b.members, "pricing-1") }, false},
		"there are no Pods to know":         {func(b *bench) { delete(b.members, "pricing-1"); b.pass(xds.Lease + 1); b.beat("pricing-1") }, true},
		"its address has changed meanwhile": {func(b *bench) { connect(b); b.status("pricing-1"); b.server("pricing-1", 2, pricing) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.server("pricing-1", 1, pricing)
			b.track("pricing-1", says())
			tt.prepare(b)
			if got := b.status("pricing-1").GetPropagated(); got != tt.want {
				t.Errorf("propagated: %v, want %v", got, tt.want)
			}
		})
	}
}

// A pod in two Services waits for the clients of both, each counted once.
func TestTwoServices(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing, stock)
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected)), sees(stock, at(1, "pricing-1"))))
	b.track("web-2", says(sees(stock, at(1, "pricing-1", isConnected))))
	b.wantReady("one of two", "pricing-1", false, "1/2 shop/web-1")
	b.report("web-1", says(sees(stock, at(1, "pricing-1", isConnected))))
	b.wantReady("both", "pricing-1", true, "2/2")
}

// A pod that has another's address and name within a second begins with nothing.
func TestAddressIsUsedAgain(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
	b.wantReady("the first", "pricing-1", true, "1/1")
	b.st.podsLeft([]string{"uid-pricing-1"}, b.now)

	b.members["pricing-1"].UID = "uid-second"
	n := node("pricing-1")
	n.UID = "uid-second"
	sink := &lastStatus{}
	b.st.trackOpened(1000, n, sink, b.now)
	if _, err := b.st.report(1000, &report{}, b.now); err != nil {
		t.Fatal(err)
	}
	second := b.st.sidecars["uid-second"]
	judged := func() *api.PodStatus {
		b.st.judge(second, b.look("pricing-1"), asNeeded, b.now)
		b.st.tell(second, nil, b.now)
		return sink.status
	}
	if s := judged(); s.GetPropagated() || s.GetClients() != 1 {
		t.Errorf("the second is told %v", s)
	}
	e := at(1, "pricing-1", isConnected)
	e.Uid = "uid-second"
	b.report("web-1", says(sees(pricing, e)))
	if s := judged(); !s.GetPropagated() {
		t.Errorf("the second, connected to, is told %v", s)
	}
}

func TestLease(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing)))
	b.pass(xds.Lease)
	b.beat("pricing-1")
	b.wantReady("the lease is just not over", "pricing-1", false, "0/1 shop/web-1")
	b.pass(time.Millisecond)
	b.wantReady("over", "pricing-1", true, "0/0")
	if !b.report("web-1", &api.Report{}) {
		t.Error("an empty Report of one whose lease was over is no change")
	}
	b.wantReady("it is back", "pricing-1", false, "0/1 shop/web-1")
	if b.report("web-1", &api.Report{}) {
		t.Error("an empty Report is a change")
	}
	b.st.trackClosed(b.tracks["web-1"])
	b.wantReady("its stream broke", "pricing-1", false, "0/1 shop/web-1")

	// One that only has ADS is waited for a lease long: it may not have got to reporting.
	b.pass(xds.Lease + time.Millisecond)
	id := b.ads("web-2", pricing)
	b.beat("pricing-1")
	b.wantReady("it came over ADS", "pricing-1", false, "0/1 shop/web-2")
	b.pass(xds.Lease + time.Millisecond)
	b.beat("pricing-1")
	b.wantReady("and never reported", "pricing-1", true, "0/0")
	b.ads("web-2", pricing)
	b.wantReady("it came anew", "pricing-1", false, "0/1 shop/web-2")
	b.st.closeADS(id, b.now)
	b.wantReady("its leftover stream ended", "pricing-1", false, "0/1 shop/web-2")
}

func TestSettle(t *testing.T) {
	b := newYoungBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.pass(xds.Settle - time.Millisecond)
	b.beat("pricing-1")
	if s := b.status("pricing-1"); s.GetSettled() || s.GetPropagated() || !s.GetAppReady() {
		t.Errorf("before it is settled: %v", s)
	}
	b.pass(time.Millisecond)
	if s := b.status("pricing-1"); !s.GetSettled() || !s.GetPropagated() {
		t.Errorf("settled: %v", s)
	}
	// Held up: what lies unread in its sockets must not look like silence.
	b.track("web-1", says(sees(pricing)))
	b.now = b.now.Add(xds.Lease + time.Second)
	if late := b.st.tick(b.now); late != xds.Lease+time.Second {
		t.Errorf("held up for %s", late)
	}
	if s := b.status("pricing-1"); s.GetSettled() || s.GetPropagated() || s.GetDrained() {
		t.Errorf("after it was held up: %v", s)
	}
	b.beat("web-1", "pricing-1")
	b.pass(xds.Lease)
	b.beat("web-1", "pricing-1")
	b.wantReady("settled again", "pricing-1", false, "0/1 shop/web-1")
}

// Laggards are named in a stable order, ten at most.
func TestNames(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	var want []string
	for i := 30; i > 10; i-- {
		b.ads(fmt.Sprintf("web-%d", i), pricing)
	}
	for i := 11; i <= 20; i++ {
		want = append(want, fmt.Sprintf("shop/web-%d", i))
	}
	for range 5 { // maps are walked in any order
		b.wantReady("twenty", "pricing-1", false, "0/20 "+strings.Join(want, " "))
	}
}

// The first ten in their order stay, each once.
func TestLaggards(t *testing.T) {
	var l laggards
	for n := range strings.FieldsSeq("k c a z b b y x w d e f g h a 0") {
		l.add(n)
	}
	if got := strings.Join(l, ""); got != "0abcdefghk" {
		t.Errorf("kept %q", got)
	}
}
