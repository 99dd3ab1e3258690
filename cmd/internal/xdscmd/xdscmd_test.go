// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestCommandLine(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args   string
		status int
		parts  []string // of stdout for status 0, else of stderr
	}{
		"nothing":         {"", run.Misused, []string{"Usage:"}},
		"unknown command": {"serve", run.Misused, []string{`unknown command "serve"`}},
		"unknown flag":    {"run --lissten=:1", run.Misused, []string{"lissten", "xds run --help"}},
		"argument":        {"run now", run.Misused, []string{`"now"`}},
		"all at once": {
			"run --listen=x --admin-listen=y:z --cluster-domain=.A --files=" + dir + " --kubeconfig=k --audience= --settle=-1s", run.Misused,
			[]string{"--listen:", "--admin-listen:", "--cluster-domain:", "--settle: -1s is below zero", "--files: not together with --kubeconfig", "--files: needs --listen=unix", "--audience:"},
		},
		"no path":               {"run --listen=unix://", run.Misused, []string{"unix:///path"}},
		"long path":             {"run --listen=unix:///" + strings.Repeat("x", 120), run.Misused, []string{"107"}},
		"no cluster":            {"run --admin-listen=", run.Failed, []string{"no cluster", "--kubeconfig=FILE", "--files=DIR"}},
		"no such kubeconfig":    {"run --admin-listen= --kubeconfig=/does/not/exist", run.Failed, []string{"no cluster", "/does/not/exist"}},
		"no such directory":     {"run --admin-listen= --listen=unix:///tmp/x --files=/does/not/exist", run.Failed, []string{"/does/not/exist"}},
		"help":                  {"help", run.OK, []string{"xds run"}},
		"help of run":           {"run --help", run.OK, []string{"--help", "cluster-domain", "kubeconfig"}},
		"version":               {"version", run.OK, []string{"evenkeel-xds"}},
		"a file in the way":     {"run --admin-listen= --listen=unix://" + file(t, dir, "taken") + " --files=" + dir, run.Failed, []string{"not a socket"}},
		"admin address in use":  {"run --admin-listen=" + inUse(t) + " --listen=unix://" + dir + "/s --files=" + dir, run.Failed, []string{"--admin-listen", "in use"}},
		"directory of a socket": {"run --admin-listen= --listen=unix:///does/not/exist --files=" + dir, run.Failed, []string{"--listen", "no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr output
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			status := Main(ctx, strings.Fields(tt.args), &stdout, &stderr)
			text := stderr.String()
			if tt.status == run.OK {
				text = stdout.String()
			}
			if status != tt.status {
				t.Errorf("status %d, want %d; %s", status, tt.status, text)
			}
			for _, p := range tt.parts {
				if p != "--help" && !strings.Contains(text, p) {
					t.Errorf("it does not say %q:\n%s", p, text)
				}
			}
		})
	}
}

