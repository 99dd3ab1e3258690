// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster"
	"evenkeel.dev/e2e/testapp/images"
)

// childEnv makes the test binary a process that starts a cluster and waits to
// be killed.
const childEnv = "EVENKEEL_E2E_CLUSTER_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if _, err := cluster.Start(context.Background(), cluster.Config{Name: name, Nodes: 1}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("started")
		select {}
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: namespaces and cgroups")
	}
}

// TestCluster walks through what the harness promises, on one cluster.
func TestCluster(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cfg := cluster.Config{Name: "harness", Progress: func(line string) { t.Log(line) }}
	if err := cluster.Build(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("started in %s", time.Since(begin).Round(100*time.Millisecond))
	stopped := false
	t.Cleanup(func() {
		if stopped {
			return
		}
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	h := &harness{ctx: ctx, c: c}
	for _, s := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"Nodes", h.nodes},
		{"SecondStartIsRefused", h.secondStart},
		{"TestPrograms", h.testPrograms},
		{"DialContextResolvesAndReachesServices", h.dial},
		{"KilledContainerIsRestarted", h.killContainer},
		{"StoppedProcessAnswersAgain", h.stopProcess},
		{"EvictionAndItsPhases", h.evict},
		{"CutOffPod", h.cutOff},
		{"KilledDaemonComesBack", h.killDaemon},
		{"StoppedKubeletMakesNodeNotReady", h.stopKubelet},
		{"UnpluggedNodeIsNotReady", h.unplug},
		{"NodeReboots", h.reboot},
		{"Dump", h.dump},
	} {
		if !t.Run(s.name, s.f) {
			dir := filepath.Join(os.TempDir(), "evenkeel-harness-dump")
			t.Logf("dump: %v, in %s", c.Dump(ctx, dir), dir)
			return
		}
	}
	stopped = true
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, "harness")
}

type harness struct {
	ctx context.Context
	c   *cluster.Cluster
}

func (h *harness) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := h.c.Kubectl(h.ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (h *harness) nodes(t *testing.T) {
	out := h.kubectl(t, "get", "nodes", "--no-headers")
	for _, name := range h.c.Nodes() {
		if !strings.Contains(out, name) {
			t.Errorf("kubectl get nodes does not list %s:\n%s", name, out)
		}
	}
	if n := strings.Count(out, " Ready "); n != 2 {
		t.Errorf("%d nodes are Ready, want 2:\n%s", n, out)
	}
}

func (h *harness) secondStart(t *testing.T) {
	_, err := cluster.Start(h.ctx, cluster.Config{Name: "harness"})
	if err == nil || !strings.Contains(err.Error(), "in use by process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("a second Start: got error %v, want one that names the process which holds the cluster", err)
	}
	if err := cluster.Down(h.ctx, cluster.Config{Name: "harness"}); err == nil {
		t.Error("Down of a cluster that a live process holds succeeded")
	}
}

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  ports: [{name: grpc, port: 50051}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: echo}
spec:
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: echo
        image: e2e.local/testapp:1
        imagePullPolicy: Never
        args: [server]
        readinessProbe: {grpc: {port: 50051}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: client}
spec:
  selector: {app: client}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  nodeName: node1
  containers:
  - name: client
    image: e2e.local/testapp:1
    imagePullPolicy: Never
    args: [client, --target=echo:50051, --rate=50, --deadline=30s]
    readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: python, labels: {app: python}}
spec:
  nodeName: node1
  containers:
  - name: client
    image: e2e.local/testapp-python:1
    imagePullPolicy: Never
    args: [client, --target=echo:50051, --rate=50, --deadline=30s]
    readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
