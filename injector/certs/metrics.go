// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of certificates.
type Metrics struct {
	kept    *prometheus.GaugeVec
	bundle  prometheus.Gauge
	serving prometheus.Gauge
	foreign *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "evenkeel_certificate_expiry_timestamp_seconds",
			Help: "When a certificate that the leading injector keeps ends: root, or the name of a serving certificate's Secret.",
		}, []string{"certificate"}),
		bundle: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evenkeel_trusted_roots",
			Help: "Roots in the bundle that pods trust; above 1 while a rotation is under way. From the leading injector.",
		}),
		serving: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evenkeel_injector_serving_certificate_expiry_timestamp_seconds",
			Help: "When the certificate ends that this injector serves the webhook with; 0: it has none.",
		}),
		foreign: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "evenkeel_trust_bundle_blocked",
			Help: "1 for a namespace in which someone else's ConfigMap has the trust bundle's name: its sidecars cannot reach the control plane. From the leading injector.",
		}, []string{"namespace"}),
	}
	for _, c := range []prometheus.Collector{m.kept, m.bundle, m.serving, m.foreign} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) expiry(certificate string, at time.Time) {
	m.kept.WithLabelValues(certificate).Set(float64(at.Unix()))
}

func (m *Metrics) roots(n int) { m.bundle.Set(float64(n)) }

func (m *Metrics) blocked(namespace string) { m.foreign.WithLabelValues(namespace).Set(1) }

func (m *Metrics) unblocked(namespace string) { m.foreign.DeleteLabelValues(namespace) }