func file(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func inUse(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

const manifest = `apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec: {clusterIP: 10.96.0.4, ports: [{port: 50051}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pricing-1, namespace: shop, labels: {kubernetes.io/service-name: pricing}}
addressType: IPv4
ports: [{port: 50051}]
endpoints: [{addresses: [127.1.0.1]}]
`

// The whole command, as the sandbox runs it: files on one side, a sidecar on the
// other.
func TestServeFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "shop.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "xds.sock")
	leaveStaleSocket(t, socket)

	var log output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, []string{"run", "--files=" + dir, "--listen=unix://" + socket, "--admin-listen=127.0.0.1:0", "--log-format=text", "--log-level=debug"}, io.Discard, &log)
	}()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if status := <-done; status != run.OK {
			t.Errorf("status %d; log:\n%s", status, log.String())
		}
	}
	defer stop()
	admin := adminAddress(t, &log)
	eventually(t, "it is ready", func() bool { code, _ := get(t, admin, "/readyz"); return code == http.StatusOK })

	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info, err)
	}
	cc, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&discoverypb.DeltaDiscoveryRequest{
		Node: &corepb.Node{Id: "shop/web-1"}, TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{xds.EndpointCollection("shop/pricing:50051")},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantNames(t, stream, "127.1.0.1:50051", "*")
	if err := os.WriteFile(path, []byte(strings.Replace(manifest, "[127.1.0.1]", "[127.1.0.2]", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	wantNames(t, stream, "-127.1.0.1:50051", "127.1.0.2:50051")

	_, body := get(t, admin, "/metrics")
	for _, m := range []string{
		"evenkeel_xds_streams 1", `evenkeel_xds_subscriptions{type="endpoint"} 1`, `evenkeel_xds_pushes_total{type="endpoint"} 2`,
		"evenkeel_xds_watch_age_seconds{", "evenkeel_xds_propagation_seconds_count 1", `evenkeel_xds_objects{kind="Service"} 1`, "go_goroutines",
	} {
		if !strings.Contains(body, m) {
			t.Errorf("no %s in /metrics", m)
		}
	}
	_, body = get(t, admin, "/debug/subscriptions")
	var subs struct{ Services map[string]int }
	if err := json.Unmarshal([]byte(body), &subs); err != nil || subs.Services["shop/pricing:50051"] != 1 {
		t.Errorf("subscriptions: %s (%v)", body, err)
	}
	if _, body = get(t, admin, "/debug/subscriptions?service=shop/pricing:50051"); !strings.Contains(body, `"sidecars":["shop/web-1"]`) {
		t.Errorf("subscribers: %s", body)
	}
	if code, body := get(t, admin, "/debug/subscriptions?service=x"); code != http.StatusBadRequest || !strings.Contains(body, "namespace") {
		t.Errorf("bad question: %d %s", code, body)
	}
	if code, _ := get(t, admin, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}

	// A second one must not take the first one's socket away.
	var second output
	if status := Main(t.Context(), []string{"run", "--files=" + dir, "--listen=unix://" + socket, "--admin-listen="}, io.Discard, &second); status != run.Failed || !strings.Contains(second.String(), "another process") {
		t.Errorf("second on the same socket: %d %s", status, second.String())
	}
	stop()
	if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the stream ended with %v", err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left behind")
	}
}

// Sidecars cannot connect, and the probe says why, until there is a certificate.
func TestReadyWaitsForTheCertificate(t *testing.T) {
	var log output
	cfg, err := parse([]string{"--listen=127.0.0.1:0", "--admin-listen=", "--tls-cert=/does/not/exist", "--kubeconfig=" + kubeconfig(t)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := assemble(cfg, cfg.Log.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.serveADS(ctx) }()
	waiting := func() string { w, _ := p.status.get(); return w }
	eventually(t, "it waits for the API server", func() bool { return strings.Contains(waiting(), "API server") })
	p.Synced()
	eventually(t, "it waits for the certificate", func() bool { return strings.Contains(waiting(), "/does/not/exist") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if strings.Count(log.String(), "waiting for the serving certificate") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
}

// kubeconfig leads to a port where nobody listens.
func kubeconfig(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: 'http://%s'}}]\nusers: [{name: u, user: {token: x}}]\n", ln.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func leaveStaleSocket(t *testing.T, path string) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantNames receives one response and wants its members, removed ones with a dash.
func wantNames(t *testing.T, stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, want ...string) {
	t.Helper()
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	short := func(n string) string { return n[strings.LastIndexByte(n, '/')+1:] }
	for _, n := range r.GetRemovedResources() {
		got = append(got, "-"+short(n))
	}
	for _, res := range r.GetResources() {
		got = append(got, short(res.GetName()))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("received %v, want %v", got, want)
	}
	err = stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
	if err != nil {
		t.Fatal(err)
	}
}

var adminPattern = regexp.MustCompile(`msg="admin port is open" address=(\S+)`)

func adminAddress(t *testing.T, log *output) (addr string) {
	t.Helper()
	eventually(t, "the admin port is open", func() bool {
		m := adminPattern.FindStringSubmatch(log.String())
		if m != nil {
			addr = m[1]
		}
		return m != nil
	})
	return addr
}

func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never came true: %s", what)
}
