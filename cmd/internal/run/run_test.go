// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package run

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSignalsEndTheContextOnceAndThenLetGo(t *testing.T) {
	ctx, stop := Signals(t.Context())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("SIGTERM did not end the context")
	}
}

func TestLogFlags(t *testing.T) {
	for _, tc := range []struct {
		args    []string
		wantErr string
		debug   bool
		json    bool
	}{
		{nil, "", false, true},
		{[]string{"--log-level=debug", "--log-format=text"}, "", true, false},
		{[]string{"--log-level=WARNING"}, "", false, true},
		{[]string{"--log-level=loud"}, `log level "loud" is not known (debug, info, warn, error)`, false, false},
		{[]string{"--log-format=xml"}, `log format "xml" is not known (json, text)`, false, false},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			var c LogConfig
			fs := flag.NewFlagSet("x", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			c.RegisterFlags(fs)
			err := fs.Parse(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error = %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			log := c.New(&out)
			if got := log.Enabled(t.Context(), slog.LevelDebug); got != tc.debug {
				t.Errorf("debug enabled = %v, want %v", got, tc.debug)
			}
			log.Error("hello", "k", "v")
			if got := json.Valid(out.Bytes()); got != tc.json {
				t.Errorf("JSON = %v, want %v: %s", got, tc.json, out.String())
			}
		})
	}
}

func TestLogDurations(t *testing.T) {
	for _, f := range []LogFormat{LogJSON, LogText} {
		var out bytes.Buffer
		log := LogConfig{Format: f}.New(&out).With("lease", 5*time.Second)
		log.Info("hello", "took", 1500*time.Millisecond, slog.Group("hold", "bound", time.Minute), "n", int64(1500))
		for _, want := range []string{"took 1.5s", "bound 1m0s", "lease 5s", "n 1500"} {
			key, value, _ := strings.Cut(want, " ")
			quoted := `"` + key + `":"` + value + `"`
			if key == "n" {
				quoted = `"n":1500`
			}
			if f == LogText {
				quoted = key + "=" + value
			}
			if !strings.Contains(out.String(), quoted) {
				t.Errorf("no %s in %s", quoted, out.String())
			}
		}
	}
}

func TestAdminServesAndEndsWithItsContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /fast", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("GET /held", func(_ http.ResponseWriter, r *http.Request) {
		close(held)
		<-r.Context().Done()
	})
	HandlePprof(mux)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	a := Admin{Logger: slog.New(slog.DiscardHandler), Handler: mux}
	go func() { done <- a.Serve(ctx, ln) }()

	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	for path, want := range map[string]int{"/fast": 200, "/debug/pprof/goroutine": 200, "/none": 404} {
		res, err := client.Get("http://" + ln.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, res.StatusCode, want)
		}
	}
	go func() {
		if res, err := client.Get("http://" + ln.Addr().String() + "/held"); err == nil {
			res.Body.Close()
		}
	}()
	<-held
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve did not end: a held request kept it")
	}
	if c, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		c.Close()
		t.Error("the port still answers")
	}
}

func TestVersion(t *testing.T) {
	if VersionString() == "" {
		t.Error("no version")
	}
	if got := VersionLine("sidecar"); !strings.HasPrefix(got, "sidecar ") || !strings.Contains(got, "go1.") {
		t.Errorf("VersionLine = %q", got)
	}
}
