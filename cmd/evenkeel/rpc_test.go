// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"evenkeel.dev/cmd/internal/sandbox"
)

// testClientCommand makes the test binary an ordinary gRPC client: the command of a sandbox.
const testClientCommand = "test-client"

// testClientMain calls until its stdin ends, and then writes how many RPCs succeeded and what the first failure was.
func testClientMain(args []string) int {
	flags := flag.NewFlagSet(testClientCommand, flag.ExitOnError)
	target := flags.String("target", "", "")
	authority := flags.String("authority", "", "")
	_ = flags.Parse(args)
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if *authority != "" {
		opts = append(opts, grpc.WithAuthority(*authority))
	}
	channel, err := grpc.NewClient(*target, opts...)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer channel.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	ok, failure := 0, "none"
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := channel.Invoke(ctx, "/test.Service/Method", new(emptypb.Empty), new(emptypb.Empty), grpc.WaitForReady(true))
		cancel()
		switch {
		case err == nil:
			ok++
		case failure == "none":
			failure = err.Error()
		}
		select {
		case <-ended:
			fmt.Printf("ok %d, first failure: %s\n", ok, failure)
			return 0
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// server counts the RPCs that reach it.
type server struct {
	addr *net.TCPAddr
	rpcs atomic.Int64
}

func startServer(t *testing.T, address string) *server {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: ln.Addr().(*net.TCPAddr)}
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		s.rpcs.Add(1)
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		return stream.SendMsg(new(emptypb.Empty))
	}))
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	return s
}

// endpointSlices are EndpointSlices for shop/name, one for each server: ports are a slice's.
func endpointSlices(name string, servers ...*server) string {
	var b strings.Builder
	for i, s := range servers {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, namespace: shop, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: grpc, port: %d}]
