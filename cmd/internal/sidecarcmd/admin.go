// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"evenkeel.dev/cmd/internal/run"
)

// maxWait bounds one /wait: the client asks again.
const maxWait = 30 * time.Second

// podHandler answers on the pod's address.
func podHandler(r *readiness, reg *prometheus.Registry) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /ready", r)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		Registry:            reg,
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	return mux
}

// ServeHTTP is the readiness probe.
func (r *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if !done(r.ready) {
		http.Error(w, "not ready: waiting for the first word of the control plane", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// debugHandler answers on loopback. snapshot is what /debug/endpoints shows.
func debugHandler(r *readiness, pod http.Handler, snapshot func(context.Context) (any, error)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /ready", pod)
	mux.Handle("GET /metrics", pod)
	mux.HandleFunc("GET /wait", func(w http.ResponseWriter, req *http.Request) {
		t := time.NewTimer(maxWait)
		defer t.Stop()
		select {
		case <-r.served:
			fmt.Fprintln(w, "serving")
		case <-t.C:
			http.Error(w, "the control plane has not answered yet", http.StatusGatewayTimeout)
		case <-req.Context().Done():
		}
	})
	mux.HandleFunc("GET /debug/endpoints", func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
		defer cancel()
		v, err := snapshot(ctx)
		if err != nil {
			http.Error(w, fmt.Sprintf("the event loop did not answer: %s", err), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		// The status is out: of an error the client sees an incomplete body.
		_ = enc.Encode(v)
	})
	run.HandlePprof(mux)
	return mux
}
