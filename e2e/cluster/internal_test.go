// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster/internal/node"
)

func TestConfigDefaults(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Nodes != 2 || cfg.Name != "default" || cfg.ProxyMode != "nftables" || !filepath.IsAbs(cfg.CacheDir) {
		t.Errorf("defaults: %+v", cfg)
	}
	if _, err := os.Stat(filepath.Join(cfg.Checkout, "go.mod")); err != nil {
		t.Errorf("checkout: %v", err)
	}
	other := cfg
	other.Checkout = "/somewhere/else"
	if cfg.id() == other.id() {
		t.Error("two checkouts have one cluster")
	}
	other = cfg
	other.Name = "other"
	if cfg.id() == other.id() {
		t.Error("two names have one cluster")
	}
}

func TestConfigReportsEveryMistake(t *testing.T) {
	_, err := Config{Name: "No Spaces", Nodes: 4, ProxyMode: "ipvs"}.withDefaults()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`Name: "No Spaces"`, "Nodes: 4", `ProxyMode: "ipvs"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %s:\n%s", want, err)
		}
	}
	t.Chdir(t.TempDir())
	if _, err := (Config{}).withDefaults(); err == nil || !strings.Contains(err.Error(), "not in a checkout") {
		t.Errorf("outside a checkout: got error %v", err)
	}
}

func TestProcessIsNotMistakenForItsSuccessor(t *testing.T) {
	p, err := processOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !p.alive() {
		t.Error("this process is not alive")
	}
	p.Started = "1"
	if p.alive() {
		t.Error("a process with the pid but another start time is taken for it")
	}
	// Must not end this test.
	if err := p.kill(time.Second); err != nil {
		t.Error(err)
	}
	if (process{}).alive() {
		t.Error("no process is alive")
	}
}

func TestLock(t *testing.T) {
	cfg, err := Config{CacheDir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	first, err := lockCluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockCluster(cfg); err == nil || !strings.Contains(err.Error(), "in use by process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("a second lock: got error %v, want one that names the holder", err)
	}
	// As Down does: who has the old file open must not get the lock.
	old, err := os.Open(cfg.lockFile())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := os.Remove(cfg.lockFile()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if ours, err := tryLock(old); ours || err != nil {
		t.Errorf("lock of a removed file: ours %v, error %v", ours, err)
	}
	second, err := lockCluster(cfg)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestState(t *testing.T) {
	cfg, err := Config{CacheDir: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := readState(cfg); st != nil || err != nil {
		t.Errorf("no state: got %v, %v", st, err)
	}
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("Open without a cluster: got error %v", err)
	}
	if err := os.MkdirAll(cfg.runDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	want := &state{Nodes: 3, HostPort: 7, Running: map[string]process{"node1": {PID: 5, Started: "6"}}}
	if err := want.write(cfg); err != nil {
		t.Fatal(err)
	}
	got, err := readState(cfg)
	if err != nil || got.Nodes != 3 || got.HostPort != 7 || got.Running["node1"] != want.Running["node1"] {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := os.WriteFile(cfg.stateFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(cfg); err == nil || !strings.Contains(err.Error(), cfg.stateFile()) {
		t.Errorf("broken state: got error %v, want one that names the file", err)
	}
}

func TestAPIPod(t *testing.T) {
	now := time.Now()
	var a apiPod
	a.Metadata.Name, a.Metadata.DeletionTimestamp = "p", &now
	a.Status.Conditions = []condition{{Type: "Ready", Status: "True"}}
	a.Status.PodIP = "10.244.1.7"
	a.Status.InitContainerStatuses = []apiContainer{{Name: "sidecar", ContainerID: "containerd://abc", Ready: true}}
	app := apiContainer{Name: "app", RestartCount: 2}
	app.State.Waiting = &struct{ Reason string }{"CrashLoopBackOff"}
	app.LastState.Terminated = &struct {
		Reason   string
		ExitCode int
	}{"Error", 137}
	a.Status.ContainerStatuses = []apiContainer{app}
	p := a.pod()
	if !p.Ready || !p.Deleting || p.IP.String() != "10.244.1.7" {
		t.Errorf("pod: %+v", p)
	}
	if c := p.Containers[0]; !c.Init || c.ID != "abc" {
		t.Errorf("init container: %+v", c)
	}
	if c := p.Containers[1]; c.Init || c.Restarts != 2 || c.Reason != "CrashLoopBackOff" || c.ExitCode != 137 || c.ID != "" {
		t.Errorf("container: %+v", c)
	}
	if _, err := p.Container("nobody"); err == nil || !strings.Contains(err.Error(), "sidecar, app") {
		t.Errorf("a container that does not exist: got error %v, want one that lists them", err)
	}
}

func TestAddresses(t *testing.T) {
	c := &Cluster{cfg: Config{Nodes: 2}, state: &state{Running: map[string]process{}}}
	if got := strings.Join(c.Nodes(), " "); got != "node1 node2" {
		t.Errorf("nodes: %s", got)
	}
	if got := c.NodeIP("node2").String(); got != "10.240.0.12" {
		t.Errorf("address of node2: %s", got)
	}
	if c.NodeIP("node3").IsValid() {
		t.Error("a node that does not exist has an address")
	}
	if _, err := c.DialContext(t.Context(), "tcp", "10.96.0.1:443"); err == nil || !strings.Contains(err.Error(), "node1 is not running") {
		t.Errorf("dial without a node: got error %v", err)
	}
	if err := c.PowerOn(t.Context(), "node9"); err == nil || !strings.Contains(err.Error(), `no node "node9"`) {
		t.Errorf("power on what does not exist: got error %v", err)
	}
	if len(portOf("node3")) > 15 || node.Uplink == "" {
		t.Error("interface names have at most 15 characters")
	}
}

func TestTail(t *testing.T) {
	b := tail{limit: 4}
	for _, s := range []string{"ab", "cd", "ef"} {
		if n, err := b.Write([]byte(s)); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if b.String() != "cdef" {
		t.Errorf("got %q, want the last 4 bytes", b.String())
	}
}
