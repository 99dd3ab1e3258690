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

// testInstalled installs the chart as the README says.
func testInstalled(t *testing.T, s *suite) {
	begin := time.Now()
	s.install(t)
	t.Logf("helm install --wait: %s", time.Since(begin).Round(100*time.Millisecond))
	for _, d := range []string{"evenkeel-xds", "evenkeel-injector"} {
		if got := s.kubectl(t, "-n", "evenkeel-system", "get", "deploy", d, "-o", "jsonpath={.status.readyReplicas} {.spec.replicas}"); got != "2 2" {
			t.Errorf("deployment %s: ready and wanted replicas %q, want 2 2", d, got)
		}
		if got := s.kubectl(t, "-n", "evenkeel-system", "get", "pdb", d, "-o", "jsonpath={.status.disruptionsAllowed}"); got != "1" {
			t.Errorf("PodDisruptionBudget %s allows %q disruptions, want 1", d, got)
		}
	}
	if _, err := s.c.KubectlInput(t.Context(), namespaces, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	s.waitCA(t, shop)
	if _, err := s.c.Kubectl(t.Context(), "-n", plain, "get", "configmap", "evenkeel-ca"); err == nil {
		t.Error("a namespace without the label got the CA's ConfigMap")
	}
}

// testBalanced: Go's and Python's client, each with one channel and the default
// pick_first, reach all servers evenly; without the label, one server only.
func testBalanced(t *testing.T, s *suite) {
	s.apply(t, shop, pricing(3)+goClient("go", "pricing:50051")+pythonClient("python", "pricing:50051"))
	s.apply(t, plain, pricing(3)+goClient("go", "pricing:50051")+pythonClient("python", "pricing:50051"))
	servers := s.pods(t, shop, "pricing", 3)
	s.pods(t, plain, "pricing", 3)
	for _, app := range []string{"go", "python"} {
		got := s.client(t, plain, app).run(t, "n=600&concurrency=4")
		wantAll(t, app+" without the label", got, 600)
		if len(got.ByServer) != 1 {
			t.Errorf("%s without the label: %v, want one server: is the test's premise gone?", app, got.ByServer)
		}

		// Each RPC waits 3 ms at its server, which is most of what it takes: all
		// servers are of equal cost, however the machine shares its cores out.
		got = s.client(t, shop, app).run(t, "n=6000&concurrency=6&delay_ms=3")
		wantAll(t, app, got, 6000)
		wantSpread(t, app, got, servers)
		if got.Connects != 1 {
			t.Errorf("%s: %d connections, want 1", app, got.Connects)
		}
		got = s.client(t, shop, app).run(t, "n=200&concurrency=4&kind=mix&bytes=70000")
		wantAll(t, app+", streams of 70 kB messages", got, 200)
	}
	t.Run("IPv4Mapped", func(t *testing.T) { s.wantMapped(t) })
	s.delete(t, plain, pricing(3)+goClient("go", "")+pythonClient("python", ""))
}

// wantMapped checks that grpcio's balanced connections did come from IPv4-mapped
// IPv6 sockets, so that the test above is one of them.
func (s *suite) wantMapped(t *testing.T) {
	pod := s.client(t, shop, "python").pod
	ps, err := s.c.Processes(t.Context(), shop, pod.Name, "app")
	if err != nil || len(ps) == 0 {
		t.Fatalf("processes of the Python client: %v, %v", ps, err)
	}
	// proc_pid_net(5): the address is four 32-bit words in host order; ::ffff:127.0.0.1.
	const mapped = "0000000000000000FFFF00000100007F:"
	c := s.client(t, shop, "python")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.http(t.Context(), "POST", "http://"+c.pod.IP.String()+":8080/run?n=20&delay_ms=100") // its connection is looked at
	}()
	defer func() { <-done }()
	eventually(t, 2*time.Second, "an IPv4-mapped socket connected to the sidecar", func() error {
		b, err := readProc(ps[0].PID, "net/tcp6")
		if err == nil && !strings.Contains(b, mapped) {
			err = fmt.Errorf("no %s in\n%s", mapped, b)
		}
		return err
	})
}

