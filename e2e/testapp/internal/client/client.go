// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"evenkeel.dev/e2e/testapp/internal/stats"
)

// Config of the client.
type Config struct {
	Logger *slog.Logger
	// HTTP is the address at which it is asked.
	HTTP string
	// Call is the load.
	Call Call
	// Channels is how many grpc channels share the load.
	Channels int
	// Rate is RPCs per second. Zero: none until /rate says otherwise.
	Rate int
	// Started is told the HTTP address once it listens. Zero: nobody is told.
	Started func(net.Addr)
}

// Run sends the load and answers until ctx ends.
//
//	GET  /stats[?timeline=1]   a stats.Snapshot of the constant load
//	POST /reset                begin counting anew
//	POST /rate?value=N         change the rate
//	POST /run?n=N[&concurrency=C][&channels=K][&target=…][&kind=…][&deadline_ms=…][&delay_ms=…]
//	          [&bytes=…][&policy=…][&protocol=…][&tls=true]
//	                           N RPCs on new channels; the answer is their Snapshot.
//	                           What is not given is as in the constant load
//	GET  /ready                200
func Run(ctx context.Context, cfg Config) error {
	c := &client{cfg: cfg, stats: stats.New(time.Now())}
	c.rate.Store(int64(cfg.Rate))
	l, err := newLoad(cfg.Call, cfg.Channels, c.stats, cfg.Logger)
	if err != nil {
		return err
	}
	defer l.close()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.HTTP)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: c.handler(), ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer func() { _ = s.Close() }() // the process ends
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(ln) }()
	if cfg.Started != nil {
		cfg.Started(ln.Addr())
	}
	cfg.Logger.Info("running", "target", cfg.Call.Target, "rate", cfg.Rate, "http", ln.Addr())
	steady, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.steady(steady, &c.rate)
	}()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stop()
	<-done
	return err
}

type client struct {
	cfg   Config
	stats *stats.Collector
	rate  atomic.Int64
}

func (c *client) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("timeline") != "" {
			writeJSON(w, c.stats.SnapshotWithTimeline(time.Now()))
			return
		}
		writeJSON(w, c.stats.Snapshot(time.Now()))
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) { c.stats.Reset(time.Now()) })
	mux.HandleFunc("POST /rate", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseUint(r.URL.Query().Get("value"), 10, 31)
		if err != nil {
			http.Error(w, "value: "+err.Error(), http.StatusBadRequest)
			return
		}
		c.rate.Store(int64(n))
	})
	mux.HandleFunc("POST /run", c.run)
	return mux
}

func (c *client) run(w http.ResponseWriter, r *http.Request) {
	call, n, concurrency, channels, err := c.parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	own := stats.New(time.Now())
	l, err := newLoad(call, channels, own, c.cfg.Logger)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer l.close()
	if err := l.burst(r.Context(), n, concurrency); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, own.SnapshotWithTimeline(time.Now()))
}

// parse reads the parameters of /run.
func (c *client) parse(q url.Values) (call Call, n, concurrency, channels int, err error) {
	call = c.cfg.Call
	var errs []error
	number := func(key string, fallback int) int {
		if !q.Has(key) {
			return fallback
		}
		v, err := strconv.Atoi(q.Get(key))
		if err != nil || v < 0 {
			errs = append(errs, fmt.Errorf("%s: %q is no number", key, q.Get(key)))
		}
		return v
	}
	for key := range q {
		switch key {
		case "target":
			call.Target = q.Get(key)
		case "protocol":
			call.Protocol = q.Get(key)
		case "policy":
			call.Policy = q.Get(key)
		case "kind":
			call.Kind = Kind(q.Get(key))
		case "tls":
			call.TLS = q.Get(key) == "true"
		case "n", "concurrency", "channels", "deadline_ms", "delay_ms", "bytes":
		default:
			errs = append(errs, fmt.Errorf("%s: no such parameter", key))
		}
	}
	n, concurrency, channels = number("n", 1), number("concurrency", 1), number("channels", 1)
	call.Deadline = time.Duration(number("deadline_ms", int(call.Deadline.Milliseconds()))) * time.Millisecond
	call.Delay = time.Duration(number("delay_ms", int(call.Delay.Milliseconds()))) * time.Millisecond
	call.Bytes = number("bytes", call.Bytes)
	if err := call.validate(); err != nil {
		errs = append(errs, err)
	}
	return call, n, max(1, concurrency), channels, errors.Join(errs...)
}

func (c Call) validate() error {
	switch c.Kind {
	case Unary, ServerStream, ClientStream, Bidi, Mix:
	default:
		return fmt.Errorf("kind: %q", c.Kind)
	}
	if c.Protocol != "grpc" && c.Protocol != "http1" {
		return fmt.Errorf("protocol: %q: want grpc or http1", c.Protocol)
	}
	return nil
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error { return c.Call.validate() }

func cut(kv string) (key, value string, ok bool) { return strings.Cut(kv, "=") }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(v)
}
