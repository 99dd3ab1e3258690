// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"evenkeel.dev/injector/pki"
)

// Store holds the certificate that this replica serves with, and takes a new one
// as soon as its Secret has it: no file, no restart.
type Store struct {
	now     func() time.Time
	logger  *slog.Logger
	metrics *Metrics
	current atomic.Pointer[tls.Certificate]
}

// NewStore returns an empty one.
func NewStore(now func() time.Time, logger *slog.Logger, m *Metrics) *Store {
	return &Store{now: now, logger: logger, metrics: m}
}

// ErrNoCertificate: the leader has issued none yet.
var ErrNoCertificate = errors.New("no serving certificate yet: the leading injector writes it to Secret " + InjectorSecret)

// GetCertificate is for tls.Config.
func (s *Store) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	return nil, ErrNoCertificate
}

// Ready is a readiness check: a replica without a valid certificate must get no
// requests, for the API server would count each as a failed call.
func (s *Store) Ready(*http.Request) error {
	c := s.current.Load()
	if c == nil {
		return ErrNoCertificate
	}
	if end := c.Leaf.NotAfter; !s.now().Before(end) {
		return fmt.Errorf("the serving certificate ended at %s", end.Format(time.RFC3339))
	}
	return nil
}

// Handler feeds the store from an informer of the Secret.
func (s *Store) Handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.take(o) },
		UpdateFunc: func(_, o any) { s.take(o) },
		DeleteFunc: func(any) {
			s.logger.Warn("the serving certificate's Secret was deleted; serving on with the last one", "secret", InjectorSecret)
		},
	}
}

func (s *Store) take(o any) {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	c, err := tls.X509KeyPair(secret.Data[pki.KeyCert], secret.Data[pki.KeyKey])
	if err != nil {
		// Half written or damaged: the leader repairs it, the last good one serves.
		s.logger.Error("serving certificate cannot be used; serving on with the last one", "secret", secret.Namespace+"/"+secret.Name, "error", err)
		return
	}
	if last := s.current.Load(); last != nil && last.Leaf.Equal(c.Leaf) {
		return
	}
	s.current.Store(&c)
	s.metrics.serving.Set(float64(c.Leaf.NotAfter.Unix()))
	s.logger.Info("serving certificate loaded", "secret", secret.Namespace+"/"+secret.Name, "validUntil", c.Leaf.NotAfter)
}
