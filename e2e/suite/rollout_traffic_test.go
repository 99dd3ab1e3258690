// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// The constant load of each test: together more than 200 RPC/s.
const (
	goRate, goStreams         = 160, 2.0
	pythonRate, pythonStreams = 60, 1.0
	// Flags of the clients: no retries, streams of 1 to 10 s, and deadlines that a
	// held RPC does not meet by being late.
	streamLength = "--stream-length=1s-10s"
	noRetry      = "--no-retry"
	deadline     = "--deadline=20s"
)

// stage is a namespace with servers, the load on them, and a watch over its pods.
type stage struct {
	r         *rollouts
	namespace string
	watch     *cluster.Watch
	// node is where the clients of the constant load run. Zero: anywhere.
	node    string
	clients []client
	began   time.Time
}

// Kinds of namespaces.
const (
	withEvenkeel    = "evenkeel.dev/inject: enabled"
	withoutEvenkeel = "evenkeel.dev/inject: disabled"
)

// stage makes a namespace, which goes with the test unless that fails.
func (r *rollouts) stage(t *testing.T, namespace, label string) *stage {
	t.Helper()
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {%s}}\n", namespace, label)
	if _, err := r.c.KubectlInput(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if label == withEvenkeel {
		r.waitCA(t, namespace)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w, err := r.c.Watch(ctx, namespace)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.dump(t, strings.ReplaceAll(t.Name(), "/", "-"))
		}
		cancel()
		if err := w.Wait(); err != nil {
			t.Log(err)
		}
		// Not waited for: the next test needs its room, not its end.
		if out, err := r.c.Kubectl(context.WithoutCancel(t.Context()), "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Log(out, err)
		}
	})
	return &stage{r: r, namespace: namespace, watch: w}
}

// server is the Deployment "server" with its Service: port 50051, which is another
// port at its pods. It ends at once at SIGTERM.
func server(language string, replicas int) workload {
	w := workload{name: "server", replicas: replicas, args: []string{"server", "--listen=:6001"}, ports: "{name: grpc-main, containerPort: 6001}", grace: 30}
	switch language {
	case "Go":
		w.args = append(w.args, "--exit=none")
	case "Python":
		w.image = pythonImage
	case "Node":
		w.image = nodeImage
	}
	return w
}

const serverPort = "{name: grpc, port: 50051, targetPort: grpc-main}"

func (g *stage) apply(t *testing.T, manifests ...string) {
	t.Helper()
	g.r.apply(t, g.namespace, strings.Join(manifests, "\n"))
}

// serve applies servers with their Service, and waits until they are ready.
func (g *stage) serve(t *testing.T, w workload) []cluster.Pod {
	t.Helper()
	g.apply(t, w.String(), service(w.name, w.name, serverPort, ""))
	return g.r.pods(t, g.namespace, w.name, max(1, w.replicas))
}

