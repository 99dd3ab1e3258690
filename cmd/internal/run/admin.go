// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package run

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Admin configures an HTTP server for probes, metrics and people.
type Admin struct {
	// Logger is where the server's own complaints go. It must be set.
	Logger *slog.Logger
	// Handler answers. It must be set.
	Handler http.Handler
	// Grace is how long running requests may go on after ctx has ended. Zero
	// means 1 s.
	Grace time.Duration
	// WriteTimeout bounds one request. Zero means 60 s: a CPU profile of 30 s
	// must fit. Negative means no bound, for handlers that hold a request.
	WriteTimeout time.Duration
}

// Serve answers on ln until ctx ends, and returns once every request has ended
// or was cut. It closes ln.
func (a *Admin) Serve(ctx context.Context, ln net.Listener) error {
	write := a.WriteTimeout
	switch {
	case write == 0:
		write = 60 * time.Second
	case write < 0:
		write = 0
	}
	srv := &http.Server{
		Handler: a.Handler,
		// A probe or a scraper that stalls must not keep a goroutine for ever.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      write,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(a.Logger.Handler(), slog.LevelDebug),
		// Requests end with the server, so that one that holds lets go.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace := a.Grace
	if grace <= 0 {
		grace = time.Second
	}
	// ctx is over: the grace needs a context of its own, with its values.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		if err := srv.Close(); err != nil {
			a.Logger.Debug("admin server did not close cleanly", "error", err)
		}
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// HandlePprof adds Go's profiles under /debug/pprof/ to mux. It is asked for,
// not there by default: the ports of a pod are not all private.
func HandlePprof(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
