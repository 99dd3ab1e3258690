// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"evenkeel.dev/cmd/internal/xdscmd"
	"evenkeel.dev/sidecar/hold"
)

// patience is for what should take milliseconds on a machine that is busy.
const patience = 20 * time.Second

// process is a sidecar that runs for real.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	err  error // after done

	mu    sync.Mutex
	lines []line
	text  bytes.Buffer
	more  chan struct{} // closed and replaced at each line

	port       int
	pod, debug string
}

type line struct {
	Time     time.Time
	Msg      string
	Cause    string
	PID      int
	Port     int
	Pod      string
	Debug    string
	Reason   string
	Hold     string
	Restarts int
	raw      string
}

// start runs `sidecar run` on free ports against a control plane.
func start(t *testing.T, xds string, args ...string) *process {
	t.Helper()
	p := prepare(t, xds, args...)
	p.launch()
	return p
}

func prepare(t *testing.T, xds string, args ...string) *process {
	t.Helper()
	args = append([]string{
		"run", "--listen-port=0", "--pod-listen=127.0.0.1:0", "--debug-listen=127.0.0.1:0",
		"--xds=" + xds, "--namespace=shop", "--pod=client-1",
	}, args...)
	return &process{t: t, cmd: command(args...), done: make(chan struct{}), more: make(chan struct{})}
}

func (p *process) launch() {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	w.Close()
	var read sync.WaitGroup
	read.Go(func() {
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			p.mu.Lock()
			p.text.WriteString(s.Text() + "\n")
			l := line{raw: s.Text()}
			if json.Unmarshal(s.Bytes(), &l) == nil {
				p.lines = append(p.lines, l)
			}
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
	})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		read.Wait() // also the worker has let go of the pipe
		if p.t.Failed() {
			p.t.Logf("the sidecar said:\n%s", p.text.String())
		}
	})
	l := p.waitFor("listening", 1)
	p.port, p.pod, p.debug = l.Port, l.Pod, l.Debug
}

// waitFor returns the nth line with a message.
func (p *process) waitFor(msg string, nth int) line {
	p.t.Helper()
	return p.waitForLine(msg, nth, func(l line) bool { return l.Msg == msg })
}

// waitForHold returns the nth line that says that a hold is over.
func (p *process) waitForHold(name string, nth int) line {
	p.t.Helper()
	return p.waitForLine("end of hold "+name, nth, func(l line) bool {
		return strings.HasPrefix(l.Msg, "hold is over") && l.Hold == name
	})
}

func (p *process) waitForLine(what string, nth int, is func(line) bool) line {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		n := 0
		for _, l := range p.lines {
			if is(l) {
				if n++; n == nth {
					p.mu.Unlock()
					return l
				}
			}
		}
		more := p.more
		p.mu.Unlock()
		select {
		case <-more:
		case <-timeout:
			p.t.Fatalf("%q was said %d times, want %d", what, n, nth)
		}
	}
}

func (p *process) count(msg string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.lines {
		if l.Msg == msg {
			n++
		}
	}
	return n
}

const (
	saidStarted = "worker started"
	saidEnded   = "worker ended and is restarted"
)

// worker is the pid of the nth worker.
func (p *process) worker(nth int) int {
	p.t.Helper()
	return p.waitFor(saidStarted, nth).PID
}

