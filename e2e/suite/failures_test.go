// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// since is what a client saw in the buckets from at on.
func (v seen) since(at time.Time) (by map[string]int64, failed int64) {
	by = map[string]int64{}
	for _, b := range v.Timeline {
		if time.UnixMilli(b.MS).Before(at) {
			continue
		}
		failed += b.Failed
		for server, n := range b.ByServer {
			by[server] += n
		}
	}
	return by, failed
}

// testKilledWorker: the supervisor brings the worker back; the channel that the
// app had is balanced again within a second.
func testKilledWorker(t *testing.T, s *suite) {
	servers := s.pods(t, shop, "pricing", 3)
	load := goClient("worker", "pricing:50051", "--rate=300")
	s.apply(t, shop, load)
	defer s.delete(t, shop, load)
	c := s.client(t, shop, "worker")
	for i := range 3 {
		c.reset(t)
		time.Sleep(500 * time.Millisecond)
		victim := s.worker(t, c.pod)
		killed := time.Now()
		kill(t, victim)
		time.Sleep(4 * time.Second)
		got := c.stats(t)
		by, failed := got.since(killed.Add(time.Second).Truncate(100 * time.Millisecond).Add(100 * time.Millisecond))
		if failed != 0 {
			t.Errorf("kill %d: %d RPCs failed later than a second after it: %+v", i+1, failed, got.Errors)
		}
		if cv, most := spread(by, servers), maxSpread(by, servers); !(cv <= most) {
			t.Errorf("kill %d: spread %.1f %% from a second after it, want at most %.1f %%: %v", i+1, 100*cv, 100*most, by)
		}
		t.Logf("kill %d: %d RPCs failed in all, %d reconnects", i+1, got.Failed, got.Connects)
		if next := s.worker(t, c.pod); next.PID == victim.PID {
			t.Error("the worker was not replaced")
		}
	}
	pod, err := s.c.Pod(t.Context(), shop, c.pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	ct, err := pod.Container("evenkeel-sidecar")
	if err != nil || ct.Restarts != 0 {
		t.Errorf("the container of the killed workers: %+v, %v, want no restart of the container", ct, err)
	}
}

// testKilledSidecar: without a sidecar, connections go where the app meant, and
// are counted; with it again, new ones are balanced.
func testKilledSidecar(t *testing.T, s *suite) {
	servers := s.pods(t, shop, "pricing", 3)
	load := goClient("open", "pricing:50051", "--rate=200")
	s.apply(t, shop, load)
	defer s.delete(t, shop, load)
	c := s.client(t, shop, "open")
	if n, err := s.directConnections(t.Context(), c.pod); err != nil || n != 0 {
		t.Errorf("direct connections before: %v, %v, want 0", n, err)
	}
	c.reset(t)
	if err := s.c.KillContainer(t.Context(), shop, c.pod.Name, "evenkeel-sidecar"); err != nil {
		t.Fatal(err)
	}
	// At once, while there is no sidecar, a new channel works. What was in the
	// dying listener's backlog is reset: hence the second try.
	direct := false
	eventually(t, time.Second, "a new connection without a sidecar works", func() error {
		got := c.run(t, "n=20&concurrency=2")
		if got.Failed != 0 {
			return fmt.Errorf("%d of 20 RPCs failed: %+v", got.Failed, got.Errors)
		}
		direct = len(got.ByServer) == 1
		return nil
	})
	if !direct {
		t.Log("the sidecar was back before the new connection")
	}
	eventually(t, 30*time.Second, "the sidecar runs again", func() error {
		p, err := s.c.Pod(t.Context(), shop, c.pod.Name)
		if err != nil {
			return err
		}
		if ct, err := p.Container("evenkeel-sidecar"); err != nil || ct.Restarts != 1 || !ct.Ready {
			return fmt.Errorf("%+v, %w", ct, err)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	got := c.stats(t)
	if _, failed := got.since(time.Now().Add(-1500 * time.Millisecond)); failed != 0 {
		t.Errorf("%d RPCs still fail after the sidecar is back: %+v", failed, got.Errors)
	}
	t.Logf("the load's channel: %d RPCs failed, %d reconnects", got.Failed, got.Connects)
	if got.Connects == 0 {
		t.Error("the load's channel did not reconnect: was the sidecar killed?")
	}
	if n, err := s.directConnections(t.Context(), c.pod); err != nil || n < 1 {
		t.Errorf("direct connections: %v, %v, want the one of the load's channel", n, err)
	}
	got = c.run(t, "n=3000&concurrency=6&delay_ms=3")
	wantAll(t, "new connection after the sidecar is back", got, 3000)
	// The load's direct connection weighs on one of them.
	wantShares(t, "new connection after the sidecar is back", got, servers)
}

// directConnections reads the gauge at the sidecar's pod port.
func (s *suite) directConnections(ctx context.Context, pod cluster.Pod) (float64, error) {
	b, err := s.http(ctx, http.MethodGet, "http://"+pod.IP.String()+":15952/metrics")
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for sc := bufio.NewScanner(strings.NewReader(string(b))); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), " ")
		if bare, _, _ := strings.Cut(name, "{"); bare == "evenkeel_direct_connections" {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum, found = sum+n, true
		}
	}
	if !found && !strings.Contains(string(b), "evenkeel_") {
		return 0, fmt.Errorf("no metric of Evenkeel in\n%s", b)
	}
	return sum, nil
}

// testControlPlaneAway: running traffic goes on, new pods start and work; when the
// control plane is back, the same channels are balanced.
func testControlPlaneAway(t *testing.T, s *suite) {
	servers := s.pods(t, shop, "pricing", 3)
	old := goClient("old", "pricing:50051", "--rate=200")
	s.apply(t, shop, old)
	defer s.delete(t, shop, old)
	before := s.client(t, shop, "old")
	before.reset(t)

	s.kubectl(t, "-n", "evenkeel-system", "scale", "deploy/evenkeel-xds", "--replicas=0")
	eventually(t, time.Minute, "the control plane is away", func() error {
		out, err := s.c.Kubectl(t.Context(), "-n", "evenkeel-system", "get", "pods", "-o", "name")
		if err == nil && strings.Contains(out, "evenkeel-xds") {
			err = fmt.Errorf("still %s", out)
		}
		return err
	})
	away := time.Now()
	fresh := goClient("fresh", "pricing:50051", "--rate=100")
	s.apply(t, shop, fresh)
	defer s.delete(t, shop, fresh)
	c := s.client(t, shop, "fresh") // is ready, so the pod has started
	eventually(t, 10*time.Second, "a new pod's RPCs succeed without a control plane", func() error {
		if n := c.stats(t).Succeeded; n < 100 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	got := before.stats(t)
	by, failed := got.since(away)
	if failed != 0 || got.Failed != 0 || got.Connects != 0 {
		t.Errorf("running traffic: %d failed, %d reconnects while the control plane was away: %+v", got.Failed, got.Connects, got.Errors)
	}
	if cv, most := spread(by, servers), maxSpread(by, servers); !(cv <= most) {
		t.Errorf("running traffic without a control plane: spread %.1f %%, want at most %.1f %%: %v", 100*cv, 100*most, by)
	}
	if got := c.stats(t); got.Failed != 0 {
		t.Errorf("new pod's traffic: %d failed: %+v", got.Failed, got.Errors)
	}

	c.reset(t)
	s.kubectl(t, "-n", "evenkeel-system", "scale", "deploy/evenkeel-xds", "--replicas=2")
	if err := s.c.WaitDeployment(t.Context(), "evenkeel-system", "evenkeel-xds", time.Minute); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	// Reconnecting has a jittered backoff of at most 5 s, and the informers need a moment.
	eventually(t, 20*time.Second, "the same channel is balanced", func() error {
		by, _ := c.stats(t).since(time.Now().Add(-time.Second))
		if cv := spread(by, servers); !(cv <= maxSpread(by, servers)) {
			return fmt.Errorf("spread %.1f %%: %v", 100*cv, by)
		}
		return nil
	})
	t.Logf("balanced %s after the control plane was back", time.Since(back).Round(100*time.Millisecond))
	if got := c.stats(t); got.Failed != 0 || got.Connects != 0 {
		t.Errorf("coming back: %d failed, %d reconnects: %+v", got.Failed, got.Connects, got.Errors)
	}
}

// testServiceMadeAndDeleted: a Service that appears while its clients run, and
// goes while they run.
func testServiceMadeAndDeleted(t *testing.T, s *suite) {
	late := service("late", "pricing", "{name: grpc, port: 50051, targetPort: grpc-main}", "")
	load := goClient("early", "late:50051", "--rate=50")
	s.apply(t, shop, load)
	defer s.delete(t, shop, load)
	c := s.client(t, shop, "early")
	servers := s.pods(t, shop, "pricing", 3)
	s.apply(t, shop, late)
	eventually(t, 40*time.Second, "the client that was there first is balanced", func() error { // its DNS and backoff count
		by, _ := c.stats(t).since(time.Now().Add(-2 * time.Second))
		if cv := spread(by, servers); !(cv <= maxSpread(by, servers)) {
			return fmt.Errorf("spread %.1f %%: %v", 100*cv, by)
		}
		return nil
	})
	s.delete(t, shop, late)
	other := s.client(t, shop, "go").run(t, "n=3000&concurrency=6&delay_ms=3")
	wantAll(t, "another Service while one is deleted", other, 3000)
	wantSpread(t, "another Service while one is deleted", other, servers)
}

// testUninstall: after helm uninstall, pods that run keep working, and of Evenkeel
// nothing is left but what they have.
func testUninstall(t *testing.T, s *suite) {
	c := s.client(t, shop, "go")
	if _, err := s.c.Helm(t.Context(), "uninstall", "evenkeel", "-n", "evenkeel-system", "--wait", "--timeout=2m"); err != nil {
		t.Fatal(err)
	}
	wantAll(t, "a pod that runs, after the uninstall", c.run(t, "n=600&concurrency=4"), 600)
	for _, kind := range []string{"mutatingwebhookconfigurations", "clusterroles", "clusterrolebindings"} {
		if out := s.kubectl(t, "get", kind, "-o", "name"); strings.Contains(out, "evenkeel") {
			t.Errorf("left behind: %s", out)
		}
	}
	for _, kind := range []string{"deployments", "services", "secrets", "configmaps", "leases"} {
		if out := s.kubectl(t, "get", kind, "-A", "-o", "name"); strings.Contains(out, "evenkeel") {
			t.Errorf("left behind: %s", out)
		}
	}
}
