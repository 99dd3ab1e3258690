// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	propagation prometheus.Histogram
	holds       *prometheus.HistogramVec
	timeouts    *prometheus.CounterVec
	reporters   prometheus.Gauge
	overflows   *prometheus.CounterVec
	heldUp      prometheus.Counter
	judging     prometheus.Histogram
}

func newMetrics() *metrics {
	seconds := []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 15, 20, 30, 60}
	m := &metrics{
		propagation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "evenkeel_propagation_seconds", Help: "From when a pod's app was seen ready until every client had answered for it.", Buckets: seconds,
		}),
		holds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "evenkeel_hold_seconds", Help: "How long pods held themselves back.", Buckets: seconds,
		}, []string{"hold"}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_hold_timeouts_total", Help: "Holds that ended by a bound, or because the control plane was silent.",
		}, []string{"hold"}),
		reporters: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evenkeel_rollout_reporters", Help: "Sidecars that report to this replica and are in their lease.",
		}),
		overflows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_rollout_overflows_total", Help: "Parts of reports that were not taken in, or forgotten, since a bound was hit.",
		}, []string{"bound"}),
		heldUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_rollout_held_up_total", Help: "Times that this process was held up for so long that it claimed nothing for a lease.",
		}),
		judging: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "evenkeel_rollout_judging_seconds", Help: "How long it took to judge the pods in transition.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1},
		}),
	}
	for _, h := range holdNames { // a series from the start, so that a rate sees the first
		m.holds.WithLabelValues(h)
		m.timeouts.WithLabelValues(h)
	}
	for _, b := range []string{"services", "endpoints", "workloads", "upstreams"} {
		m.overflows.WithLabelValues(b)
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.propagation, m.holds, m.timeouts, m.reporters, m.overflows, m.heldUp, m.judging} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}
