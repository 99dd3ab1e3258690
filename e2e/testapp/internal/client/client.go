// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package client

import (
	"bytes"
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
	"sync"
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
	// Streams is a load of lasting streams beside that.
	Streams Streams
	// Linger is how long the load goes on when Run's context has ended, as an
	// application may which still has work to do after SIGTERM.
	Linger time.Duration
	// Report is a URL to which the final Snapshot is sent (POST) before Run
	// returns. Zero: to none.
	Report string
	// Started is told the HTTP address once it listens. Zero: nobody is told.
	Started func(net.Addr)
}

// Streams is a load of streams, server-streaming and bidirectional in turn, each
// of a random length.
type Streams struct {
	// Rate is streams per second. Zero: none until /rate says otherwise.
	Rate float64
	// Min and Max bound the lengths.
	Min, Max time.Duration
}

// endTimeout bounds the wait for RPCs in flight of /stop.
const endTimeout = 50 * time.Second

// Run sends the load and answers until ctx ends.
//
//	GET  /stats[?timeline=1]   a stats.Snapshot of the constant load
//	POST /reset                begin counting anew
//	POST /rate?value=N[&streams=F]
//	                           change the rate, and that of streams
//	POST /stop                 begin no more RPCs; the answer is the Snapshot, with
//	                           timeline, when those in flight have ended
//	POST /run?n=N[&concurrency=C][&channels=K][&target=…][&kind=…][&deadline_ms=…][&delay_ms=…]
//	          [&bytes=…][&policy=…][&protocol=…][&tls=true][&length_ms=…]
//	                           N RPCs on new channels; the answer is their Snapshot.
//	                           What is not given is as in the constant load
//	GET  /ready                200
func Run(ctx context.Context, cfg Config) error {
	c := &client{cfg: cfg, stats: stats.New(time.Now())}
	c.rate.Store(1000 * int64(cfg.Rate))
	c.streamRate.Store(int64(1000 * cfg.Streams.Rate))
	l, err := newLoad(cfg.Call, cfg.Channels, c.stats, cfg.Logger)
	if err != nil {
		return err
	}
	defer l.close()
	c.load = l
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
	steady, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var loads sync.WaitGroup
	loads.Go(func() { l.steady(steady, &c.rate, l.one) })
	loads.Go(func() {
		l.steady(steady, &c.streamRate, func(ctx context.Context) { l.lasting(ctx, cfg.Streams) })
	})
	select {
	case err = <-failed:
	case <-ctx.Done():
		linger := time.NewTimer(cfg.Linger)
		defer linger.Stop()
		select {
		case err = <-failed:
		case <-linger.C:
		}
	}
	stop()
	loads.Wait()
	if cfg.Report != "" {
		err = errors.Join(err, c.report(context.WithoutCancel(ctx)))
	}
	return err
}

// report sends the final Snapshot.
func (c *client) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := json.Marshal(c.stats.SnapshotWithTimeline(time.Now()))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.Report, bytes.NewReader(b))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("report: %s", res.Status)
	}
	return nil
}

type client struct {
	cfg   Config
	stats *stats.Collector
	load  *load
	// rate and streamRate are thousandths per second.
	rate, streamRate atomic.Int64
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
		c.rate.Store(1000 * int64(n))
		if q := r.URL.Query(); q.Has("streams") {
			f, err := strconv.ParseFloat(q.Get("streams"), 64)
			if err != nil || f < 0 || c.cfg.Streams.Max <= 0 && f > 0 {
				http.Error(w, fmt.Sprintf("streams: %q: want a rate, and --stream-length", q.Get("streams")), http.StatusBadRequest)
				return
			}
			c.streamRate.Store(int64(1000 * f))
		}
	})
	mux.HandleFunc("POST /stop", c.stop)
	mux.HandleFunc("POST /run", c.run)
	return mux
}

// stop ends the constant load.
func (c *client) stop(w http.ResponseWriter, r *http.Request) {
	c.rate.Store(0)
	c.streamRate.Store(0)
	ctx, cancel := context.WithTimeout(r.Context(), endTimeout)
	defer cancel()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	<-t.C // what was just due has begun
	for c.load.open.Load() > 0 {
		select {
		case <-ctx.Done():
			http.Error(w, fmt.Sprintf("%d RPCs are still in flight", c.load.open.Load()), http.StatusGatewayTimeout)
			return
		case <-t.C:
		}
	}
	writeJSON(w, c.stats.SnapshotWithTimeline(time.Now()))
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
		case "n", "concurrency", "channels", "deadline_ms", "delay_ms", "length_ms", "bytes":
		default:
			errs = append(errs, fmt.Errorf("%s: no such parameter", key))
		}
	}
	n, concurrency, channels = number("n", 1), number("concurrency", 1), number("channels", 1)
	call.Deadline = time.Duration(number("deadline_ms", int(call.Deadline.Milliseconds()))) * time.Millisecond
	call.Delay = time.Duration(number("delay_ms", int(call.Delay.Milliseconds()))) * time.Millisecond
	call.Length = time.Duration(number("length_ms", int(call.Length.Milliseconds()))) * time.Millisecond
	call.Bytes = number("bytes", call.Bytes)
	if err := call.validate(); err != nil {
		errs = append(errs, err)
	}
	return call, n, max(1, concurrency), channels, errors.Join(errs...)
}

func (c Call) validate() error {
	switch c.Kind {
	case Unary, ServerStream, ClientStream, Bidi, Mix, LongServerStream, LongBidi:
	default:
		return fmt.Errorf("kind: %q", c.Kind)
	}
	if c.Protocol != "grpc" && c.Protocol != "http1" {
		return fmt.Errorf("protocol: %q: want grpc or http1", c.Protocol)
	}
	return nil
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error {
	err := c.Call.validate()
	if s := c.Streams; s.Min < 0 || s.Max < s.Min || s.Rate < 0 || s.Rate > 0 && s.Max == 0 {
		err = errors.Join(err, fmt.Errorf("--stream-rate, --stream-length: %v per second of %s to %s: want a rate, and MIN-MAX", s.Rate, s.Min, s.Max))
	}
	return err
}

func cut(kv string) (key, value string, ok bool) { return strings.Cut(kv, "=") }

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(v)
}
