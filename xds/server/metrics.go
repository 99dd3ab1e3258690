// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/xds/snapshot"
)

type metrics struct {
	streams       prometheus.Gauge
	tracks        prometheus.Gauge
	badReports    prometheus.Counter
	subscriptions *prometheus.GaugeVec
	pushes        *prometheus.CounterVec
	bytes         *prometheus.CounterVec
	nacks         *prometheus.CounterVec
	refused       *prometheus.CounterVec
	malformed     prometheus.Counter
	slow          prometheus.Counter
	propagation   prometheus.Histogram
	inputs        *prometheus.GaugeVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "evenkeel_xds_" + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "evenkeel_xds_" + name, Help: help}, labels)
	}
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "evenkeel_xds_streams", Help: "Sidecars that have a stream to this replica."}),
		tracks:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "evenkeel_xds_track_streams", Help: "Sidecars that report to this replica over a stream."}),
		badReports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_xds_malformed_reports_total", Help: "Streams of reports that were ended since a report could not be read.",
		}),
		subscriptions: gauge("subscriptions", "Names that streams subscribe to.", "type"),
		pushes:        counter("pushes_total", "Responses sent.", "type"),
		bytes:         counter("push_bytes_total", "Bytes of the responses sent.", "type"),
		nacks:         counter("nacks_total", "Responses that a sidecar refused.", "type"),
		refused:       counter("refused_streams_total", "Streams refused when they were opened.", "reason"),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_xds_malformed_names_total", Help: "Subscriptions to names that cannot be read.",
		}),
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_xds_slow_closes_total", Help: "Connections closed because the sidecar did not read or acknowledge.",
		}),
		propagation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "evenkeel_xds_propagation_seconds", Help: "From an event of the watch to the response handed to one sidecar's connection.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10},
		}),
		inputs: gauge("objects", "Objects in the snapshot.", "kind"),
	}
	for _, t := range []string{"destination", "endpoint"} { // a series from the start, so that a rate sees the first
		m.subscriptions.WithLabelValues(t)
		m.pushes.WithLabelValues(t)
		m.bytes.WithLabelValues(t)
		m.nacks.WithLabelValues(t)
	}
	for _, r := range []string{"token", "node", "pod"} {
		m.refused.WithLabelValues(r)
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{
		m.streams, m.tracks, m.badReports, m.subscriptions, m.pushes, m.bytes, m.nacks, m.refused, m.malformed, m.slow, m.propagation, m.inputs,
	} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) objects(counts map[snapshot.Kind]int) {
	for k, n := range counts {
		m.inputs.WithLabelValues(k.String()).Set(float64(n))
	}
}
