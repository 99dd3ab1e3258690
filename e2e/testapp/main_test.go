// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"evenkeel.dev/e2e/testapp/internal/client"
	"evenkeel.dev/e2e/testapp/internal/server"
	"evenkeel.dev/e2e/testapp/internal/stats"
)

// startServer runs a server until the test ends and returns its addresses.
func startServer(t *testing.T, cfg server.Config) (service, admin string) {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	if cfg.Protocol == "" {
		cfg.Protocol = server.GRPC
	}
	if cfg.Exit == "" {
		cfg.Exit = server.ExitNow
	}
	started := make(chan [2]string, 1)
	cfg.Started = func(s, a net.Addr) { started <- [2]string{s.String(), a.String()} }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-started:
		return a[0], a[1]
	case err := <-done:
		t.Fatal(err)
		return "", ""
	}
}

func startClient(t *testing.T, cfg client.Config) string {
	t.Helper()
	cfg.Logger, cfg.HTTP = slog.New(slog.DiscardHandler), "127.0.0.1:0"
	if cfg.Call.Kind == "" {
		cfg.Call.Kind = client.Unary
	}
	if cfg.Call.Protocol == "" {
		cfg.Call.Protocol = "grpc"
	}
	cfg.Call.Deadline = 20 * time.Second
	started := make(chan string, 1)
	cfg.Started = func(a net.Addr) { started <- a.String() }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- client.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-started:
		return "http://" + a
	case err := <-done:
		t.Fatal(err)
		return ""
	}
}

