// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"evenkeel.dev/xds/snapshot"
)

// Config configures a Server.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// Authenticator says who opens a stream. Nil trusts what the first request's
	// node says: only for a unix socket, whose file mode is the protection.
	Authenticator Authenticator
	// Observer is told who subscribes to what. Nil: nobody.
	Observer Observer
	// Tracker makes of Reports what pods are told. Nil: the Rollout service is not there.
	Tracker Tracker
	// ClusterDomain is the cluster's DNS domain. Default: cluster.local.
	ClusterDomain string

	// StallTimeout is how long a client may leave responses unread or without
	// their ACK, or statuses unread, before its connection is closed. Default: 30 s.
	StallTimeout time.Duration
	// MaxUnacked is the number of responses sent ahead of their ACKs; what
	// changes meanwhile is coalesced. Default: 64.
	MaxUnacked int
	// MaxSubscriptions bounds the names of one stream. Default: 16,384.
	MaxSubscriptions int
	// MaxResponseBytes is where a list is split into several responses. Default:
	// 1 MiB (grpc clients refuse messages above 4 MiB unless told otherwise).
	MaxResponseBytes int
	// PodWait is how long a stream waits for its Pod to be seen by the watch,
	// which may be behind the kubelet. Default: 5 s.
	PodWait time.Duration
	// ShutdownTimeout bounds the polite end of the streams. Default: 2 s.
	ShutdownTimeout time.Duration
}

// validate sets the defaults and returns every mistake at once.
func (c *Config) validate() error {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("field Logger: required"))
	}
	setDefault(&c.StallTimeout, 30*time.Second)
	setDefault(&c.MaxUnacked, 64)
	setDefault(&c.MaxSubscriptions, 16384)
	setDefault(&c.MaxResponseBytes, 1<<20)
	setDefault(&c.PodWait, 5*time.Second)
	setDefault(&c.ShutdownTimeout, 2*time.Second)
	for name, v := range map[string]int64{
		"StallTimeout": int64(c.StallTimeout), "MaxUnacked": int64(c.MaxUnacked), "MaxSubscriptions": int64(c.MaxSubscriptions),
		"MaxResponseBytes": int64(c.MaxResponseBytes), "PodWait": int64(c.PodWait), "ShutdownTimeout": int64(c.ShutdownTimeout),
	} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", name, v))
		}
	}
	return errors.Join(errs...)
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Server serves delta ADS from a snapshot, and the Rollout service for Config.Tracker.
type Server struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer

	cfg     Config
	log     *slog.Logger
	hub     *hub
	frames  *transitions
	metrics *metrics
	streams atomic.Uint64 // numbers them
	// stop is closed when Serve is to end: the streams say goodbye.
	stop     chan struct{}
	stopOnce sync.Once
}

// New returns a Server that knows nothing yet: streams wait until Synced.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("xds server: %w", err)
	}
	s := &Server{
		cfg:    cfg,
		log:    cfg.Logger,
		frames: newTransitions(cfg.MaxResponseBytes),
		stop:   make(chan struct{}),
	}
	s.metrics = newMetrics()
	s.hub = newHub(snapshot.NewStore(snapshot.Config{ClusterDomain: cfg.ClusterDomain}), s.metrics)
	if cfg.Registerer != nil {
		if err := s.metrics.register(cfg.Registerer); err != nil {
			return nil, fmt.Errorf("xds server: metrics: %w", err)
		}
	}
	return s, nil
}

// Apply takes in a batch of changes, the first of which was seen at that time.
// It never waits for a stream.
func (s *Server) Apply(changes []snapshot.Change, seen time.Time) {
	s.changed(s.hub.apply(changes, seen))
}

// changed tells the Tracker, without the hub's lock: it has one of its own.
func (s *Server) changed(d snapshot.Delta) {
	if t := s.cfg.Tracker; t != nil && (len(d.Topics) > 0 || len(d.PodsCame) > 0 || len(d.PodsLeft) > 0) {
		t.Changed(d.PodsCame, d.PodsLeft)
	}
}

// Membership is what is known of a Pod, for the Tracker.
func (s *Server) Membership(pod snapshot.ObjectKey) (snapshot.Membership, bool) {
	return s.hub.membership(pod)
}

// SetDraining makes the Pod's endpoints DRAINING for everyone, or no longer.
func (s *Server) SetDraining(uid string, d snapshot.Drain) {
	s.changed(s.hub.setDraining(uid, d, time.Now()))
}

// ServicesAt are the Services that an address belongs to.
func (s *Server) ServicesAt(dst netip.AddrPort) []snapshot.ObjectKey { return s.hub.servicesAt(dst) }

// Synced says that all that exists has been applied once: from now on "not
// known" is an answer. It may be called more than once.
func (s *Server) Synced() { s.hub.setSynced() }

// Serve accepts streams on lis until ctx is done, then ends them and returns
// when the last has ended. creds is nil for plaintext. It is called once.
func (s *Server) Serve(ctx context.Context, lis net.Listener, creds credentials.TransportCredentials) error {
	gs := grpc.NewServer(s.options(creds)...)
	discoverypb.RegisterAggregatedDiscoveryServiceServer(gs, s)
	if s.cfg.Tracker != nil {
		gs.RegisterService(&rolloutService, s)
		s.cfg.Tracker.Serving()
	}
	served := make(chan error, 1)
	go func() { served <- gs.Serve(lis) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve xDS on %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	s.endStreams()
	force := time.AfterFunc(s.cfg.ShutdownTimeout, gs.Stop)
	defer force.Stop()
	gs.GracefulStop()
	// It returns nil after a stop; an error is one that came just before.
	if err := <-served; err != nil {
		return fmt.Errorf("serve xDS on %s: %w", lis.Addr(), err)
	}
	return nil
}

// endStreams tells every stream to end, and to be taken up elsewhere.
func (s *Server) endStreams() { s.stopOnce.Do(func() { close(s.stop) }) }

func (s *Server) options(creds credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(rememberConn(creds)),
		grpc.ForceServerCodecV2(newCodec()),
		// A sidecar has one stream on a connection and asks short questions.
		grpc.MaxConcurrentStreams(16),
		grpc.MaxRecvMsgSize(4 << 20),
		// Thousands of mostly idle connections: no 32 KiB buffers for each. (The
		// write buffers are shared by default.)
		grpc.WriteBufferSize(8 << 10),
		grpc.ReadBufferSize(4 << 10),
		// A sidecar may ping as it likes; it must never be told too_many_pings.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		// Dead peers are found within 30 s. MaxConnectionAge stays off: a
		// connection that works is not taken away to be balanced.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	}
}
