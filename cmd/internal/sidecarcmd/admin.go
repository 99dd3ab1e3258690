// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/sidecar/hold"
	"evenkeel.dev/xds"
)

// maxWait bounds one /wait: the client asks again.
const maxWait = 30 * time.Second

// statusUnanswered is what /wait answers when the start hold is over and what it
// was for has not come.
const statusUnanswered = http.StatusAccepted

// podHandler answers on the pod's address.
func podHandler(cfg *Config, log *slog.Logger, h *holds, reg *prometheus.Registry) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", h.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		Registry:            reg,
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	if cfg.HoldSecret != "" {
		mux.Handle("GET "+xds.PathHold, &preStop{cfg: cfg, log: log, holds: h})
	}
	return mux
}

// serveReady is the readiness probe. Its text is in `kubectl describe`.
func (h *holds) serveReady(w http.ResponseWriter, req *http.Request) {
	if done(h.ready) {
		fmt.Fprintln(w, "ready")
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), time.Second)
	defer cancel()
	text, ok := query(ctx, h, func(m *hold.Machine, now time.Time) string { return m.Text(hold.Ready, now) })
	if !ok {
		text = "the sidecar starts"
	}
	http.Error(w, "not ready: "+text, http.StatusServiceUnavailable)
}

// preStop is the hook of every app container. It answers when the container may
// be stopped, and its own hook was performed. The kubelet calls it once for each
// container and goes on to SIGTERM when the answer comes or the connection
// breaks: a call that is cut off, by a crash of this worker, is a failed hook,
// and the container is stopped at once.
type preStop struct {
	cfg   *Config
	log   *slog.Logger
	holds *holds
}

// ServeHTTP holds the request.
func (p *preStop) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if subtle.ConstantTimeCompare([]byte(req.Header.Get(xds.HeaderHold)), []byte(p.cfg.HoldSecret)) != 1 {
		http.Error(w, "the header "+xds.HeaderHold+" is not this pod's", http.StatusForbidden)
		return
	}
	if err := unbounded(w); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ctx := req.Context()
	end, ok := p.holds.drain(ctx)
	if !ok {
		http.Error(w, "the drain was cut", http.StatusServiceUnavailable)
		return
	}
	name := req.URL.Query().Get(xds.QueryContainer)
	h, ok := p.cfg.Hooks[name]
	if !ok {
		fmt.Fprintf(w, "drain: %s\n", end)
		return
	}
	said, err := h.perform(ctx, p.cfg.PodIP)
	if err != nil {
		p.log.Warn("the container's own preStop hook has failed", "container", name, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "drain: %s; %s\n", end, said)
}

// unbounded lifts the server's bounds from a request that is to be held. The one
// on reading would end it too: net/http reads on, to see the client go.
func unbounded(w http.ResponseWriter) error {
	c := http.NewResponseController(w)
	return errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}))
}

// serveWait answers when the start hold is over.
func (h *holds) serveWait(w http.ResponseWriter, req *http.Request) {
	timeout := time.Duration(0)
	if text := req.URL.Query().Get("timeout"); text != "" {
		var err error
		if timeout, err = time.ParseDuration(text); err != nil || timeout <= 0 {
			http.Error(w, fmt.Sprintf("timeout %q is not a duration above zero", text), http.StatusBadRequest)
			return
		}
	}
	if err := unbounded(w); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.post(func(m *hold.Machine, now time.Time) { m.Wait(now, timeout) })
	t := time.NewTimer(maxWait)
	defer t.Stop()
	select {
	case <-h.started:
	case <-t.C:
		http.Error(w, "the start hold is not over yet", http.StatusGatewayTimeout)
		return
	case <-req.Context().Done():
		http.Error(w, "the sidecar ends", http.StatusServiceUnavailable)
		return
	}
	if h.startEnd.Reason == hold.Timeout {
		w.WriteHeader(statusUnanswered)
	}
	fmt.Fprintln(w, h.startEnd.String())
}

func (h *holds) serveHolds(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
	defer cancel()
	v, ok := query(ctx, h, (*hold.Machine).View)
	if !ok {
		http.Error(w, "the holds did not answer in time", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, v)
}

// debugHandler answers on loopback. snapshot is what /debug/endpoints shows.
func debugHandler(h *holds, pod http.Handler, snapshot func(context.Context) (any, error)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /ready", pod)
	mux.Handle("GET /metrics", pod)
	mux.HandleFunc("GET /wait", h.serveWait)
	mux.HandleFunc("GET /debug/holds", h.serveHolds)
	mux.HandleFunc("GET /debug/endpoints", func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
		defer cancel()
		v, err := snapshot(ctx)
		if err != nil {
			http.Error(w, fmt.Sprintf("the event loop did not answer: %s", err), http.StatusServiceUnavailable)
			return
		}
		writeJSON(w, v)
	})
	run.HandlePprof(mux)
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	// The status is out: of an error the client sees an incomplete body.
	_ = enc.Encode(v)
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
