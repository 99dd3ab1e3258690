// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds/rollout"
	"evenkeel.dev/xds/server"
	"evenkeel.dev/xds/snapshot"
	"evenkeel.dev/xds/watch"
)

// source is watch.Kube or watch.Files.
type source interface {
	Run(ctx context.Context, sink watch.Sink) error
}

// parts is the control plane, assembled.
type parts struct {
	cfg     *Config
	log     *slog.Logger
	source  source
	server  *server.Server
	tracker *rollout.Tracker
	cert    *server.Certificate   // nil: plaintext
	tokens  *server.TokenVerifier // nil: no tokens
	metrics *prometheus.Registry
	status  *status
	synced  chan struct{}
}

// serve runs until ctx is done; it returns when all has stopped.
func serve(ctx context.Context, cfg *Config, log *slog.Logger) error {
	p, err := assemble(cfg, log)
	if err != nil {
		return err
	}
	var admin net.Listener
	if cfg.AdminListen != "" {
		if admin, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.AdminListen); err != nil {
			return fmt.Errorf("--admin-listen: %w", err)
		}
	}
	log.Info("control plane starts", "version", run.VersionString(), "listen", cfg.Listen, "admin", cfg.AdminListen, "files", cfg.Files)
	g, ctx := errgroup.WithContext(ctx)
	if admin != nil {
		log.Info("admin port is open", "address", admin.Addr().String())
		a := run.Admin{Logger: log, Handler: p.adminHandler()}
		g.Go(func() error { return a.Serve(ctx, admin) })
	}
	g.Go(func() error { return p.source.Run(ctx, p) })
	g.Go(func() error { return p.tracker.Run(ctx, p.server) })
	g.Go(func() error { return p.serveADS(ctx) })
	err = g.Wait()
	log.Info("control plane stopped")
	return err
}

func assemble(cfg *Config, log *slog.Logger) (*parts, error) {
	p := &parts{
		cfg: cfg, log: log,
		metrics: prometheus.NewRegistry(),
		status:  newStatus(),
		synced:  make(chan struct{}),
	}
	p.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	var keys server.KeySource
	if cfg.Files != "" {
		f, err := watch.NewFiles(watch.FilesConfig{Logger: log.With("part", "files"), Registerer: p.metrics, Dir: cfg.Files})
		if err != nil {
			return nil, err
		}
		p.source = f
	} else {
		k, err := watch.Connect(watch.KubeConfig{Logger: log.With("part", "watch"), Registerer: p.metrics, Kubeconfig: cfg.Kubeconfig})
		if err != nil {
			return nil, err
		}
		p.source, keys = k, k
	}

	rc := rollout.Config{Logger: log.With("part", "rollout"), Registerer: p.metrics, Replica: cfg.Replica, Settle: max(cfg.Settle, 1)} // its zero is the default
	if r, ok := p.source.(rollout.Recorder); ok {                                                                                      // files have nobody to write Events for
		rc.Recorder = r
	}
	var err error
	if p.tracker, err = rollout.New(rc); err != nil {
		return nil, err
	}
	sc := server.Config{
		Logger: log.With("part", "ads"), Registerer: p.metrics, ClusterDomain: cfg.ClusterDomain,
		Observer: p.tracker, Tracker: p.tracker,
	}
	if _, unix := cfg.unixPath(); !unix {
		p.tokens, err = server.NewTokenVerifier(server.TokenConfig{Logger: log.With("part", "tokens"), Keys: keys, Audience: cfg.Audience})
		if err != nil {
			return nil, err
		}
		sc.Authenticator = p.tokens
		p.cert, err = server.NewCertificate(server.CertificateConfig{
			Logger: log.With("part", "tls"), Registerer: p.metrics, CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey,
		})
		if err != nil {
			return nil, err
		}
	}
	p.server, err = server.New(sc)
	return p, err
}

// Apply and Synced are the sink of the source.
func (p *parts) Apply(changes []snapshot.Change, seen time.Time) { p.server.Apply(changes, seen) }

// Synced is called once.
func (p *parts) Synced() {
	p.server.Synced()
	close(p.synced)
}

// serveADS listens once there is an answer to give.
func (p *parts) serveADS(ctx context.Context) error {
	p.status.waitFor("the first list of the API server's objects")
	select {
	case <-p.synced:
	case <-ctx.Done():
		return nil
	}
	if p.tokens != nil {
		// Not fatal: the verifier asks again when a token comes.
		if err := p.tokens.Warm(ctx); err != nil {
			p.log.Warn("tokens cannot be verified yet", "error", err)
		}
	}
	var creds credentials.TransportCredentials
	if p.cert != nil {
		if !p.waitCertificate(ctx) {
			return nil
		}
		creds = p.cert.Credentials()
	}
	ln, err := p.listen(ctx)
	if err != nil {
		return err
	}
	p.log.Info("serving sidecars", "address", ln.Addr().String(), "tls", creds != nil)
	p.status.serving(ln.Addr())
	defer p.status.waitFor("shutting down")
	return p.server.Serve(ctx, ln, creds)
}

// waitCertificate returns false when ctx is done: the files come from a Secret
// that another part of Evenkeel makes, perhaps a moment from now.
func (p *parts) waitCertificate(ctx context.Context) bool {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; told = true {
		err := p.cert.Load()
		if err == nil {
			return true
		}
		p.status.waitFor(err.Error())
		if !told {
			p.log.Warn("waiting for the serving certificate", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

func (p *parts) listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	path, unix := p.cfg.unixPath()
	if !unix {
		ln, err := lc.Listen(ctx, "tcp", p.cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
		return ln, nil
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	// The file's mode is all the protection that there is.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("--listen: %w", err), ln.Close())
	}
	return ln, nil
}

// removeStale removes the socket of a process that was killed. One that answers,
// and anything that is not a socket, is left alone.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return nil // not there; or listen says what is wrong
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	if c, err := d.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fmt.Errorf("%s: another process serves there", path), c.Close())
	}
	return os.Remove(path)
}
