// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"evenkeel.dev/e2e/testapp/internal/client"
	"evenkeel.dev/e2e/testapp/internal/server"
	"evenkeel.dev/e2e/testapp/internal/stats"
)

// A load of RPCs and lasting streams is counted by kind; /stop waits for what is in
// flight.
func TestLastingStreams(t *testing.T) {
	addr, _ := startServer(t, server.Config{Name: "s"})
	base := startClient(t, client.Config{
		Call: client.Call{Target: addr, NoRetry: true}, Streams: client.Streams{Min: 500 * time.Millisecond, Max: time.Second},
	})
	if code, b := request(t, http.MethodPost, base+"/rate?value=100&streams=20"); code != http.StatusOK {
		t.Fatalf("rate: %d %s", code, b)
	}
	time.Sleep(1500 * time.Millisecond)
	s := snapshot(t, http.MethodPost, base+"/stop")
	if s.Started != s.Succeeded || s.Failed != 0 {
		t.Errorf("after /stop: %+v", s)
	}
	for kind, least := range map[client.Kind]int64{client.Unary: 50, client.LongServerStream: 5, client.LongBidi: 5} {
		if k := s.Kinds[string(kind)]; k.Succeeded < least || k.Succeeded != k.Started {
			t.Errorf("%s: %+v, want at least %d", kind, k, least)
		}
	}
	if s.Latency.Max > 400_000 {
		t.Errorf("the slowest RPC took %d µs: are streams among them?", s.Latency.Max)
	}
	begin := time.Now()
	s = snapshot(t, http.MethodPost, base+"/run?kind=long-bidi&length_ms=1000")
	if took := time.Since(begin); s.Succeeded != 1 || took < 700*time.Millisecond {
		t.Errorf("a stream of 1 s: %s, %+v", took, s)
	}
}

// A stream that is cut is told one by one: its kind, who had answered, when it began
// and ended.
func TestCutStreamIsTold(t *testing.T) {
	addrs := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- server.Run(ctx, server.Config{
			Logger: slog.New(slog.DiscardHandler), Name: "s", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Protocol: server.GRPC, Exit: server.ExitNow,
			Started: func(s, _ net.Addr) { addrs <- s.String() },
		})
	}()
	base := startClient(t, client.Config{Call: client.Call{Target: <-addrs}})
	time.AfterFunc(900*time.Millisecond, cancel)
	s := snapshot(t, http.MethodPost, base+"/run?kind=long-server-stream&length_ms=20000")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s.Failed != 1 || len(s.Failures) != 1 {
		t.Fatalf("%+v, want one failure", s)
	}
	if f := s.Failures[0]; f.Kind != "long-server-stream" || f.Server != "s" || f.Answers < 1 || f.Code != "Unavailable" || f.EndedMS-f.BeganMS < 500 {
		t.Errorf("told of the cut stream: %+v", f)
	}
}

// What a client saw goes to whom it reports to, after its lingering.
func TestReportAtTheEnd(t *testing.T) {
	got := make(chan stats.Snapshot, 1)
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var s stats.Snapshot
		if err := errors.Join(err, json.Unmarshal(b, &s)); err != nil {
			t.Errorf("report %s: %v", b, err)
		}
		got <- s
	}))
	defer to.Close()
	addr, _ := startServer(t, server.Config{Name: "s"})
	t.Run("client", func(t *testing.T) {
		startClient(t, client.Config{Call: client.Call{Target: addr}, Rate: 100, Linger: 500 * time.Millisecond, Report: to.URL})
	})
	if s := <-got; s.Succeeded < 20 || s.Failed != 0 {
		t.Errorf("%+v, want the RPCs of half a second", s)
	}
}
