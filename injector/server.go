// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"evenkeel.dev/injector/certs"
)

// WebhookPath is where the API server posts its reviews.
const WebhookPath = "/inject"

// leaseName is the Lease of the leader; the chart makes it, and a leader if someone
// deleted it.
const leaseName = "evenkeel-injector"

// ServerConfig is the running injector's.
type ServerConfig struct {
	// Rest reaches the API server. It must be set.
	Rest *rest.Config
	// Inject is what pods get. It must be valid.
	Inject *Config
	// Listen is the webhook's address, host:port. It must be set.
	Listen string
	// Nameservers that pods of the cluster have by default. Empty: not known.
	Nameservers []netip.Addr
	// Certificates to keep; its Namespace is also the one that is never injected.
	Certificates certs.Config
	// Registerer of the metrics. It must be set.
	Registerer prometheus.Registerer
	// Logger must be set.
	Logger *slog.Logger
}

// Server is the webhook with its certificates.
type Server struct {
	mgr     manager.Manager
	store   *certs.Store
	started healthz.Checker
}

// NewServer assembles it: Pod → Review → Handler → Mutate → patch on one side,
// Keeper → Secrets → Store → TLS on the other.
func NewServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	cfg.Certificates = cfg.Certificates.WithDefaults()
	host, port, err := splitListen(cfg.Listen)
	if err := errors.Join(err, cfg.Inject.Validate(), cfg.Certificates.Validate()); err != nil {
		return nil, err
	}
	metrics, err := NewMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	certMetrics, err := certs.NewMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	store := certs.NewStore(cfg.Certificates.Now, cfg.Logger, certMetrics)
	hooks := webhook.NewServer(webhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.GetCertificate = store.GetCertificate
		c.MinVersion = tls.VersionTLS12
		c.NextProtos = []string{"h2", "http/1.1"}
	}}})
	mgr, err := newManager(cfg, hooks)
	if err != nil {
		return nil, err
	}
	if err := certs.Setup(ctx, mgr, cfg.Certificates, certMetrics, store); err != nil {
		return nil, fmt.Errorf("set up the certificates' controllers: %w", err)
	}
	// On every replica and before the first review, not with the first.
	namespaces := &metav1.PartialObjectMetadata{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if _, err := mgr.GetCache().GetInformer(ctx, namespaces, cache.BlockUntilSynced(false)); err != nil {
		return nil, fmt.Errorf("watch namespaces: %w", err)
	}
	cluster := &Cluster{OwnNamespace: cfg.Certificates.Namespace, Domain: cfg.Certificates.ClusterDomain, Nameservers: cfg.Nameservers}
	census := &Census{Namespaces: mgr.GetClient(), Live: mgr.GetAPIReader(), Cluster: cluster, Metrics: metrics, Logger: cfg.Logger}
	if err := mgr.Add(census); err != nil {
		return nil, fmt.Errorf("set up the count of pods without a sidecar: %w", err)
	}
	// GetWebhookServer is also what makes the manager run it.
	mgr.GetWebhookServer().Register(WebhookPath, Review(&admission.Webhook{Handler: &Handler{
		Config:     cfg.Inject,
		Cluster:    cluster,
		Namespaces: mgr.GetClient(),
		Live:       mgr.GetAPIReader(),
		Events:     Events{Recorder: mgr.GetEventRecorder("evenkeel-injector")},
		Metrics:    metrics,
		Logger:     cfg.Logger,
	}}, metrics, cfg.Logger))
	return &Server{mgr: mgr, store: store, started: hooks.StartedChecker()}, nil
}

func newManager(cfg ServerConfig, hooks webhook.Server) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("build scheme: %w", err)
	}
	mgr, err := manager.New(cfg.Rest, manager.Options{
		Scheme:        scheme,
		Logger:        logr.FromSlogHandler(cfg.Logger.Handler()),
		Cache:         cache.Options{ByObject: certs.CacheOptions()},
		Client:        client.Options{Cache: &client.CacheOptions{DisableFor: certs.Uncached()}},
		WebhookServer: hooks,
		// Every replica answers reviews; one keeps certificates.
		LeaderElection:                true,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       cfg.Certificates.Namespace,
		LeaderElectionReleaseOnCancel: true,
		// The admin port is cmd's.
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return nil, fmt.Errorf("set up the API server's client: %w", err)
	}
	return mgr, nil
}

// Run serves until ctx ends or the lease is lost, and returns when all has
// stopped.
func (s *Server) Run(ctx context.Context) error {
	if err := s.mgr.Start(ctx); err != nil {
		return fmt.Errorf("injector stopped: %w", err)
	}
	return nil
}

// Ready says why the webhook cannot answer now.
func (s *Server) Ready(r *http.Request) error {
	if err := s.store.Ready(r); err != nil {
		return err
	}
	if err := s.started(r); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), 500*time.Millisecond)
	defer cancel()
	if !s.mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the caches of namespaces and pods are not filled yet")
	}
	return nil
}

func splitListen(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("webhook address %q, want host:port: %w", addr, err)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("webhook address %q: port %q, want 1 to 65535", addr, p)
	}
	return host, int(n), nil
}
