// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	errors  *prometheus.CounterVec
	invalid prometheus.Gauge
	age     *ages
	failing *ages
}

// ages computes each resource's age when it is asked for, so that the gauge
// grows also when nothing runs any more.
type ages struct {
	desc *prometheus.Desc
	mu   sync.Mutex
	of   map[string]func() float64
}

func newMetrics() *metrics {
	return &metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_xds_watch_errors_total", Help: "Interrupted watches and failed reads of a source.",
		}, []string{"resource"}),
		invalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evenkeel_xds_invalid_objects", Help: "Objects (or files) with a field that cannot be used; the log names it.",
		}),
		age: newAges("evenkeel_xds_watch_age_seconds",
			"Time since the source last showed that it is alive. Above 120 it is likely to be stuck."),
		failing: newAges("evenkeel_xds_watch_failing_seconds",
			"Time since which the resource cannot be watched; 0: it is watched."),
	}
}

func newAges(name, help string) *ages {
	return &ages{desc: prometheus.NewDesc(name, help, []string{"resource"}, nil), of: map[string]func() float64{}}
}

// register registers them, and those of one source only.
func (m *metrics) register(r prometheus.Registerer, own ...prometheus.Collector) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, c := range append([]prometheus.Collector{m.errors, m.invalid, m.age}, own...) {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (a *ages) set(resource string, f func() float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[resource] = f
}

// Describe is part of prometheus.Collector.
func (a *ages) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect is part of prometheus.Collector.
func (a *ages) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, f := range a.of {
		ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, f(), name)
	}
}
