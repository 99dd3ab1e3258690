// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster"
)

// testOutlivingStream: a stream older than drain-streams does not hold its pod; it is
// cut when the app exits.
func testOutlivingStream(t *testing.T, r *rollouts) {
	g := r.stage(t, "outliving", withEvenkeel)
	w := server("Go", 2)
	w.annotations = "config.evenkeel.dev/drain-streams: 2s, config.evenkeel.dev/drain-min: 0s"
	servers := g.serve(t, w)
	args := []string{"client", "--target=server:50051", noRetry, deadline}
	g.apply(t, workload{name: "load-go", args: args}.String(), workload{name: "watcher", args: args}.String())
	load, watcher := r.client(t, g.namespace, "load-go"), r.client(t, g.namespace, "watcher")
	load.post(t, "/rate?value=250")
	g.began, g.clients = time.Now(), []client{load}
	// Watches on both servers: least_request takes the other one for the second.
	cut := make(chan seen, 1)
	go func() { cut <- watcher.run(t, "n=2&concurrency=2&kind=long-bidi&length_ms=60000") }()
	time.Sleep(4 * time.Second)
	r.kubectl(t, "-n", g.namespace, "delete", "pod", servers[0].Name, "--wait=false")
	victim := g.waitExit(t, servers[0])
	hold := victim.Containers["app"].Exited.Sub(victim.Deleting)
	time.Sleep(time.Second)
	o := g.end(t)
	if o.Failed != 0 || o.Started < 1000 {
		t.Errorf("%d of %d unary RPCs failed, want none of 1000 or more:\n%s", o.Failed, o.Started, g.explain(o.failures))
	}
	// It holds at most until the youngest that counts is that old: none here.
	if hold > 2500*time.Millisecond {
		t.Errorf("SIGTERM came %s after the deletion: the streams held the pod", hold)
	}
	// The other one lives on: cut it too, or it would last its minute.
	r.kubectl(t, "-n", g.namespace, "delete", "pod", servers[1].Name, "--wait=false")
	streams := <-cut
	if streams.Failed < 1 {
		t.Errorf("the streams on %s: %+v, want it cut at the exit of the app", servers[0].Name, streams)
	}
	for _, f := range streams.Failures {
		if f.Code != "Unavailable" {
			t.Errorf("a stream was cut with %s: %s", f.Code, f.Message)
		}
	}
	result(t, "SIGTERM %s after the deletion with streams of 4 s open and drain-streams 2 s; cut when the apps exited: %d of %d streams; %d of %d other RPCs failed",
		hold.Round(10*time.Millisecond), streams.Failed, streams.Started, o.Failed, o.Started)
}

// waitExit waits until a pod's app has ended after a deletion.
func (g *stage) waitExit(t *testing.T, pod cluster.Pod) cluster.Phases {
	t.Helper()
	var found cluster.Phases
	eventually(t, 90*time.Second, pod.Name+"'s app has ended", func() error {
		for _, p := range g.watch.Pods() {
			if p.UID == pod.UID && !p.Containers["app"].Exited.IsZero() {
				found = p
				return nil
			}
		}
		return fmt.Errorf("it has not")
	})
	return found
}

// testSuddenDeath: nobody is told before. Only what a server had begun may fail, as
// UNAVAILABLE.
func testSuddenDeath(t *testing.T, r *rollouts) {
	for _, tt := range []struct {
		name string
		kill func(t *testing.T, g *stage, pod cluster.Pod) (death time.Time)
	}{
		// The kubelet learns of it like anybody else, and later.
		{"ForceDeleted", func(t *testing.T, g *stage, pod cluster.Pod) time.Time {
			r.kubectl(t, "-n", g.namespace, "delete", "pod", pod.Name, "--grace-period=0", "--force", "--wait=false")
			return g.waitExit(t, pod).Containers["app"].Exited
		}},
		{"KilledAsByOOM", func(t *testing.T, g *stage, pod cluster.Pod) time.Time {
			if err := r.c.KillContainer(t.Context(), g.namespace, pod.Name, "app"); err != nil {
				t.Fatal(err)
			}
			return time.Now()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := r.stage(t, strings.ToLower(tt.name), withEvenkeel)
			servers := g.serve(t, server("Go", 3))
			g.load(t, "server:50051", 3)
			death := tt.kill(t, g, servers[0])
			time.Sleep(5 * time.Second)
			o := g.end(t)
			o.wantLoad(t)
			// Of the unary RPCs only those in flight at that moment: far below 1 % of a
			// second's. Of the streams those on that server: about a third of all.
			const mostUnary, mostStreams = 10, 20
			streams := o.Kinds["long-bidi"].Failed + o.Kinds["long-server-stream"].Failed
			if n := o.Kinds["unary"].Failed; n > mostUnary || streams > mostStreams {
				t.Errorf("%d unary RPCs and %d streams failed, want at most %d and %d:\n%s", n, streams, mostUnary, mostStreams, g.explain(o.failures))
			}
			for _, f := range o.failures {
				if f.Code != "Unavailable" || f.BeganMS > death.UnixMilli() || f.Server != "" && f.Server != servers[0].Name {
					t.Errorf("began %d ms after the app's end, on %q: %s: %s; want only what %s had begun, as Unavailable",
						f.BeganMS-death.UnixMilli(), f.Server, f.Code, f.Message, servers[0].Name)
				}
			}
			result(t, "%s", o)
		})
	}
}

