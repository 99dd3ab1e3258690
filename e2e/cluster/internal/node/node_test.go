// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// children is one for the whole test process, as in a node: it waits for any
// child.
var children = sync.OnceValue(newProcesses)

func spec(t *testing.T) *Spec {
	t.Helper()
	return &Spec{
		Cluster: "evenkeel-test-0", Name: "node2", IP: netip.MustParseAddr("10.240.0.12"), PodCIDR: netip.MustParsePrefix("10.244.2.0/24"),
		Network: Network{
			Services: netip.MustParsePrefix("10.96.0.0/16"), Pods: netip.MustParsePrefix("10.244.0.0/16"),
			DNS: netip.MustParseAddr("10.96.0.10"), APIServer: netip.MustParseAddrPort("10.240.0.11:6443"),
		},
		ProxyMode: "iptables", Dir: t.TempDir(), PKI: "/pki", PauseImage: "e2e.local/pause:1",
		Programs: map[string]string{"cni": "/bin/cni", "runc": "/bin/runc", "containerd-shim-runc-v2": "/bin/shim"},
	}
}

func TestSpecSurvivesTheFile(t *testing.T) {
	s := spec(t)
	s.Peers = []Peer{{IP: netip.MustParseAddr("10.240.0.11"), PodCIDR: netip.MustParsePrefix("10.244.1.0/24")}}
	file := filepath.Join(t.TempDir(), "spec.json")
	if err := s.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSpec(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(got)
	if err != nil || string(a) != string(b) {
		t.Errorf("wrote %s, read %s (%v)", a, b, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSpec(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a broken spec: got error %v, want one that names the file", err)
	}
}

func TestConfigsAreWellFormed(t *testing.T) {
	s := spec(t)
	if err := writeConfigs(s); err != nil {
		t.Fatal(err)
	}
	text := func(file string) string {
		b, err := os.ReadFile(s.path(file))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var kubelet struct {
		CgroupRoot, Address string
		ClusterDNS          []string
		FailCgroupV1        *bool
	}
	if err := yaml.Unmarshal([]byte(text("etc/kubelet.yaml")), &kubelet); err != nil {
		t.Error(err)
	}
	if kubelet.CgroupRoot != "/evenkeel-test-0/node2" || kubelet.Address != "10.240.0.12" || kubelet.ClusterDNS[0] != "10.96.0.10" || kubelet.FailCgroupV1 == nil {
		t.Errorf("kubelet: %+v", kubelet)
	}
	var proxy struct{ Mode, ClusterCIDR, HostnameOverride string }
	if err := yaml.Unmarshal([]byte(text("etc/kube-proxy.yaml")), &proxy); err != nil {
		t.Error(err)
	}
	if proxy.Mode != "iptables" || proxy.ClusterCIDR != "10.244.0.0/16" || proxy.HostnameOverride != "node2" {
		t.Errorf("kube-proxy: %+v", proxy)
	}
	var cni struct {
		Plugins []struct {
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal([]byte(text("etc/cni/10-pods.conflist")), &cni); err != nil {
		t.Fatal(err)
	}
	if got := cni.Plugins[0].IPAM.Ranges[0][0].Subnet; got != "10.244.2.0/24" {
		t.Errorf("CNI: subnet %q", got)
	}
	for _, want := range []string{`sandbox = "e2e.local/pause:1"`, `BinaryName = "/bin/runc"`, `bin_dirs = ["/bin/cni"]`, `conf_dir = "` + s.path("etc/cni") + `"`} {
		if !strings.Contains(text("etc/containerd.toml"), want) {
			t.Errorf("containerd.toml has no %s", want)
		}
	}
	var audit map[string]any
	if err := yaml.Unmarshal([]byte(text("etc/audit.yaml")), &audit); err != nil {
		t.Error(err)
	}
}

func TestCRILoaded(t *testing.T) {
	const head = "TYPE ID PLATFORMS STATUS\nio.containerd.cri.v1 images - ok\n"
	for _, tt := range []struct {
		name, plugins string
		want          bool
	}{
		{"loaded", head + "io.containerd.grpc.v1                cri                   -              ok\n", true},
		{"failed", head + "io.containerd.grpc.v1                cri                   -              error\n", false},
		{"absent", head, false},
		{"nothing", "", false},
	} {
		if got := criLoaded(tt.plugins); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRunReapsWhatEndsAtOnce(t *testing.T) {
	ps := children()
	for range 50 {
		out, err := ps.run("in", "/bin/sh", "-c", "cat; echo out")
		if err != nil || out != "inout\n" {
			t.Fatalf("got %q, %v", out, err)
		}
	}
	_, err := ps.run("", "/bin/sh", "-c", "echo why >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "why") {
		t.Errorf("a command that fails: got error %v, want its status and output", err)
	}
	_, err = ps.run("", "/bin/sh", "-c", "kill -9 $$")
	if err == nil || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("a command that is killed: got error %v, want the signal", err)
	}
	if _, err := ps.run("", "/does/not/exist"); err == nil {
		t.Error("a program that does not exist was run")
	}
}

// supervise starts a daemon whose control socket is served.
func supervise(t *testing.T) (socket, log string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the daemon is started in a cgroup")
	}
	cgroup, err := os.Open("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil {
		cgroup.Close()
		if cgroup, err = os.Open("/sys/fs/cgroup/unified"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { cgroup.Close() })
	dir := t.TempDir()
	socket, log = filepath.Join(dir, "control.sock"), filepath.Join(dir, "sleeper.log")
	d := &daemon{
		name: "sleeper", argv: []string{"/bin/sh", "-c", "echo started; exec sleep 600"}, log: slog.New(slog.DiscardHandler),
		ps: children(), cgroup: cgroup, output: log, orders: make(chan order),
	}
	r := &registry{daemons: map[string]*daemon{}}
	r.add(d)
	if err := serveControl(socket, r, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	go d.run()
	t.Cleanup(func() { _, _ = Order(socket, Request{Daemon: "sleeper", Verb: "stop"}) })
	return socket, log
}

func pidOf(t *testing.T, socket string) int {
	t.Helper()
	pid, err := Order(socket, Request{Daemon: "sleeper", Verb: "pid"})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func starts(t *testing.T, log string, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(log)
		if err == nil && strings.Count(string(b), "started") >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("started %d times, want %d (%v)", strings.Count(string(b), "started"), n, err)
		}
	}
}

func TestDaemonIsRestartedUnlessStopped(t *testing.T) {
	socket, log := supervise(t)
	starts(t, log, 1)
	first := pidOf(t, socket)
	if _, err := Order(socket, Request{Daemon: "sleeper", Verb: "signal", Signal: int(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	starts(t, log, 2)
	second := pidOf(t, socket)
	if second == first {
		t.Errorf("pid %d after the restart as before", second)
	}
	if _, err := Order(socket, Request{Daemon: "sleeper", Verb: "stop"}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(second, 0); err == nil {
		t.Error("it runs after stop")
	}
	time.Sleep(2 * restartDelay)
	if b, err := os.ReadFile(log); err != nil || strings.Count(string(b), "started") != 2 {
		t.Errorf("a stopped daemon was started: %q, %v", b, err)
	}
	if _, err := Order(socket, Request{Daemon: "sleeper", Verb: "pid"}); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("pid of a stopped daemon: got error %v", err)
	}
	if _, err := Order(socket, Request{Daemon: "sleeper", Verb: "start"}); err != nil {
		t.Fatal(err)
	}
	starts(t, log, 3)
}

func TestControlRefusesNonsense(t *testing.T) {
	socket, _ := supervise(t)
	for _, tt := range []struct {
		req  Request
		want string
	}{
		{Request{Daemon: "cron", Verb: "stop"}, `no daemon "cron" on this node: it has sleeper`},
		{Request{Daemon: "sleeper", Verb: "dance"}, `unknown order "dance"`},
	} {
		if _, err := Order(socket, tt.req); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got error %v, want one that says %s", tt.req, err, tt.want)
		}
	}
	if _, err := Order(filepath.Join(t.TempDir(), "nobody"), Request{}); err == nil {
		t.Error("an order to nobody was carried out")
	}
}

func TestRunOnlyAsPID1(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.json")
	if err := spec(t).Write(file); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), file); err == nil || !strings.Contains(err.Error(), "PID 1") {
		t.Errorf("got error %v, want a refusal: it would change this machine", err)
	}
}
