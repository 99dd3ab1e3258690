// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

const system = "evenkeel-system"

// cli runs the user's command and returns what it printed.
func (r *rollouts) cli(t *testing.T, args ...string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "evenkeel")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/evenkeel")
	build.Dir = r.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the CLI: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = r.c.ClientEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("evenkeel %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// replicas of the control plane.
func (r *rollouts) replicas(t *testing.T) []cluster.Pod {
	t.Helper()
	pods, err := r.c.Pods(t.Context(), system, "")
	if err != nil {
		t.Fatal(err)
	}
	var found []cluster.Pod
	for _, p := range pods {
		if strings.HasPrefix(p.Name, "evenkeel-xds-") && p.Ready {
			found = append(found, p)
		}
	}
	return found
}

// testReplicaKilled: one of two replicas is killed at each phase of a rollout. No
// hold is released too early: nothing fails. None is late by more than the lease.
func testReplicaKilled(t *testing.T, r *rollouts) {
	g := r.stage(t, "replica", withEvenkeel)
	w := server("Go", 2)
	w.spec = "strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 2}}"
	g.serve(t, w)
	g.load(t, "server:50051", 2)
	// Warming: its app runs, the pod is not Ready. Ready: just became so. Draining:
	// an old pod is being deleted.
	phases := []struct {
		name    string
		reached func(p cluster.Phases, old bool) bool
	}{
		{"warming", func(p cluster.Phases, old bool) bool { return !old && !p.Containers["app"].Started.IsZero() }},
		{"ready", func(p cluster.Phases, old bool) bool { return !old && !p.Ready.IsZero() }},
		{"draining", func(p cluster.Phases, old bool) bool { return old && !p.Deleting.IsZero() }},
	}
	for i, phase := range phases {
		victims := r.replicas(t)
		if len(victims) != 2 {
			t.Fatalf("%d replicas of the control plane are ready, want 2", len(victims))
		}
		victim := victims[i%2]
		old := map[string]bool{}
		for _, p := range r.pods(t, g.namespace, "server", 2) {
			old[p.UID] = true
		}
		r.kubectl(t, "-n", g.namespace, "rollout", "restart", "deploy/server")
		known := map[string]bool{}
		for _, p := range g.watch.Pods() {
			known[p.UID] = true
		}
		eventually(t, time.Minute, "a pod is "+phase.name, func() error {
			for _, p := range g.watch.Pods() {
				if strings.HasPrefix(p.Name, "server-") && (old[p.UID] || !known[p.UID]) && phase.reached(p, old[p.UID]) {
					return nil
				}
			}
			return fmt.Errorf("none is")
		})
		if err := r.c.KillContainer(t.Context(), system, victim.Name, "xds"); err != nil {
			t.Fatal(err)
		}
		g.replaced(t, "server", 2, old)
		eventually(t, time.Minute, "the killed replica is back", func() error {
			if n := len(r.replicas(t)); n != 2 {
				return fmt.Errorf("%d are ready", n)
			}
			return nil
		})
	}
	time.Sleep(time.Second)
	o := g.end(t)
	o.want(t, g)
	h := g.holds("server")
	// What it takes with both (a probe, the floor, streams of 10 s), and a lease.
	const lease = 5 * time.Second
	if longest(h.ready) > 3*time.Second+lease || longest(h.drain) > 12*time.Second+lease {
		t.Errorf("a hold was late by more than the lease: %s", h)
	}
	result(t, "3 rollouts of 2 servers, a replica killed at warming, ready, draining: %s; %s", o, h)
}

// testRolloutControlPlaneAway: the control plane goes in the middle of a rollout. The
// rollout goes on, traffic never stops, and when it is back all is right without a
// restart.
func testRolloutControlPlaneAway(t *testing.T, r *rollouts) {
	g := r.stage(t, "away", withEvenkeel)
	old := g.serve(t, server("Go", 3))
	g.load(t, "server:50051", 3)
	uids := map[string]bool{}
	for _, p := range old {
		uids[p.UID] = true
	}
	r.kubectl(t, "-n", g.namespace, "rollout", "restart", "deploy/server")
	eventually(t, time.Minute, "the first new server is ready", func() error {
		for _, p := range g.watch.Pods() {
			if strings.HasPrefix(p.Name, "server-") && !uids[p.UID] && !p.Ready.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("none is")
	})
	r.kubectl(t, "-n", system, "scale", "deploy/evenkeel-xds", "--replicas=0")
	defer r.kubectl(t, "-n", system, "scale", "deploy/evenkeel-xds", "--replicas=2") // also where this test fails
	away := time.Now()
	g.replaced(t, "server", 3, uids)
	took := time.Since(away)
	time.Sleep(2 * time.Second)
	r.kubectl(t, "-n", system, "scale", "deploy/evenkeel-xds", "--replicas=2")
	if err := r.c.WaitDeployment(t.Context(), system, "evenkeel-xds", time.Minute); err != nil {
		t.Fatal(err)
	}
	// Reconnecting has a jittered backoff of at most 5 s, and a replica claims
	// nothing before it is settled.
	time.Sleep(12 * time.Second)
	back := time.Now()
	g.restart(t, "deploy", "server", 3)
	time.Sleep(time.Second)
	o := g.end(t)
	o.wantLoad(t)
	while, after := 0, 0
	for _, f := range o.failures {
		if f.EndedMS > back.UnixMilli() {
			after++
		} else {
			while++
		}
	}
	if after > 0 {
		t.Errorf("%d RPCs failed after the control plane was back:\n%s", after, g.explain(o.failures))
	}
	longestGap := o.gap()
	if longestGap > 2*time.Second {
		t.Errorf("no RPC succeeded for %s: traffic stopped\n%s", longestGap, g.explain(o.failures))
	}
	g.wantEven(t, "server", 3)
	result(t, "the rest of a rollout without a control plane took %.1f s, %d RPCs failed in it, none succeeded for at most %s; after it was back %d of the rest failed; %s",
		took.Seconds(), while, longestGap, after, o)
}
