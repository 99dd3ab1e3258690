// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// testRollingRestart: servers that exit at once at SIGTERM, in three languages; the
// same without Evenkeel fails some, or the test would show nothing.
func testRollingRestart(t *testing.T, r *rollouts) {
	for _, language := range []string{"Go", "Python", "Node"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			g := r.stage(t, "restart-"+strings.ToLower(language), withEvenkeel)
			g.serve(t, server(language, 3))
			g.load(t, "server:50051", 3)
			var took time.Duration
			for range r.repeat {
				took = g.restart(t, "deploy", "server", 3)
			}
			time.Sleep(time.Second)
			o := g.end(t)
			o.want(t, g)
			result(t, "%d× 3 servers replaced (%.1f s the last time): %s; %s", r.repeat, took.Seconds(), o, g.holds("server"))
		})
		t.Run(language+"WithoutEvenkeel", func(t *testing.T) {
			t.Parallel()
			g := r.stage(t, "restart-"+strings.ToLower(language)+"-plain", withoutEvenkeel)
			g.serve(t, server(language, 3))
			g.load(t, "server:50051", 1)
			took := g.restart(t, "deploy", "server", 3)
			time.Sleep(time.Second)
			o := g.end(t)
			o.wantLoad(t)
			if o.Failed == 0 {
				t.Error("no RPC failed without Evenkeel: is the test's premise gone?")
			}
			result(t, "3 servers replaced (%.1f s): %s", took.Seconds(), o)
		})
	}
}

// testStrategy: the Deployment's own ways to replace its pods.
func testStrategy(t *testing.T, r *rollouts) {
	for _, tt := range []struct {
		name, strategy string
		replicas       int
	}{
		{"MaxUnavailable1", "{maxUnavailable: 1, maxSurge: 0}", 3},
		{"MaxSurge1", "{maxUnavailable: 0, maxSurge: 1}", 3},
		{"OneReplicaMaxSurge1", "{maxUnavailable: 0, maxSurge: 1}", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := r.stage(t, strings.ToLower(tt.name), withEvenkeel)
			w := server("Go", tt.replicas)
			w.spec = "strategy: {rollingUpdate: " + tt.strategy + "}"
			g.serve(t, w)
			g.load(t, "server:50051", tt.replicas)
			var took time.Duration
			for range r.repeat {
				took = g.restart(t, "deploy", "server", tt.replicas)
			}
			time.Sleep(time.Second)
			o := g.end(t)
			o.want(t, g)
			result(t, "%d× %d servers replaced (%.1f s the last time): %s; %s", r.repeat, tt.replicas, took.Seconds(), o, g.holds("server"))
		})
	}
}

// testBothSides: the first incident. Clients and servers roll at once; clients that
// end tell what they saw, to the last RPC.
func testBothSides(t *testing.T, r *rollouts) {
	g := r.stage(t, "both-sides", withEvenkeel)
	g.serve(t, server("Go", 6))
	report := "--report=" + r.url(g.namespace)
	flags := func(rate int, streams float64) []string {
		return []string{
			"client", "--target=server:50051", noRetry, streamLength, deadline, report,
			fmt.Sprintf("--rate=%d", rate), fmt.Sprintf("--stream-rate=%v", streams),
		}
	}
	// Together the usual load, from 4 pods.
	g.apply(t, workload{name: "load-go", replicas: 2, args: flags(goRate/2, goStreams/2), grace: 30}.String(),
		workload{name: "load-python", image: pythonImage, replicas: 2, args: flags(pythonRate/2, pythonStreams/2), grace: 30}.String())
	g.began = time.Now()
	uids := map[string]map[string]bool{}
	for app, n := range map[string]int{"load-go": 2, "load-python": 2, "server": 6} {
		uids[app] = map[string]bool{}
		for _, p := range r.pods(t, g.namespace, app, n) {
			uids[app][p.UID] = true
		}
	}
	time.Sleep(3 * time.Second)
	begin := time.Now()
	r.kubectl(t, "-n", g.namespace, "rollout", "restart", "deploy/server", "deploy/load-go", "deploy/load-python")
	for app, n := range map[string]int{"load-go": 2, "load-python": 2, "server": 6} {
		g.replaced(t, app, n, uids[app])
	}
	took := time.Since(begin)
	time.Sleep(2 * time.Second)
	for _, app := range []string{"load-go", "load-python"} {
		for _, p := range r.pods(t, g.namespace, app, 2) {
			g.clients = append(g.clients, client{r.suite, p})
		}
	}
	o := g.end(t)
	o.want(t, g)
	if n := len(r.ended(g.namespace)); n != 4 {
		t.Errorf("%d of 4 clients told what they had seen", n)
	}
	g.wantEven(t, "server", 6)
	result(t, "4 clients and 6 servers replaced at once (%.1f s): %s; %s", took.Seconds(), o, g.holds("server"))
}