// testNodePower: half of the servers are on a node whose power is pulled: nothing
// says goodbye, and Kubernetes itself learns after 9 s at the earliest.
func testNodePower(t *testing.T, r *rollouts) {
	g := r.stage(t, "power", withEvenkeel)
	here := server("Go", 2)
	here.node = cluster.ControlPlane
	g.apply(t, here.String())
	there := here
	there.name, there.node, there.labels = "there", "node2", "group: server"
	here.labels = "group: server"
	g.apply(t, here.String(), there.String(), strings.Replace(service("server", "server", serverPort, ""), "selector: {app: server}", "selector: {group: server}", 1))
	r.pods(t, g.namespace, "server", 2)
	r.pods(t, g.namespace, "there", 2)
	g.node = cluster.ControlPlane
	g.load(t, "server:50051", 4)
	pulled := time.Now()
	if err := r.c.PowerOff(t.Context(), "node2"); err != nil {
		t.Fatal(err)
	}
	defer r.powerOn(t, "node2")
	time.Sleep(15 * time.Second)
	o := g.end(t)
	o.wantLoad(t)
	last, open := time.Duration(0), 0
	for _, f := range o.failures {
		last = max(last, time.UnixMilli(f.EndedMS).Sub(pulled))
		if f.BeganMS >= pulled.UnixMilli() {
			open++
		}
		if f.Code != "Unavailable" {
			t.Errorf("%s: %s, want Unavailable", f.Code, f.Message)
		}
	}
	if last > 10*time.Second {
		t.Errorf("RPCs failed until %s after the power was pulled, want at most 10 s:\n%s", last, g.explain(o.failures))
	}
	result(t, "the last failure %.1f s after the power was pulled; %d began after it; %s", last.Seconds(), open, o)
	// Its pods would be made again and again on the node that is gone.
	r.kubectl(t, "-n", g.namespace, "delete", "deploy", "there", "--wait=false")
}