// load begins the constant load on a target, and returns when it has reached the
// servers.
func (g *stage) load(t *testing.T, target string, servers int) {
	t.Helper()
	args := []string{"client", "--target=" + target, noRetry, streamLength, deadline}
	g.apply(t, workload{name: "load-go", args: args, grace: 30, node: g.node}.String(),
		workload{name: "load-python", image: pythonImage, args: args, grace: 30, node: g.node}.String())
	goClient, pythonClient := g.r.client(t, g.namespace, "load-go"), g.r.client(t, g.namespace, "load-python")
	g.clients = []client{goClient, pythonClient}
	// kube-proxy may be later than the pods are ready; without Evenkeel that is
	// what a client's first connection needs.
	for _, c := range g.clients {
		eventually(t, 20*time.Second, "a first RPC succeeds", func() error {
			if got := c.run(t, "n=1"); got.Succeeded != 1 {
				return fmt.Errorf("%+v", got.Errors)
			}
			return nil
		})
	}
	g.began = time.Now()
	goClient.post(t, fmt.Sprintf("/rate?value=%d&streams=%v", goRate, goStreams))
	pythonClient.post(t, fmt.Sprintf("/rate?value=%d&streams=%v", pythonRate, pythonStreams))
	eventually(t, 20*time.Second, fmt.Sprintf("the load reaches %d servers", servers), func() error {
		if n := len(goClient.stats(t).ByServer); n < servers {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	time.Sleep(time.Second)
}

func (c client) post(t *testing.T, path string) {
	t.Helper()
	if _, err := c.s.http(t.Context(), http.MethodPost, "http://"+c.pod.IP.String()+":8080"+path); err != nil {
		t.Fatal(err)
	}
}

// outcome is what all clients of a test saw, to the last RPC.
type outcome struct {
	seen
	// took is how long RPCs were begun, until then.
	took     time.Duration
	until    time.Time
	slowest  time.Duration
	failures []failure
	// parts are the single clients'.
	parts []seen
}

// end ends the load, waits for what is in flight and adds all up.
func (g *stage) end(t *testing.T) outcome {
	t.Helper()
	var all []seen
	for _, c := range g.clients {
		c.post(t, "/rate?value=0&streams=0")
	}
	until := time.Now()
	for _, c := range g.clients {
		all = append(all, c.ask(t, http.MethodPost, "/stop"))
	}
	o := sum(append(all, g.r.ended(g.namespace)...))
	o.took, o.until = until.Sub(g.began), until
	return o
}

func sum(parts []seen) outcome {
	o := outcome{seen: seen{ByServer: map[string]int64{}, Kinds: map[string]kindCounts{}}, parts: parts}
	for _, p := range parts {
		o.Started += p.Started
		o.Succeeded += p.Succeeded
		o.Failed += p.Failed
		o.Skipped += p.Skipped
		for server, n := range p.ByServer {
			o.ByServer[server] += n
		}
		for kind, n := range p.Kinds {
			k := o.Kinds[kind]
			o.Kinds[kind] = kindCounts{k.Started + n.Started, k.Succeeded + n.Succeeded, k.Failed + n.Failed}
		}
		o.failures = append(o.failures, p.Failures...)
		o.slowest = max(o.slowest, time.Duration(p.Latency.Max)*time.Microsecond)
	}
	slices.SortFunc(o.failures, func(a, b failure) int { return int(a.EndedMS - b.EndedMS) })
	return o
}

// String is one line to quote.
func (o outcome) String() string {
	streams := o.Kinds["long-server-stream"]
	bidi := o.Kinds["long-bidi"]
	unary := o.Kinds["unary"]
	return fmt.Sprintf("%d of %d RPCs failed (unary %d of %d, streams of 1–10 s %d of %d); %.0f RPC/s from Go and Python, slowest unary %s",
		o.Failed, o.Started, unary.Failed, unary.Started, streams.Failed+bidi.Failed, streams.Started+bidi.Started,
		float64(o.Started)/o.took.Seconds(), o.slowest.Round(time.Millisecond))
}

// want checks that the load was as it should be, and that none failed.
func (o outcome) want(t *testing.T, g *stage) {
	t.Helper()
	o.wantLoad(t)
	if o.Failed != 0 {
		t.Errorf("%d RPCs failed, want none:\n%s", o.Failed, g.explain(o.failures))
	}
}

// wantLoad checks that there was a load: a test without one shows nothing.
func (o outcome) wantLoad(t *testing.T) {
	t.Helper()
	if rate := float64(o.Started) / o.took.Seconds(); rate < 200 || o.Skipped != 0 {
		t.Errorf("the load was %.0f RPC/s and %d were not even begun, want at least 200 and 0", rate, o.Skipped)
	}
	if n := o.Kinds["long-bidi"].Started + o.Kinds["long-server-stream"].Started; n < int64(o.took.Seconds()) {
		t.Errorf("%d streams in %s", n, o.took)
	}
	if o.Started != o.Succeeded+o.Failed {
		t.Errorf("%d RPCs began, %d ended", o.Started, o.Succeeded+o.Failed)
	}
}

// explain puts failures beside what happened to the pods.
func (g *stage) explain(failures []failure) string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	for _, p := range g.watch.Pods() {
		for what, at := range map[string]time.Time{"created": p.Created, "ready": p.Ready, "deleting": p.Deleting, "gone": p.Gone} {
			lines = append(lines, line{at, p.Name + " " + what})
		}
		for name, ct := range p.Containers {
			for what, at := range map[string]time.Time{"started": ct.Started, "ready": ct.Ready, "exited": ct.Exited} {
				lines = append(lines, line{at, p.Name + "/" + name + " " + what})
			}
		}
	}
	const most = 25
	for i, f := range failures {
		if i == most {
			lines = append(lines, line{time.UnixMilli(f.EndedMS), fmt.Sprintf("… %d failures more", len(failures)-most)})
			break
		}
		lines = append(lines, line{time.UnixMilli(f.EndedMS), fmt.Sprintf("FAILED %s after %d ms, %d answers of %q: %s: %s",
			f.Kind, f.EndedMS-f.BeganMS, f.Answers, f.Server, f.Code, f.Message)})
	}
	lines = slices.DeleteFunc(lines, func(l line) bool { return l.at.IsZero() || l.at.Before(g.began) })
	slices.SortFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%8.2f s  %s\n", l.at.Sub(g.began).Seconds(), l.text)
	}
	return b.String()
}

// result logs a line that `make e2e` shows.
func result(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("RESULT "+strings.TrimPrefix(t.Name(), "TestRollout/")+": "+format, args...)
}

// restart restarts a workload and waits until all its pods are new ones, and the
// old ones gone.
func (g *stage) restart(t *testing.T, kind, name string, replicas int) time.Duration {
	t.Helper()
	begin := time.Now()
	old := map[string]bool{}
	for _, p := range g.r.pods(t, g.namespace, name, replicas) {
		old[p.UID] = true
	}
	g.r.kubectl(t, "-n", g.namespace, "rollout", "restart", kind+"/"+name)
	g.replaced(t, name, replicas, old)
	return time.Since(begin)
}

// replaced waits until an app has that many ready pods, none of the old ones.
func (g *stage) replaced(t *testing.T, name string, replicas int, old map[string]bool) {
	t.Helper()
	eventually(t, 5*time.Minute, name+" is rolled out", func() error {
		pods, err := g.r.c.Pods(t.Context(), g.namespace, "app="+name)
		if err != nil {
			return err
		}
		ready, left := 0, 0
		for _, p := range pods {
			switch {
			case old[p.UID]:
				left++
			case p.Ready && !p.Deleting:
				ready++
			}
		}
		if ready != replicas || left > 0 || len(pods) != replicas {
			return fmt.Errorf("%d new ones ready, %d old ones left, %d in all", ready, left, len(pods))
		}
		return nil
	})
}

// phases of a server's pod which matter here.
type holds struct {
	// ready is from when the app's container was ready until the pod was, drain
	// from the deletion to the end of the app, which exits at SIGTERM.
	ready, drain []time.Duration
}

func (g *stage) holds(app string) holds {
	var h holds
	for _, p := range g.watch.Pods() {
		ct, ok := p.Containers["app"]
		if !ok || !strings.HasPrefix(p.Name, app+"-") {
			continue
		}
		if !ct.Ready.IsZero() && !p.Ready.IsZero() {
			h.ready = append(h.ready, p.Ready.Sub(ct.Ready))
		}
		if !p.Deleting.IsZero() && !ct.Exited.IsZero() {
			h.drain = append(h.drain, ct.Exited.Sub(p.Deleting))
		}
	}
	return h
}

func (h holds) String() string {
	return fmt.Sprintf("Ready %s after the app (median of %d, at most %s), SIGTERM %s after the deletion (median of %d, at most %s)",
		median(h.ready), len(h.ready), longest(h.ready), median(h.drain), len(h.drain), longest(h.drain))
}

func median(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ds))
	return s[len(s)/2].Round(10 * time.Millisecond)
}

func longest(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	return slices.Max(ds).Round(10 * time.Millisecond)
}

// wantEven checks the spread over an app's servers when the load has ended: with
// streams open, least_request prefers servers that have fewer of them.
func (g *stage) wantEven(t *testing.T, app string, replicas int) {
	t.Helper()
	servers := g.r.pods(t, g.namespace, app, replicas)
	for _, c := range g.clients {
		got := c.run(t, "n=3000&concurrency=6&delay_ms=3")
		wantAll(t, c.pod.Name+" at the end", got, 3000)
		wantSpread(t, c.pod.Name+" at the end", got, servers)
	}
}

// gap is the longest time in which no RPC of any client succeeded while the load
// ran.
func (o outcome) gap() time.Duration {
	var times []int64
	for _, p := range o.parts {
		for _, b := range p.Timeline {
			if len(b.ByServer) > 0 && b.MS < o.until.UnixMilli() {
				times = append(times, b.MS)
			}
		}
	}
	slices.Sort(times)
	most := int64(0)
	for i := 1; i < len(times); i++ {
		most = max(most, times[i]-times[i-1])
	}
	return time.Duration(most) * time.Millisecond
}