endpoints: [{addresses: [%s], hostname: %s-%d, conditions: {ready: true}}]
`, name, i, name, s.addr.Port, s.addr.IP, name, i)
	}
	return b.String()
}

// client is a sandbox with a test client in it.
type client struct {
	*process
	stdin  io.Closer
	report string
}

func startClient(t *testing.T, dir string, options []string, args ...string) *client {
	t.Helper()
	c := &client{report: filepath.Join(t.TempDir(), "report.json")}
	// The test binary goes by a path that the shell can expand the listener's address into.
	line := `exec "$0" "$@"`
	for i, arg := range args {
		if strings.Contains(arg, "$EVENKEEL_LISTENER") {
			line = fmt.Sprintf(`exec "$0" %s -target="$EVENKEEL_LISTENER" %s`, testClientCommand, strings.Join(args[i+1:], " "))
			args = nil
			break
		}
	}
	if args != nil {
		args = append([]string{testClientCommand}, args...)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"sandbox", "-f", dir, "--report", c.report}, options...)
	argv = append(append(argv, "--", "sh", "-c", line, exe), args...)
	c.process = start(t, func(cmd *exec.Cmd) {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		c.stdin = stdin
		// No question to the network's DNS about a service config.
		cmd.Env = append(os.Environ(), "GRPC_ENABLE_TXT_SERVICE_CONFIG=false")
	}, argv...)
	return c
}

// end ends the client and returns how many RPCs succeeded, what failed first ("none"), and the report.
func (c *client) end() (ok int, failure string, report sandbox.Report) {
	c.t.Helper()
	c.stdin.Close()
	if status := c.wait(); status != 0 {
		c.t.Errorf("exit status %d", status)
	}
	said := strings.TrimSpace(c.stdout.String())
	if _, err := fmt.Sscanf(said, "ok %d,", &ok); err != nil || ok == 0 {
		c.t.Errorf("the client says %q", said)
	}
	_, failure, _ = strings.Cut(said, "first failure: ")
	text, err := os.ReadFile(c.report)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		c.t.Fatalf("report: %v: %s", err, text)
	}
	return ok, failure, report
}

// reach waits until each server has got n RPCs more.
func (c *client) reach(n int64, servers ...*server) {
	c.t.Helper()
	for i, s := range servers {
		want := s.rpcs.Load() + n
		c.eventually(fmt.Sprintf("server %d gets %d RPCs more", i, n), func() bool { return s.rpcs.Load() >= want })
	}
}

func TestSandboxBalances(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	dir := readable(t)
	// As people write it, without a clusterIP: the API server assigns that.
	write(t, filepath.Join(dir, "service.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: pricing, namespace: shop}\nspec: {ports: [{name: grpc, port: 50051}]}\n")
	a, b, late := startServer(t, "127.0.0.1:0"), startServer(t, "127.0.0.1:0"), startServer(t, "127.0.0.1:0")
	write(t, filepath.Join(dir, "endpoints.yaml"), endpointSlices("pricing", a, b))
	c := startClient(t, dir, nil, "-target=pricing.shop:50051")
	c.reach(50, a, b)
	if n := late.rpcs.Load(); n != 0 {
		t.Errorf("a server that no slice names got %d RPCs", n)
	}
	write(t, filepath.Join(dir, "endpoints.yaml"), endpointSlices("pricing", a, b, late))
	c.reach(50, late, a, b)

	// The sidecar's worker dies: the client's channel connects again, and is balanced again.
	killWorker(t)
	c.reach(20, a, b, late)

	// A server goes. The report knows it all the same, and what the first worker counted, but for its last second.
	write(t, filepath.Join(dir, "endpoints.yaml"), endpointSlices("pricing", b, late))
	c.eventually("the first server gets nothing more", func() bool {
		before := a.rpcs.Load()
		time.Sleep(200 * time.Millisecond)
		return a.rpcs.Load() == before
	})

	// What was in flight then has failed, and nothing else is said about it here.
	ok, _, report := c.end()
	total := int(a.rpcs.Load() + b.rpcs.Load() + late.rpcs.Load())
	if total < ok {
		t.Errorf("%d RPCs succeeded, but the servers got %d", ok, total)
	}
	if len(report.Services) != 1 || report.Services[0].Service != "shop/pricing:50051" || report.Connections.Direct != 0 {
		t.Fatalf("report: %+v", report)
	}
	states := map[string]string{}
	for _, ep := range report.Services[0].Endpoints {
		states[ep.Address] = ep.State
		if ep.RPCs == 0 {
			t.Errorf("the report has no RPC for %s", ep.Address)
		}
	}
	want := map[string]string{a.addr.String(): "gone", b.addr.String(): "ready", late.addr.String(): "ready"}
	if !maps.Equal(states, want) {
		t.Errorf("endpoints in the report: %v, want %v", states, want)
	}
}

// killWorker kills the one worker of a sidecar of our binary.
func killWorker(t *testing.T) {
	t.Helper()
	for what := range remains() {
		if pid, ok := strings.CutPrefix(what, "/proc/"); ok && strings.Contains(what, "internal-sidecar worker") {
			n, err := strconv.Atoi(strings.Fields(pid)[0])
			if err == nil {
				err = syscall.Kill(n, syscall.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no worker found")
}

func TestSandboxHeadless(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	dir := readable(t)
	first := startServer(t, "127.0.0.2:0")
	port := strconv.Itoa(first.addr.Port)
	second := startServer(t, "127.0.0.3:"+port)
	write(t, filepath.Join(dir, "web.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: None, ports: [{name: grpc, port: "+port+"}]}\n"+
		endpointSlices("web", first, second))
	options := []string{"--outbound-ports", port}

	all := startClient(t, dir, options, "-target=web.shop:"+port)
	all.reach(50, first, second)
	ok, failure, report := all.end()
	if failure != "none" {
		t.Errorf("an RPC failed: %s", failure)
	}
	if len(report.Services) != 1 || report.Services[0].Service != "shop/web:"+port || report.Services[0].RPCs != uint64(ok) {
		t.Errorf("report: %+v, the client made %d RPCs", report.Services, ok)
	}

	before := second.rpcs.Load()
	one := startClient(t, dir, options, "-target=web-0.web.shop.svc.cluster.local:"+port)
	one.reach(50, first)
	_, failure, report = one.end()
	if failure != "none" {
		t.Errorf("an RPC failed: %s", failure)
	}
	if n := second.rpcs.Load() - before; n != 0 {
		t.Errorf("the name of one pod reached the other %d times", n)
	}
	if report.Connections.Redirected == 0 {
		t.Error("the pod's name was not redirected")
	}
}

func TestSandboxWithoutRedirectRoutesByAuthority(t *testing.T) {
	leavesNothing(t)
	dir := manifests(t)
	a, b := startServer(t, "127.0.0.1:0"), startServer(t, "127.0.0.1:0")
	write(t, filepath.Join(dir, "endpoints.yaml"), endpointSlices("pricing", a, b))
	c := startClient(t, dir, []string{"--redirect=none"}, "$EVENKEEL_LISTENER", "-authority=pricing.shop:50051")
	c.reach(50, a, b)
	ok, failure, report := c.end()
	if failure != "none" {
		t.Errorf("an RPC failed: %s", failure)
	}
	if len(report.Services) != 1 || report.Services[0].RPCs != uint64(ok) || report.Redirect != "none" || report.Connections != nil {
		t.Errorf("report: %+v, the client made %d RPCs", report, ok)
	}
}
