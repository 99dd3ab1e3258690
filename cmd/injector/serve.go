// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/injector"
	"evenkeel.dev/injector/certs"
)

// serve runs the injector and its admin port until ctx ends, plus the delay.
func serve(ctx context.Context, cfg *Config, inject *injector.Config, log *slog.Logger) error {
	// Both libraries log through package globals; a main may set them.
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetLogger(logr.FromSlogHandler(log.Handler()))

	kube, err := kubeConfig(cfg.Kubeconfig)
	if err != nil {
		return err
	}
	nameservers, err := cfg.nameservers()
	if err != nil {
		log.Warn("the cluster's nameservers are not known: pods with others are not warned about", "error", err)
	}
	server, err := injector.NewServer(ctx, injector.ServerConfig{
		Rest:   kube,
		Inject: inject,
		Listen: cfg.WebhookListen,

		Nameservers: nameservers,
		Certificates: certs.Config{
			Namespace:     cfg.Namespace,
			ClusterDomain: cfg.ClusterDomain,
			Webhook:       cfg.WebhookConfig,
			Owner:         cfg.OwnerClusterRole,
			Logger:        log,
		},
		Registerer: ctrlmetrics.Registry, // where controller-runtime puts its own
		Logger:     log,
	})
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.AdminListen)
	if err != nil {
		return fmt.Errorf("--admin-listen: %w", err)
	}
	log.Info("injector starts", "version", run.VersionString(), "namespace", cfg.Namespace, "webhook", cfg.WebhookListen, "admin", cfg.AdminListen)

	var leaving atomic.Bool
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, serving := errgroup.WithContext(serving)
	group.Go(func() error {
		// Leave in order: unready first, then answer what still comes, then stop.
		defer stop()
		select {
		case <-ctx.Done():
		case <-serving.Done():
			return nil
		}
		leaving.Store(true)
		log.Info("injector leaves", "after", cfg.ShutdownDelay)
		timer := time.NewTimer(cfg.ShutdownDelay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-serving.Done():
		}
		return nil
	})
	group.Go(func() error { defer stop(); return server.Run(serving) })
	group.Go(func() error {
		admin := &run.Admin{Logger: log, Handler: adminHandler(server, &leaving)}
		return admin.Serve(serving, ln)
	})
	return group.Wait()
}

func adminHandler(server *injector.Server, leaving *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		err := server.Ready(r)
		if leaving.Load() {
			err = errors.New("leaving")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(ctrlmetrics.Registry, promhttp.HandlerOpts{}))
	return mux
}

func kubeConfig(file string) (*rest.Config, error) {
	var kube *rest.Config
	var err error
	if file != "" {
		kube, err = clientcmd.BuildConfigFromFlags("", file)
	} else if kube, err = rest.InClusterConfig(); err != nil {
		err = fmt.Errorf("%w; outside a pod use --kubeconfig", err)
	}
	if err != nil {
		return nil, fmt.Errorf("credentials for the API server: %w", err)
	}
	kube.UserAgent = "evenkeel-injector/" + run.VersionString()
	// A rotation writes to every labelled namespace at once.
	kube.QPS, kube.Burst = 50, 100
	return kube, nil
}
