// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of admissions, and of what passed without one.
type Metrics struct {
	pods       *prometheus.CounterVec
	warnings   *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	uninjected *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_injector_pods_total",
			Help: "Pods that the webhook answered for, by outcome (injected, skipped) and reason.",
		}, []string{"outcome", "reason"}),
		warnings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_injector_warnings_total",
			Help: "Warnings about pods, by reason and, for annotations, which one (unknown: none of Evenkeel's).",
		}, []string{"reason", "annotation"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_injector_request_errors_total",
			Help: "Admission requests that could not be answered, by HTTP status; their pods pass without a sidecar.",
		}, []string{"code"}),
		uninjected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "evenkeel_injector_uninjected_pods",
			Help: "Running pods that are labelled for a sidecar, could have one and have none: made before the label, or while the webhook was away. From the leading injector.",
		}, []string{"namespace"}),
	}
	for _, c := range []prometheus.Collector{m.pods, m.warnings, m.refusals, m.uninjected} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) admitted(r Result) {
	m.pods.WithLabelValues(string(r.Outcome), string(r.Reason)).Inc()
	for _, w := range r.Warnings {
		m.warnings.WithLabelValues(string(w.Reason), w.Annotation).Inc()
	}
}

func (m *Metrics) refused(code int) { m.refusals.WithLabelValues(strconv.Itoa(code)).Inc() }