`

// testPrograms loads both images, runs a server on each node, and checks what
// the clients tell: pinned by default, spread over new channels.
func (h *harness) testPrograms(t *testing.T) {
	cfg := images.Config{Progress: func(line string) { t.Log(line) }}
	goImage, err := images.Go(h.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	pythonImage, err := images.Python(h.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.c.LoadImage(h.ctx, goImage, pythonImage); err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.KubectlInput(h.ctx, manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	servers, err := h.c.WaitPods(h.ctx, "default", "app=echo", 2, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if servers[0].Node == servers[1].Node {
		t.Errorf("both servers run on %s", servers[0].Node)
	}
	for _, app := range []string{"client", "python"} {
		if _, err := h.c.WaitPods(h.ctx, "default", "app="+app, 1, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		pod, err := h.c.Pod(h.ctx, "default", app)
		if err != nil {
			t.Fatal(err)
		}
		base := "http://" + pod.IP.String() + ":8080"
		h.eventually(t, app+": 200 RPCs on one channel reach 1 server over 1 connection", func() error {
			got := h.run(t, base+"/run?n=200&concurrency=4&kind=mix")
			if got.Failed != 0 || got.Succeeded != 200 || len(got.ByServer) != 1 || got.Connects != 1 {
				return fmt.Errorf("got %+v", got)
			}
			return nil
		})
		// 24 connections to one of two servers at random: all to the same in
		// 1 of 8 million runs, once kube-proxy knows both.
		var spread snapshot
		h.eventually(t, app+": 48 RPCs on 24 channels reach 2 servers", func() error {
			spread = h.run(t, base+"/run?n=48&channels=24")
			if spread.Failed != 0 || len(spread.ByServer) != 2 {
				return fmt.Errorf("got %+v", spread)
			}
			return nil
		})
		// The load may have begun before kube-proxy knew the Service, and the
		// channel is in backoff for a second then: count from when it works.
		h.eventually(t, app+": constant load", func() error {
			if _, err := h.get(h.ctx, http.MethodPost, base+"/reset"); err != nil && !errors.Is(err, errNoJSON) {
				return err
			}
			time.Sleep(500 * time.Millisecond)
			if got := h.stats(t, base); got.Succeeded == 0 || got.Failed != 0 {
				return fmt.Errorf("got %+v, want some RPCs and none failed", got)
			}
			return nil
		})
		if spread.Authorities["echo:50051"] != 48 {
			t.Errorf("%s: authorities: got %v, want echo:50051 48 times", app, spread.Authorities)
		}
	}
}

func (h *harness) dial(t *testing.T) {
	ips, err := h.c.LookupHost(h.ctx, "kubernetes.default.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	if len(ips) != 1 || ips[0].String() != "10.96.0.1" {
		t.Errorf("kubernetes.default: got %v, want 10.96.0.1", ips)
	}
	if got := h.stats(t, "http://client.default.svc.cluster.local:8080"); got.SinceMS == 0 {
		t.Errorf("stats by the Service's name: got %+v", got)
	}
	if _, err := h.c.LookupHost(h.ctx, "nobody.default.svc.cluster.local"); err == nil {
		t.Error("a name that does not exist was resolved")
	}
}

func (h *harness) killContainer(t *testing.T) {
	if err := h.c.KillContainer(h.ctx, "default", "client", "client"); err != nil {
		t.Fatal(err)
	}
	h.eventually(t, "the container runs again", func() error {
		p, err := h.c.Pod(h.ctx, "default", "client")
		if err != nil {
			return err
		}
		if ct := p.Containers[0]; ct.Restarts != 1 || !ct.Ready || ct.ExitCode != 137 {
			return fmt.Errorf("%+v", ct)
		}
		return nil
	})
}

func (h *harness) stopProcess(t *testing.T) {
	if err := h.c.SignalContainer(h.ctx, "default", "client", "client", unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.ctx, 500*time.Millisecond)
	defer cancel()
	pod, err := h.c.Pod(h.ctx, "default", "client")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + pod.IP.String() + ":8080/stats"
	if _, err := h.get(ctx, http.MethodGet, url); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a stopped process: got %v, want a time-out", err)
	}
	if err := h.c.SignalContainer(h.ctx, "default", "client", "client", unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := h.get(h.ctx, http.MethodGet, url); err != nil {
		t.Errorf("after SIGCONT: %v", err)
	}
}

func (h *harness) killDaemon(t *testing.T) {
	if err := h.c.SignalDaemon(cluster.ControlPlane, cluster.APIServer, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.eventually(t, "the API server answers again", func() error {
		_, err := h.c.Kubectl(h.ctx, "get", "nodes")
		return err
	})
	if err := h.c.SignalDaemon("node1", "cron", unix.SIGTERM); err == nil || !strings.Contains(err.Error(), `no daemon "cron"`) {
		t.Errorf("a daemon that does not exist: got error %v", err)
	}
}

func (h *harness) stopKubelet(t *testing.T) {
	if err := h.c.StopDaemon("node2", cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	h.wantCondition(t, "node2", cluster.NodeNotReady)
	if err := h.c.StartDaemon("node2", cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	h.wantCondition(t, "node2", cluster.NodeReady)
}

func (h *harness) unplug(t *testing.T) {
	if err := h.c.Unplug(h.ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	h.wantCondition(t, "node2", cluster.NodeNotReady)
	if err := h.c.Plug(h.ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	h.wantCondition(t, "node2", cluster.NodeReady)
}

func (h *harness) reboot(t *testing.T) {
	if err := h.c.PowerOff(h.ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	if err := h.c.PowerOff(h.ctx, "node2"); err == nil {
		t.Error("a node that is off was switched off again")
	}
	h.wantCondition(t, "node2", cluster.NodeNotReady)
	if err := h.c.PowerOn(h.ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	h.wantCondition(t, "node2", cluster.NodeReady)
	if _, err := h.c.WaitPods(h.ctx, "default", "app=echo", 2, 2*time.Minute); err != nil {
		t.Error(err)
	}
}

func (h *harness) dump(t *testing.T) {
	dir := t.TempDir()
	if err := h.c.Dump(h.ctx, dir); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		"events.txt":                           "Container started",
		"pods.txt":                             "echo-",
		"node1/audit.log":                      `"verb":"create"`,
		"node2/kubelet.log":                    "kubelet",
		"pods/node1/default_client_*/*/*0.log": "running",
	} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			t.Errorf("dump has no %s", pattern)
			continue
		}
		if b, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("dump: %s does not contain %q (error %v)", pattern, want, err)
		}
	}
}

func (h *harness) wantCondition(t *testing.T, node string, want cluster.NodeCondition) {
	t.Helper()
	if err := h.c.WaitNode(h.ctx, node, want); err != nil {
		t.Fatal(err)
	}
}

// snapshot is the part of the clients' JSON that is checked here.
type snapshot struct {
	Started, Succeeded, Failed, Connects int64
	SinceMS                              int64            `json:"since_ms"`
	ByServer                             map[string]int64 `json:"by_server"`
	Authorities                          map[string]int64
	Errors                               []map[string]any
}

func (h *harness) run(t *testing.T, url string) snapshot {
	t.Helper()
	s, err := h.get(h.ctx, http.MethodPost, url)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *harness) stats(t *testing.T, base string) snapshot {
	t.Helper()
	s, err := h.get(h.ctx, http.MethodGet, base+"/stats")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *harness) get(ctx context.Context, method, url string) (snapshot, error) {
	var s snapshot
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: h.c.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return s, err
	}
	res, err := client.Do(req)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return s, err
	}
	if res.StatusCode != http.StatusOK {
		return s, fmt.Errorf("%s %s: %s: %s", method, url, res.Status, b)
	}
	if len(b) == 0 {
		return s, errNoJSON
	}
	return s, json.Unmarshal(b, &s)
}

// errNoJSON is the answer of what has nothing to tell.
var errNoJSON = errors.New("an empty answer")

func (h *harness) eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not after a minute: %v", what, err)
}

// TestKilledHarnessLeavesNothingRunning kills a process with a running cluster.
func TestKilledHarnessLeavesNothingRunning(t *testing.T) {
	needRoot(t)
	const name = "killed"
	startChild(t, name)
	deadline := time.Now().Add(20 * time.Second)
	for len(traces(t, name)) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("20 s after the harness was killed there are still: %v", traces(t, name))
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := cluster.Down(t.Context(), cluster.Config{Name: name}); err != nil {
		t.Error(err)
	}
	wantNothingLeft(t, name)
	if err := cluster.Down(t.Context(), cluster.Config{Name: name}); err != nil {
		t.Errorf("Down without a cluster: %v", err)
	}
}

// startChild starts a cluster in another process and kills that.
func startChild(t *testing.T, name string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "started\n" {
		t.Fatalf("child: %q, %v", line, err)
	}
	if len(traces(t, name)) == 0 {
		t.Fatal("a running cluster leaves no trace: this test could not fail")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// TestDownAfterCrashes kills nodes and loses the state, then cleans up.
func TestDownAfterCrashes(t *testing.T) {
	needRoot(t)
	cfg := cluster.Config{Name: "crash"}
	c, err := cluster.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir := c.NodeDir("node1")
	if err := c.Detach(); err != nil {
		t.Fatal(err)
	}
	opened, err := cluster.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := opened.NodePID("node2")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(dir), "state.json")); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Down(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft(t, "crash")
	if _, err := cluster.Open(cfg); err == nil {
		t.Error("Open found a cluster after Down")
	}
}

// wantNothingLeft checks that no trace of the cluster is on the machine.
func wantNothingLeft(t *testing.T, name string) {
	t.Helper()
	if left := traces(t, name); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	state, err := filepath.Glob(filepath.Join(cache, "evenkeel/run/evenkeel-"+name+"-*"))
	if err != nil || len(state) > 0 {
		t.Errorf("left behind: %v (%v)", state, err)
	}
}

// traces lists cgroups, processes and mounts that belong to the cluster.
func traces(t *testing.T, name string) []string {
	t.Helper()
	mark := "evenkeel-" + name + "-"
	var found []string
	cgroups, err := filepath.Glob("/sys/fs/cgroup/" + mark + "*")
	if err != nil {
		t.Fatal(err)
	}
	v1, err := filepath.Glob("/sys/fs/cgroup/*/" + mark + "*")
	if err != nil {
		t.Fatal(err)
	}
	found = append(append(found, cgroups...), v1...)
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		for _, file := range []string{"cmdline", "cgroup"} {
			b, err := os.ReadFile(filepath.Join(p, file))
			if err != nil {
				continue // has ended
			}
			if strings.Contains(string(b), mark) {
				found = append(found, p+" "+strings.ReplaceAll(string(b), "\x00", " "))
				break
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, mark) {
			found = append(found, line)
		}
	}
	return found
}