func (p *process) outbound() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// exits waits for the end of the supervisor.
func (p *process) exits(within time.Duration) error {
	p.t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(within):
		p.t.Fatalf("the sidecar still runs after %s", within)
		return nil
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func alive(pid int) bool {
	// A zombie has ended.
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

// backend is a gRPC server that says who it is.
type backend struct {
	grpc_health_v1.UnimplementedHealthServer
	addr string
}

func (b *backend) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// Watch answers once and stays open.
func (b *backend) Watch(_ *grpc_health_v1.HealthCheckRequest, s grpc_health_v1.Health_WatchServer) error {
	if err := s.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// startBackends serves on 127.0.0.2, .3, … on one port and counts the calls.
func startBackends(t *testing.T, n int) (port int, calls func() []int) {
	t.Helper()
	var mu sync.Mutex
	counts := make([]int, n)
	for i := range n {
		addr := fmt.Sprintf("127.0.0.%d:%d", i+2, port)
		ln, err := net.Listen("tcp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		if port == 0 {
			port = ln.Addr().(*net.TCPAddr).Port
		}
		s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			mu.Lock()
			counts[i]++
			mu.Unlock()
			if _, ok := peer.FromContext(ctx); !ok {
				return nil, errors.New("no peer")
			}
			return h(ctx, req)
		}))
		grpc_health_v1.RegisterHealthServer(s, &backend{addr: addr})
		served := make(chan struct{})
		go func() { defer close(served); _ = s.Serve(ln) }()
		t.Cleanup(func() { s.Stop(); <-served })
	}
	return port, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return append([]int(nil), counts...)
	}
}

// controlPlane runs the real one over a directory of manifests and returns what
// --xds wants.
func controlPlane(t *testing.T, port, backends int) string {
	t.Helper()
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	writeService(t, files, port, backends)
	return startControlPlane(t, files)
}

func startControlPlane(t *testing.T, files string) string {
	t.Helper()
	target := "unix://" + filepath.Join(t.TempDir(), "xds.sock")
	ctx, cancel := context.WithCancel(context.Background())
	var log bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- xdscmd.Main(ctx, []string{"run", "--files=" + files, "--listen=" + target, "--admin-listen="}, io.Discard, &log)
	}()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 || t.Failed() {
			t.Logf("the control plane ended with %d and said:\n%s", status, log.String())
		}
	})
	return target
}

