// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// gather reads all series as "name{label=value,…}" → value (a histogram's count).
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				all[key] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				all[key] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				all[key] = float64(m.GetHistogram().GetSampleCount())
				all[key+" sum"] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	a, b := newBackend(t, "a"), newBackend(t, "b")
	r := newRig(t, func(c *Config) { c.Registerer = reg }).serve(a.addr, b.addr)
	c := r.client()
	for range 10 {
		if _, err := c.UnaryCall(withTimeout(t, 10*time.Second), &testpb.SimpleRequest{ResponseSize: 100}); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = c.UnaryCall(withTimeout(t, 10*time.Second), &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 9}})
	r.quiet()
	got := gather(t, reg)
	const m, s = "grpc_method=grpc.testing.TestService/UnaryCall", "grpc_target=shop/pricing:50051"
	for key, want := range map[string]float64{
		"grpc_client_attempt_started_total{" + m + "," + s + "}":                                               11,
		"grpc_client_attempt_duration_seconds{" + m + ",grpc_status=OK," + s + "}":                             10,
		"grpc_client_attempt_duration_seconds{" + m + ",grpc_status=FAILED_PRECONDITION," + s + "}":            1,
		"grpc_client_call_duration_seconds{" + m + ",grpc_status=OK," + s + "}":                                10,
		"grpc_client_attempt_sent_total_compressed_message_size_bytes{" + m + ",grpc_status=OK," + s + "}":     10,
		"grpc_client_attempt_sent_total_compressed_message_size_bytes{" + m + ",grpc_status=OK," + s + "} sum": 20, // two bytes ask for 100
		"evenkeel_service_endpoints{service=shop/pricing:50051,state=ready}":                                   2,
		"evenkeel_service_endpoints_connected{service=shop/pricing:50051}":                                     2,
		"evenkeel_connections_accepted_total{kind=http2}":                                                      1,
		"evenkeel_sessions{side=downstream}":                                                                   1,
		"evenkeel_sessions{side=upstream}":                                                                     2,
		"evenkeel_streams{}":                                                                                   0,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s is %g, %v, want %g", key, v, ok, want)
		}
	}
	sum := 0.0
	for key, v := range got {
		if strings.HasPrefix(key, "evenkeel_endpoint_rpcs_total{") {
			sum += v
		}
	}
	if sum != 11 {
		t.Errorf("the endpoints count %g RPCs, want 11", sum)
	}

	// The series of an endpoint go with it.
	r.serve(a.addr)
	eventually(t, "the removed endpoint has no series", func() bool {
		for key := range gather(t, reg) {
			if strings.Contains(key, "endpoint="+b.addr) {
				return false
			}
		}
		return true
	})
}

func TestMetricsOfStrangePaths(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := newFakeServer(t)
	r := newRig(t, func(c *Config) { c.Registerer = reg; c.MaxMethods = 3 }).serve(f.addr)
	app := r.app()
	var srv *peer
	for i, path := range []string{"/a/1", "/a/2", "/other", "other", "/a/\xff", "/a/3", "/a/4", "/a/5"} {
		id := uint32(2*i + 1)
		app.headers(id, true, ":method", "POST", ":scheme", "http", ":path", path, ":authority", "x", "content-type", "application/grpc")
		if path == "other" {
			// No :path of an http URI: refused before it comes here.
			app.want("malformed", fmt.Sprintf("RST %d PROTOCOL_ERROR", id))
			continue
		}
		if srv == nil {
			srv = f.accept()
		}
		h := srv.want("the request", "HEADERS …")
		srv.headers(h.Header().StreamID, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		app.want("the response", "HEADERS …")
	}
	r.quiet()
	got := gather(t, reg) // fails if two series are the same
	const started = "grpc_client_attempt_started_total{grpc_method="
	if v := got[started+"other,grpc_target=shop/pricing:50051}"]; v != 4 {
		t.Errorf("%g in other, want 4", v)
	}
	for _, m := range []string{"a/1", "a/2", "a/3"} {
		if v := got[started+m+",grpc_target=shop/pricing:50051}"]; v != 1 {
			t.Errorf("%s: %g, want 1", m, v)
		}
	}
}

// A scrape of a Sidecar that has ended fails; it does not hang.
func TestScrapeAfterTheEnd(t *testing.T) {
	reg := prometheus.NewRegistry()
	t.Run("run", func(t *testing.T) { newRig(t, func(c *Config) { c.Registerer = reg }) })
	if _, err := reg.Gather(); err == nil {
		t.Error("no error")
	}
}
