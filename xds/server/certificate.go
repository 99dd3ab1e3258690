// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
)

// CertificateConfig configures a Certificate.
type CertificateConfig struct {
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// CertFile and KeyFile are PEM files. Required.
	CertFile, KeyFile string
	// Check is how often they are looked at, when a connection comes. Default: 1 s.
	Check time.Duration
}

// Certificate is a serving certificate that is read again when its files change.
type Certificate struct {
	cfg    CertificateConfig
	expiry prometheus.Gauge
	failed prometheus.Counter

	mu      sync.Mutex
	current *tls.Certificate
	stats   [2]os.FileInfo
	checked time.Time
	lastErr string
}

// NewCertificate does not need the files to be there yet: see Load.
func NewCertificate(cfg CertificateConfig) (*Certificate, error) {
	if cfg.Logger == nil || cfg.CertFile == "" || cfg.KeyFile == "" {
		return nil, errors.New("certificate: Logger, CertFile and KeyFile are required")
	}
	setDefault(&cfg.Check, time.Second)
	c := &Certificate{
		cfg: cfg,
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "evenkeel_xds_certificate_expiry_timestamp_seconds", Help: "When the serving certificate ends, as a Unix time; 0: there is none.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "evenkeel_xds_certificate_errors_total", Help: "Changed certificate files that could not be used.",
		}),
	}
	if r := cfg.Registerer; r != nil {
		if err := errors.Join(r.Register(c.expiry), r.Register(c.failed)); err != nil {
			return nil, fmt.Errorf("certificate: metrics: %w", err)
		}
	}
	return c, nil
}

// Credentials are gRPC's, TLS 1.3: the clients are our own.
func (c *Certificate) Credentials() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()) },
	})
}

// Load returns nil once there is a certificate to serve with.
func (c *Certificate) Load() error {
	_, err := c.get(time.Now())
	return err
}

func (c *Certificate) get(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && now.Sub(c.checked) < c.cfg.Check {
		return c.current, nil
	}
	c.checked = now
	if err := c.reload(); err != nil {
		if c.current == nil {
			return nil, err
		}
		// Half-way through a change, or a bad one: what was good goes on.
		if s := err.Error(); s != c.lastErr {
			c.lastErr = s
			c.failed.Inc()
			c.cfg.Logger.Error("cannot use the changed certificate; the old one stays in use", "error", err, "expires", c.current.Leaf.NotAfter)
		}
	}
	return c.current, nil
}

// reload reads the pair if either file is another than before.
func (c *Certificate) reload() error {
	var stats [2]os.FileInfo
	for i, name := range []string{c.cfg.CertFile, c.cfg.KeyFile} {
		st, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("certificate: %w", err)
		}
		stats[i] = st
	}
	if c.current != nil && unchanged(stats[0], c.stats[0]) && unchanged(stats[1], c.stats[1]) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.cfg.CertFile, c.cfg.KeyFile)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", c.cfg.CertFile, c.cfg.KeyFile, err)
	}
	c.current, c.stats, c.lastErr = &pair, stats, ""
	c.expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	c.cfg.Logger.Info("certificate read", "file", c.cfg.CertFile, "names", pair.Leaf.DNSNames, "expires", pair.Leaf.NotAfter)
	return nil
}

func unchanged(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