func writeService(t *testing.T, dir string, port, backends int) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec: {clusterIP: 10.96.3.4, ports: [{port: 50051, targetPort: %d}], selector: {app: pricing}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pricing-1, namespace: shop, labels: {kubernetes.io/service-name: pricing}}
addressType: IPv4
ports: [{port: %d}]
endpoints:
`, port, port)
	for i := range backends {
		fmt.Fprintf(&b, "- {addresses: [127.0.0.%d], conditions: {ready: true}}\n", i+2)
	}
	if err := os.WriteFile(filepath.Join(dir, "pricing.yaml"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// client is an ordinary grpc-go channel to the sidecar's listener.
func client(t *testing.T, p *process) (grpc_health_v1.HealthClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.outbound(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("pricing.shop:50051"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn), conn
}

func check(t *testing.T, c grpc_health_v1.HealthClient, opts ...grpc.CallOption) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, opts...)
	return err
}

// world is a control plane, backends and a sidecar.
func world(t *testing.T, backends int, args ...string) (*process, func() []int) {
	t.Helper()
	port, calls := startBackends(t, backends)
	return start(t, controlPlane(t, port, backends), args...), calls
}

func TestServesBalancesAndOutlivesTheApp(t *testing.T) {
	p, calls := world(t, 3)

	out, err := command("wait", "--debug="+p.debug, "--timeout="+patience.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the sidecar serves after") {
		t.Fatalf("wait: %v: %s", err, out)
	}
	if code, body := get(t, "http://"+p.pod+"/ready"); code != 200 {
		t.Errorf("/ready: %d %s", code, body)
	}
	c, conn := client(t, p)
	const rpcs = 90
	for range rpcs {
		if err := check(t, c); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range calls() {
		if n < rpcs/3/2 {
			t.Errorf("backend %d has %d of %d RPCs", i, n, rpcs)
		}
	}
	code, body := get(t, "http://"+p.debug+"/debug/endpoints")
	var snap struct {
		Services []struct {
			Name      string
			Endpoints []struct{ Addr, State string }
		}
	}
	if err := json.Unmarshal([]byte(body), &snap); err != nil || code != 200 {
		t.Fatalf("/debug/endpoints: %d %v: %s", code, err, body)
	}
	if len(snap.Services) != 1 || snap.Services[0].Name != "shop/pricing:50051" || len(snap.Services[0].Endpoints) != 3 {
		t.Errorf("/debug/endpoints: %s", body)
	}
	_, metrics := get(t, "http://"+p.pod+"/metrics")
	for _, want := range []string{
		"evenkeel_discovery_connected 1", `evenkeel_discovery_resources{type="endpoint"} 3`,
		`evenkeel_sidecar_worker_restarts_total{cause="signal"} 0`, "evenkeel_redirect_effective ", "go_goroutines ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	if code, _ := get(t, "http://"+p.debug+"/debug/pprof/cmdline"); code != 200 {
		t.Errorf("pprof: %d", code)
	}

	// SIGTERM: the app still has a connection, so everything goes on, also a
	// second connection and RPCs on either.
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitFor("SIGTERM: serving until the app's connections are gone", 1)
	for range 10 {
		time.Sleep(50 * time.Millisecond)
		if err := check(t, c); err != nil {
			t.Fatalf("after SIGTERM: %v", err)
		}
	}
	c2, conn2 := client(t, p)
	if err := check(t, c2); err != nil {
		t.Fatalf("a new connection after SIGTERM: %v", err)
	}
	conn.Close()
	conn2.Close()
	if err := p.exits(patience); err != nil {
		t.Errorf("the sidecar ended with %v, want 0", err)
	}
	if n := p.count(saidEnded); n != 0 {
		t.Errorf("%d restarts", n)
	}
}

func TestKilledWorkerIsReplacedAtOnce(t *testing.T) {
	p, _ := world(t, 2)
	c, _ := client(t, p)
	if err := check(t, c, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		if err := syscall.Kill(p.worker(i), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		ended, started := p.waitFor(saidEnded, i), p.waitFor(saidStarted, i+1)
		// 100 ms is the promise on a machine of its own.
		if gap := started.Time.Sub(ended.Time); gap > 500*time.Millisecond {
			t.Errorf("crash %d: the next worker came after %s", i, gap)
		}
		if ended.Cause != causeSignal {
			t.Errorf("cause %q", ended.Cause)
		}
		// The same channel: the listener never went away.
		begin := time.Now()
		eventually(t, "RPCs on the same channel", func() bool { return check(t, c, grpc.WaitForReady(true)) == nil })
		t.Logf("crash %d: next worker after %s, RPC on the same channel after %s", i, started.Time.Sub(ended.Time), time.Since(begin))
	}
	eventually(t, "the metric counts both", func() bool {
		_, metrics := get(t, "http://"+p.pod+"/metrics")
		return strings.Contains(metrics, `evenkeel_sidecar_worker_restarts_total{cause="signal"} 2`)
	})
}

func TestHungWorkerIsReplaced(t *testing.T) {
	p, _ := world(t, 1)
	c, _ := client(t, p)
	if err := check(t, c, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * tick) // a beat was seen
	stopped := time.Now()
	if err := syscall.Kill(p.worker(1), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ended := p.waitFor(saidEnded, 1)
	if ended.Cause != causeHang {
		t.Errorf("cause %q, want hang", ended.Cause)
	}
	if d := ended.Time.Sub(stopped); d < time.Second || d > 5*time.Second {
		t.Errorf("replaced after %s, want about 2 s", d)
	}
	eventually(t, "RPCs on the same channel", func() bool { return check(t, c, grpc.WaitForReady(true)) == nil })
}

func TestProbeWaitsWhileTheWorkerIsAway(t *testing.T) {
	p, _ := world(t, 1)
	eventually(t, "ready", func() bool { code, _ := get(t, "http://"+p.pod+"/ready"); return code == 200 })
	dir := p.worker(1)
	if err := syscall.Kill(dir, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// No refused connection, ever: get fails the test on one.
	for range 20 {
		get(t, "http://"+p.pod+"/ready")
	}
}

func TestCrashLoopFailsOpenAndNeverEnds(t *testing.T) {
	p, _ := world(t, 1)
	const saidOpen = "crash loop: the app connects directly until the next attempt"
	for i := 1; i <= 6; i++ {
		pid := p.worker(i)
		opened := p.count(saidOpen) // all that was said before this worker
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.waitFor(saidEnded, i)
		if i < 6 {
			continue
		}
		// The pause is 0.8 s at least by now.
		p.waitFor(saidOpen, opened+1)
		conn, err := net.Dial("tcp4", p.outbound())
		if err == nil {
			conn.Close()
			t.Error("the listener is there although nobody serves it for long")
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	}
	// The pauses grow.
	first := p.waitFor(saidStarted, 2).Time.Sub(p.waitFor(saidEnded, 1).Time)
	last := p.waitFor(saidStarted, 7).Time.Sub(p.waitFor(saidEnded, 6).Time)
	if last < 4*first || last < 500*time.Millisecond {
		t.Errorf("the pauses do not grow: %s, then %s", first, last)
	}
	// And it comes back on the same port.
	c, _ := client(t, p)
	if err := check(t, c, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	select {
	case <-p.done:
		t.Errorf("the supervisor ended: %v", p.err)
	default:
	}
}

func TestWorkerEndsWithItsSupervisor(t *testing.T) {
	p, _ := world(t, 1)
	pid := p.worker(1)
	eventually(t, "ready", func() bool { code, _ := get(t, "http://"+p.pod+"/ready"); return code == 200 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker ends", func() bool { return !alive(pid) })
}

func TestInterruptStopsAtOnce(t *testing.T) {
	p, _ := world(t, 1)
	c, _ := client(t, p)
	if err := check(t, c, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	pid := p.worker(1)
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.exits(5 * time.Second); err != nil {
		t.Errorf("ended with %v", err)
	}
	if alive(pid) {
		t.Error("the worker still runs")
	}
}

func TestTermWhileTheWorkerCrashes(t *testing.T) {
	p, _ := world(t, 1)
	c, conn := client(t, p)
	if err := check(t, c, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitFor("SIGTERM: serving until the app's connections are gone", 1)
	if err := syscall.Kill(p.worker(1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// The app is still there: it is served by the next worker, for which the
	// word of the supervisor counts. It may take the app a moment to reconnect;
	// the worker may then be gone already, which is the end that was asked for.
	p.waitFor(saidStarted, 2)
	conn.Close()
	if err := p.exits(patience); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestWithoutControlPlane(t *testing.T) {
	state := t.TempDir()
	p := start(t, "unix://"+filepath.Join(t.TempDir(), "nobody"), "--state-dir="+state)
	begin := time.Now()
	eventually(t, "the probe says why", func() bool {
		code, body := get(t, "http://"+p.pod+"/ready")
		return code == 503 && strings.Contains(body, "waiting for the first word of the control plane")
	})
	out, err := command("wait", "--debug="+p.debug, "--timeout=300ms").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the app starts without the sidecar's word after") {
		t.Errorf("wait: %v: %s", err, out)
	}
	eventually(t, "ready after a silent control plane", func() bool { code, _ := get(t, "http://"+p.pod+"/ready"); return code == 200 })
	if d := time.Since(begin); d < hold.Silence-time.Second {
		t.Errorf("ready after %s: the control plane had no chance", d)
	}
	c, _ := client(t, p)
	if err := check(t, c); err == nil || !strings.Contains(status.Convert(err).Message(), "evenkeel: ") {
		t.Errorf("an RPC without a route: %v", err)
	}

	// The container restarts: it was ready, so it is.
	_ = p.cmd.Process.Kill()
	<-p.done
	again := start(t, "unix://"+filepath.Join(t.TempDir(), "nobody"), "--state-dir="+state)
	for _, want := range []string{"start", "ready"} {
		if l := again.waitForHold(want, 1); l.Reason != "latched" {
			t.Errorf("%s is over because %q", want, l.Reason)
		}
	}
}

func TestPortTakenIsAnErrorThatNamesIt(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := command("run", "--xds=unix:///x", "--namespace=a", "--pod=b",
		"--listen-port="+strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "listen on "+ln.Addr().String()) {
		t.Errorf("%v: %s", err, out)
	}
}
