// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"errors"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// testScale: two servers become ten and two again.
func testScale(t *testing.T, r *rollouts) {
	g := r.stage(t, "scale", withEvenkeel)
	g.serve(t, server("Go", 2))
	g.load(t, "server:50051", 2)
	for range r.repeat {
		r.kubectl(t, "-n", g.namespace, "scale", "deploy/server", "--replicas=10")
		r.pods(t, g.namespace, "server", 10)
		time.Sleep(3 * time.Second)
		r.kubectl(t, "-n", g.namespace, "scale", "deploy/server", "--replicas=2")
		g.replaced(t, "server", 2, nil)
	}
	o := g.end(t)
	o.want(t, g)
	if n := len(o.ByServer); n < 10 {
		t.Errorf("%d servers were reached, want 10: %v", n, o.ByServer)
	}
	result(t, "%d×: %s; %s", r.repeat, o, g.holds("server"))
}

// testOrderedReady: a StatefulSet replaces its pods one by one, each by one of the
// same name.
func testOrderedReady(t *testing.T, r *rollouts) {
	g := r.stage(t, "ordered", withEvenkeel)
	w := server("Go", 3)
	// Its Service is headless: the port that is dialled is the pods' own.
	w.kind, w.spec, w.args = "StatefulSet", "podManagementPolicy: OrderedReady", []string{"server", "--exit=none"}
	g.apply(t, w.String(), service("server", "server", "{name: grpc, port: 50051}", "clusterIP: None"))
	r.pods(t, g.namespace, "server", 3)
	g.load(t, "server:50051", 3)
	var took time.Duration
	for range r.repeat {
		took = g.restart(t, "statefulset", "server", 3)
	}
	time.Sleep(time.Second)
	o := g.end(t)
	o.want(t, g)
	result(t, "%d× 3 pods replaced in order (%.1f s the last time): %s; %s", r.repeat, took.Seconds(), o, g.holds("server"))
}

// testEviction: pods are evicted as by `kubectl drain`, as fast as their budget
// allows.
func testEviction(t *testing.T, r *rollouts) {
	g := r.stage(t, "eviction", withEvenkeel)
	old := g.serve(t, server("Go", 3))
	g.apply(t, "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: server}\nspec: {maxUnavailable: 1, selector: {matchLabels: {app: server}}}\n")
	g.load(t, "server:50051", 3)
	begin, refused := time.Now(), 0
	uids := map[string]bool{}
	for _, p := range old {
		uids[p.UID] = true
		eventually(t, 2*time.Minute, "the eviction of "+p.Name+" is allowed", func() error {
			err := r.c.Evict(t.Context(), g.namespace, p.Name)
			if errors.Is(err, cluster.ErrDisruption) {
				refused++
			}
			return err
		})
	}
	g.replaced(t, "server", 3, uids)
	took := time.Since(begin)
	time.Sleep(time.Second)
	o := g.end(t)
	o.want(t, g)
	if refused == 0 {
		t.Error("no eviction was refused: is the budget in force?")
	}
	result(t, "3 servers evicted under a budget (%.1f s): %s; %s", took.Seconds(), o, g.holds("server"))
}
