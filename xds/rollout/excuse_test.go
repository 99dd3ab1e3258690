// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"testing"
	"time"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

func readyEnd(reason string, missing ...string) *api.Report {
	return &api.Report{
		Own:   &api.OwnPod{Ready: true},
		Holds: []*api.HoldEnd{{Hold: "ready", WaitedMs: 15000, Reason: reason, Missing: missing, Record: true}},
	}
}

// A client for whom a ready hold timed out does not slow the next pod, until it
// has connected to something there.
func TestExcusedByTimeout(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing, at(1, "pricing-1")), sees(stock)))
	b.track("web-2", says(sees(pricing, at(1, "pricing-1", isConnected))))
	b.wantReady("waiting", "pricing-1", false, "1/2 shop/web-1")
	b.report("pricing-1", readyEnd("timeout", "shop/web-1"))
	b.status("pricing-1")

	b.server("pricing-2", 2, pricing)
	b.track("pricing-2", says())
	b.wantReady("the next: one is excused, one is waited for", "pricing-2", false, "0/1 shop/web-2")
	b.report("web-2", says(sees(pricing, at(2, "pricing-2", isConnected))))
	b.wantReady("the next", "pricing-2", true, "1/1")
	b.server("stock-1", 3, stock)
	b.track("stock-1", says())
	b.wantReady("another service", "stock-1", false, "0/1 shop/web-1")

	// A new stream brings the same words again: no news.
	b.track("web-1", says(sees(pricing, at(1, "pricing-1"), at(2, "pricing-2")), sees(stock)))
	b.wantReady("its stream came anew", "pricing-2", true, "1/1")
	b.report("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
	b.wantReady("it has connected to another", "pricing-2", false, "1/2 shop/web-1")
}

// Who was not named, or has answered here, is not excused.
func TestNotExcused(t *testing.T) {
	for name, tt := range map[string]struct {
		end    *api.Report
		client *api.EndpointReport
		want   string // of the next pod
	}{
		"named":          {readyEnd("timeout", "shop/web-1"), at(1, "pricing-1"), "0/0"},
		"not named":      {readyEnd("timeout", "shop/web-9"), at(1, "pricing-1"), "0/1 shop/web-1"},
		"has answered":   {readyEnd("timeout", "shop/web-1"), at(1, "pricing-1", isConnected), "0/1 shop/web-1"},
		"answered":       {readyEnd("answered"), at(1, "pricing-1"), "0/1 shop/web-1"},
		"silent":         {readyEnd("silent"), at(1, "pricing-1"), "0/1 shop/web-1"},
		"too many names": {readyEnd("timeout", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"), at(1, "pricing-1"), "0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.server("pricing-1", 1, pricing)
			b.track("pricing-1", says())
			b.track("web-1", says(sees(pricing, tt.client)))
			b.status("pricing-1")
			b.report("pricing-1", tt.end)
			b.status("pricing-1")
			b.server("pricing-2", 2, pricing)
			b.track("pricing-2", says())
			b.wantReady(name, "pricing-2", tt.want == "0/0", tt.want)
		})
	}
}

// A failure that comes late is an answer, and an excuse for the next time.
func TestExcusedByLateFailure(t *testing.T) {
	for _, tt := range []struct {
		after   time.Duration
		excused bool
	}{{500 * time.Millisecond, false}, {time.Second, false}, {1001 * time.Millisecond, true}, {3 * time.Second, true}} {
		t.Run(fmt.Sprint(tt.after), func(t *testing.T) {
			b := newBench(t)
			b.server("pricing-1", 1, pricing)
			b.track("pricing-1", says())
			b.track("web-1", says(sees(pricing)))
			b.wantReady("known", "pricing-1", false, "0/1 shop/web-1")
			b.pass(tt.after)
			b.report("web-1", says(sees(pricing, at(1, "pricing-1", hasFailed))))
			b.beat("pricing-1")
			if !b.status("pricing-1").GetPropagated() {
				t.Error("FAILED is no answer")
			}
			b.server("pricing-2", 2, pricing)
			b.track("pricing-2", says())
			want := map[bool]string{true: "0/0", false: "0/1 shop/web-1"}[tt.excused]
			b.wantReady("the next", "pricing-2", tt.excused, want)
		})
	}
}

// A client that fails to connect to a pod that has long been ready has slowed
// nothing, nor has one that came late itself.
func TestLateFailureOfNoConsequence(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}})
	b.track("web-1", says(sees(pricing, at(1, "pricing-1"))))
	b.status("pricing-1")
	b.server("pricing-3", 3, pricing)
	b.track("pricing-3", says())
	b.status("pricing-3")
	b.pass(3 * time.Second)
	b.beat("pricing-1", "pricing-3")
	b.report("web-1", says(sees(pricing, at(1, "pricing-1", hasFailed))))
	b.track("web-2", says(sees(pricing, at(3, "pricing-3", hasFailed))))
	b.server("pricing-2", 2, pricing)
	b.track("pricing-2", says())
	b.wantReady("both are waited for", "pricing-2", false, "0/2 shop/web-1 shop/web-2")
}

// Excuses last as long as the client is known, also over a broken stream.
func TestExcuseOutlivesTheStream(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing, at(1, "pricing-1"))))
	b.status("pricing-1")
	b.report("pricing-1", readyEnd("timeout", "shop/web-1"))
	b.status("pricing-1")
	b.st.trackClosed(b.tracks["web-1"])
	b.pass(2 * xds.Lease)
	b.track("web-1", says(sees(pricing, at(1, "pricing-1"))))
	b.server("pricing-2", 2, pricing)
	b.track("pricing-2", says())
	b.wantReady("still excused", "pricing-2", true, "0/0")
}
