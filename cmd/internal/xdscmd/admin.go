// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

// status is what /readyz tells.
type status struct {
	mu      sync.Mutex
	waiting string // empty: serving
	addr    net.Addr
}

func newStatus() *status { return &status{waiting: "starting"} }

func (s *status) waitFor(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.addr = what, nil
}

func (s *status) serving(a net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.addr = "", a
}

func (s *status) get() (waiting string, addr net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting, s.addr
}

func (p *parts) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if waiting, _ := p.status.get(); waiting != "" {
			answer(w, http.StatusServiceUnavailable, "not ready: waiting for "+waiting)
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics, promhttp.HandlerOpts{Registry: p.metrics}))
	mux.HandleFunc("GET /debug/subscriptions", p.subscriptions)
	mux.HandleFunc("GET /debug/rollout", p.rollout)
	if p.cfg.Pprof {
		run.HandlePprof(mux)
	}
	return mux
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // the peer may be gone
}

// subscriptions answers who subscribes to what on this replica.
func (p *parts) subscriptions(w http.ResponseWriter, r *http.Request) {
	var v any
	if name := r.URL.Query().Get("service"); name != "" {
		svc, err := xds.ParseService(name)
		if err != nil {
			answer(w, http.StatusBadRequest, err.Error())
			return
		}
		ids := []string{}
		for _, n := range p.tracker.Subscribers(svc) {
			ids = append(ids, n.ID())
		}
		v = map[string]any{"service": svc.String(), "sidecars": ids}
	} else {
		counts := map[string]int{}
		for svc, n := range p.tracker.Services() {
			counts[svc.String()] = n
		}
		v = map[string]any{"services": counts}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the peer may be gone
}