func request(t *testing.T, method, url string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

func snapshot(t *testing.T, method, url string) stats.Snapshot {
	t.Helper()
	code, b := request(t, method, url)
	var s stats.Snapshot
	if code != http.StatusOK {
		t.Fatalf("%s %s: %d: %s", method, url, code, b)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryKindOfRPC(t *testing.T) {
	cert, err := server.SelfSigned("s", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := startServer(t, server.Config{Name: "plain"})
	secure, _ := startServer(t, server.Config{Name: "secure", Certificate: cert})
	old, _ := startServer(t, server.Config{Name: "old", Protocol: server.HTTP1})
	oldSecure, _ := startServer(t, server.Config{Name: "old-secure", Protocol: server.HTTP1, Certificate: cert})
	base := startClient(t, client.Config{Call: client.Call{Target: plain}})
	for _, tt := range []struct{ name, query, server string }{
		{"unary", "kind=unary", "plain"},
		{"server stream", "kind=server-stream", "plain"},
		{"client stream", "kind=client-stream", "plain"},
		{"bidi", "kind=bidi", "plain"},
		{"mix", "kind=mix&concurrency=4", "plain"},
		{"large", "kind=mix&bytes=200000", "plain"},
		{"round_robin", "policy=round_robin", "plain"},
		{"tls", "kind=mix&tls=true&target=" + secure, "secure"},
		{"http1", "protocol=http1&target=" + old, "old"},
		{"https1", "protocol=http1&tls=true&target=" + oldSecure, "old-secure"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot(t, http.MethodPost, base+"/run?n=20&"+tt.query)
			if s.Succeeded != 20 || s.Failed != 0 || s.ByServer[tt.server] != 20 {
				t.Errorf("got %+v, want 20 successes by %s", s, tt.server)
			}
			if s.Connects < 1 || s.Peers["127.0.0.1"] != 20 {
				t.Errorf("connections %d, peers %v", s.Connects, s.Peers)
			}
		})
	}
	s := snapshot(t, http.MethodPost, base+"/run?n=12&channels=6")
	if s.Connects != 6 || s.Remotes[plain] != 6 {
		t.Errorf("6 channels: %d connections to %v", s.Connects, s.Remotes)
	}
}

func TestFailuresAreTold(t *testing.T) {
	addr, _ := startServer(t, server.Config{Name: "s"})
	base := startClient(t, client.Config{Call: client.Call{Target: addr}})
	s := snapshot(t, http.MethodPost, base+"/run?n=3&deadline_ms=50&delay_ms=2000")
	if s.Failed != 3 || len(s.Errors) == 0 || s.Errors[0].Code != "DeadlineExceeded" {
		t.Errorf("deadline: %+v", s)
	}
	// A port on which nobody listens.
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	ln.Close()
	s = snapshot(t, http.MethodPost, base+"/run?n=2&target="+nobody)
	if s.Failed != 2 || s.ConnectFailures < 1 || s.Errors[0].Code != "Unavailable" {
		t.Errorf("nobody listens: %+v", s)
	}
	for _, query := range []string{"n=x", "colour=red", "kind=trinary", "protocol=quic"} {
		key, _, _ := strings.Cut(query, "=")
		if code, b := request(t, http.MethodPost, base+"/run?"+query); code != http.StatusBadRequest || !strings.Contains(string(b), key) {
			t.Errorf("/run?%s: %d %s, want 400 that names %s", query, code, b, key)
		}
	}
}

func TestConstantRate(t *testing.T) {
	addr, admin := startServer(t, server.Config{Name: "s"})
	base := startClient(t, client.Config{Call: client.Call{Target: addr}, Rate: 200})
	eventually(t, func() error {
		if s := snapshot(t, http.MethodGet, base+"/stats"); s.Succeeded < 100 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if code, _ := request(t, http.MethodPost, base+"/rate?value=0"); code != http.StatusOK {
		t.Errorf("rate: %d", code)
	}
	if code, _ := request(t, http.MethodPost, base+"/rate?value=-1"); code != http.StatusBadRequest {
		t.Errorf("a negative rate: %d, want 400", code)
	}
	eventually(t, func() error { // what was in flight ends
		if s := snapshot(t, http.MethodGet, base+"/stats"); s.Started != s.Succeeded+s.Failed {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	request(t, http.MethodPost, base+"/reset")
	time.Sleep(100 * time.Millisecond)
	if s := snapshot(t, http.MethodGet, base+"/stats?timeline=1"); s.Started != 0 || len(s.Timeline) != 0 {
		t.Errorf("at rate 0, after a reset: %+v", s)
	}
	_, b := request(t, http.MethodGet, "http://"+admin+"/stats")
	var st server.Stats
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	if st.Accepted != 1 || st.Open != 1 || st.Started < 100 || st.Ended != st.Started {
		t.Errorf("server: %+v", st)
	}
}

func TestReadyDelay(t *testing.T) {
	addr, admin := startServer(t, server.Config{Name: "s", ReadyDelay: 500 * time.Millisecond})
	if code, _ := request(t, http.MethodGet, "http://"+admin+"/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("/ready at the start: %d, want 503", code)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, func() error {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			return err
		}
		if res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return fmt.Errorf("%s", res.GetStatus())
		}
		return nil
	})
	if code, _ := request(t, http.MethodGet, "http://"+admin+"/ready"); code != http.StatusOK {
		t.Errorf("/ready later: %d, want 200", code)
	}
}

// With "graceful" an RPC in flight ends well after SIGTERM; with "now" it fails.
func TestExit(t *testing.T) {
	for exit, want := range map[server.Exit]int64{server.ExitGraceful: 1, server.ExitNow: 0} {
		t.Run(string(exit), func(t *testing.T) {
			addrs := make(chan string, 1)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- server.Run(ctx, server.Config{
					Logger: slog.New(slog.DiscardHandler), Name: "s", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Protocol: server.GRPC, Exit: exit,
					Started: func(s, _ net.Addr) { addrs <- s.String() },
				})
			}()
			base := startClient(t, client.Config{Call: client.Call{Target: <-addrs}})
			time.AfterFunc(300*time.Millisecond, cancel)
			s := snapshot(t, http.MethodPost, base+"/run?n=1&delay_ms=1000")
			if s.Succeeded != want {
				t.Errorf("got %+v, want %d successes", s, want)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "usage"},
		{[]string{"proxy"}, `unknown command "proxy"`},
		{[]string{"client"}, "--target: missing"},
		{[]string{"client", "--target=a:1", "--kind=x"}, `kind: "x"`},
		{[]string{"client", "--target=a:1", "rest"}, `unexpected argument "rest"`},
		{[]string{"server", "--protocol=x", "--exit=y"}, `--exit: "y"`},
		{[]string{"server", "--colour"}, "colour"},
	} {
		var stderr bytes.Buffer
		if code := run(tt.args, &stderr); code == 0 || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%v: exit status %d, output %q, want one that says %s", tt.args, code, stderr.String(), tt.want)
		}
	}
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatal(err)
}