// powerOn boots a node and waits until all is as it was.
func (r *rollouts) powerOn(t *testing.T, node string) {
	t.Helper()
	if err := r.c.WaitNode(t.Context(), node, cluster.NodeNotReady); err != nil {
		t.Fatal(err)
	}
	if err := r.c.PowerOn(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	r.wholeAgain(t)
}

// wholeAgain waits until nodes and Evenkeel are as they were.
func (r *rollouts) wholeAgain(t *testing.T) {
	t.Helper()
	for _, name := range r.c.Nodes() {
		if err := r.c.WaitNode(t.Context(), name, cluster.NodeReady); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"evenkeel-xds", "evenkeel-injector"} {
		if err := r.c.WaitDeployment(t.Context(), "evenkeel-system", d, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.c.WaitDeployment(t.Context(), "kube-system", "coredns", 2*time.Minute); err != nil {
		t.Fatal(err)
	}
}

// bystander is one more client pod, whose RPCs nobody counts.
func (g *stage) bystander(t *testing.T, name string) cluster.Pod {
	t.Helper()
	g.apply(t, goClient(name, "server:50051", "--rate=20"))
	c := g.r.client(t, g.namespace, name)
	eventually(t, 20*time.Second, name+" reaches the servers", func() error {
		if n := len(c.stats(t).ByServer); n < 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	return c.pod
}

// testStoppedSidecar: a client whose sidecar stands still holds a rollout no longer
// than the bound or its lease, and is named.
func testStoppedSidecar(t *testing.T, r *rollouts) {
	g := r.stage(t, "stopped", withEvenkeel)
	w := server("Go", 2)
	// Its app is ready a second after it starts, and the bound another later: both
	// within the lease of a sidecar that is stopped when the app starts.
	w.annotations = "config.evenkeel.dev/ready-timeout: 1s"
	w.args = append(w.args, "--ready-delay=1s")
	old := g.serve(t, w)
	g.load(t, "server:50051", 2)
	stuck := g.bystander(t, "stuck")
	known := map[string]bool{}
	for _, p := range g.watch.Pods() {
		known[p.UID] = true
	}
	begin := time.Now()
	r.kubectl(t, "-n", g.namespace, "rollout", "restart", "deploy/server")
	eventually(t, time.Minute, "a new server's app has started", func() error {
		for _, p := range g.watch.Pods() {
			if !known[p.UID] && !p.Containers["app"].Started.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("none has")
	})
	if err := r.c.SignalContainer(t.Context(), g.namespace, stuck.Name, "evenkeel-sidecar", unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.replaced(t, "server", 2, map[string]bool{old[0].UID: true, old[1].UID: true})
	took := time.Since(begin)
	status := r.cli(t, "rollout", "status", "deploy/server", "-n", g.namespace)
	time.Sleep(time.Second)
	o := g.end(t)
	o.want(t, g)
	h := g.holds("server")
	// The bound or the lease, and the kubelet's probe.
	if longest(h.ready) > 7*time.Second {
		t.Errorf("a pod was Ready %s after its app, want at most the lease of 5 s and a probe", longest(h.ready))
	}
	g.wantEvent(t, "HoldTimeout", g.namespace+"/"+stuck.Name)
	if !strings.Contains(status, stuck.Name) {
		t.Errorf("evenkeel rollout status does not name %s:\n%s", stuck.Name, status)
	}
	if err := r.c.SignalContainer(t.Context(), g.namespace, stuck.Name, "evenkeel-sidecar", unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	result(t, "2 servers replaced with one client's sidecar stopped (%.1f s): %s; %s", took.Seconds(), o, h)
}

// wantEvent looks for a Warning that names somebody.
func (g *stage) wantEvent(t *testing.T, reason, names string) {
	t.Helper()
	events, err := g.r.c.Events(t.Context(), g.namespace)
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, e := range events {
		if e.Reason == reason && e.Type == "Warning" && strings.Contains(e.Message, names) {
			t.Logf("Event on %s %s: %s", e.Kind, e.Name, e.Message)
			return
		}
		if e.Reason == reason {
			others = append(others, e.Message)
		}
	}
	t.Errorf("no Event %s names %s, among %d; of that reason: %q", reason, names, len(events), others)
}

// testCutOffSubscriber: a client that a NetworkPolicy keeps from the servers answers
// "failed", and holds no rollout.
func testCutOffSubscriber(t *testing.T, r *rollouts) {
	g := r.stage(t, "cut-off", withEvenkeel)
	g.serve(t, server("Go", 2))
	g.load(t, "server:50051", 2)
	cut := g.bystander(t, "cut")
	if err := r.c.CutOff(t.Context(), g.namespace, cut.Name, "tcp dport 6001"); err != nil {
		t.Fatal(err)
	}
	first := g.restart(t, "deploy", "server", 2)
	before := g.holds("server")
	second := g.restart(t, "deploy", "server", 2)
	time.Sleep(time.Second)
	o := g.end(t)
	o.want(t, g)
	h := g.holds("server")
	again := holds{ready: h.ready[len(before.ready):]}
	if longest(again.ready) > 5*time.Second {
		t.Errorf("in the second rollout a pod was Ready %s after its app: the client that cannot connect slowed it twice", longest(again.ready))
	}
	// The first time its connections, which have gone silent, may hold a drain to its
	// bound; afterwards only streams of 10 s do.
	again.drain = h.drain[len(before.drain):]
	if longest(again.drain) > 15*time.Second {
		t.Errorf("in the second rollout a drain took %s: the client that is cut off held it again", longest(again.drain))
		t.Log(r.cli(t, "rollout", "status", "deploy/server", "-n", g.namespace))
	}
	result(t, "2 servers replaced twice (%.1f and %.1f s) with one client cut off: %s; %s", first.Seconds(), second.Seconds(), o, h)
}