// testScaleOut: servers that become ready later get their share within a second,
// while the clients never reconnect.
func testScaleOut(t *testing.T, s *suite) {
	s.apply(t, shop, goClient("load", "pricing:50051", "--rate=800")+pythonClient("loadpy", "pricing:50051", "--rate=100"))
	c, py := s.client(t, shop, "load"), s.client(t, shop, "loadpy")
	eventually(t, 20*time.Second, "the load reaches all servers", func() error {
		if n := len(c.stats(t).ByServer); n < 3 {
			return fmt.Errorf("%d of 3", n)
		}
		return nil
	})
	c.reset(t)
	py.reset(t)
	s.kubectl(t, "-n", shop, "scale", "deploy/pricing", "--replicas=10")
	ready := s.readyTimes(t, "pricing", 10)
	time.Sleep(6 * time.Second)
	got, gotPy := c.stats(t), py.stats(t)
	for who, v := range map[string]seen{"Go": got, "Python": gotPy} {
		if v.Failed != 0 || v.Connects != 0 {
			t.Errorf("%s: %d failed and %d reconnects while scaling, want none: %+v", who, v.Failed, v.Connects, v.Errors)
		}
	}
	wantFairShare(t, got, ready)
	if n := len(gotPy.ByServer); n != 10 {
		t.Errorf("Python reached %d of 10 servers: %v", n, gotPy.ByServer)
	}
	s.delete(t, shop, goClient("load", "")+pythonClient("loadpy", ""))
	s.kubectl(t, "-n", shop, "scale", "deploy/pricing", "--replicas=3")
	eventually(t, time.Minute, "seven servers are gone", func() error {
		pods, err := s.c.Pods(t.Context(), shop, "app=pricing")
		if err == nil && len(pods) != 3 {
			err = fmt.Errorf("%d pods", len(pods))
		}
		return err
	})
}

// readyTimes polls until n pods are ready and tells when each was first seen so.
func (s *suite) readyTimes(t *testing.T, app string, n int) map[string]time.Time {
	t.Helper()
	ready := map[string]time.Time{}
	eventually(t, 2*time.Minute, fmt.Sprintf("%d pods of %s are ready", n, app), func() error {
		pods, err := s.c.Pods(t.Context(), shop, "app="+app)
		if err != nil {
			return err
		}
		now := time.Now()
		for _, p := range pods {
			if _, ok := ready[p.Name]; p.Ready && !ok {
				ready[p.Name] = now
			}
		}
		if len(ready) < n {
			return fmt.Errorf("%d are", len(ready))
		}
		return nil
	})
	return ready
}

// wantFairShare checks DESIGN §10: in the 1 s windows that begin 1 s or more after
// a server was seen ready, it has at least 80 % of the mean. Here a window holds
// some 80 RPCs of a server, and all servers, clients and Kubernetes share two
// cores: one window in a hundred may be a hiccup of the machine's, down to 60 %.
func wantFairShare(t *testing.T, got seen, ready map[string]time.Time) {
	t.Helper()
	const second = 10 // buckets
	if len(got.Timeline) < 2*second {
		t.Fatalf("the timeline has %d buckets", len(got.Timeline))
	}
	windows, low, worst := 0, 0, 1.0
	// The last bucket is not full.
	for i := 0; i+second < len(got.Timeline); i++ {
		w := got.Timeline[i : i+second]
		begin, end := time.UnixMilli(w[0].MS), time.UnixMilli(w[second-1].MS).Add(100*time.Millisecond)
		if end.Sub(begin) != time.Second {
			continue // a bucket without any RPC is missing: the machine stood still
		}
		total, by := int64(0), map[string]int64{}
		for _, b := range w {
			for server, n := range b.ByServer {
				by[server] += n
				total += n
			}
		}
		// The servers among which this second was shared: seen ready by its end,
		// or ahead of our polling.
		known := 0
		for server, at := range ready {
			if !at.After(end) || by[server] > 0 {
				known++
			}
		}
		if total < 500 || known == 0 {
			continue // below the rate for which the figure is promised
		}
		mean := float64(total) / float64(known)
		for server, at := range ready {
			if begin.Before(at.Add(time.Second)) {
				continue
			}
			windows++
			share := float64(by[server]) / mean
			worst = min(worst, share)
			if share >= 0.8 {
				continue
			}
			low++
			report := t.Logf
			if share < 0.6 {
				report = t.Errorf
			}
			report("%s: %.0f %% of the mean (%d of %d RPCs, %d servers) in the second that begins %s after it was ready",
				server, 100*share, by[server], total, known, begin.Sub(at).Round(100*time.Millisecond))
		}
	}
	if low*100 > windows {
		t.Errorf("%d of %d windows below 80 %% of the mean", low, windows)
	}
	if windows == 0 {
		t.Error("no window of a second with at least 500 RPCs: nothing was measured")
	}
	t.Logf("the smallest share of a server in %d windows: %.0f %% of the mean; %d below 80 %%", windows, 100*worst, low)
}

// processes of the sidecar's container: its supervisor and its worker.
func (s *suite) worker(t *testing.T, pod cluster.Pod) cluster.Process {
	t.Helper()
	ps, err := s.c.Processes(t.Context(), pod.Namespace, pod.Name, "evenkeel-sidecar")
	if err != nil {
		t.Fatal(err)
	}
	if len(ps) != 2 {
		t.Fatalf("the sidecar's container has the processes %v, want a supervisor and a worker", ps)
	}
	// The supervisor is PID 1 of the container: the parent of the other.
	stat, err := readProc(ps[1].PID, "status")
	if err == nil && strings.Contains(stat, fmt.Sprintf("PPid:\t%d\n", ps[0].PID)) {
		return ps[1]
	}
	return ps[0]
}

func kill(t *testing.T, p cluster.Process) {
	t.Helper()
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
