// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package server is the server of the end-to-end tests.
package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"evenkeel.dev/e2e/testapp/internal/echo"
)

// Exit says how the server ends at SIGTERM.
type Exit string

// Ways to end.
const (
	// ExitNow drops everything, as most applications do.
	ExitNow Exit = "now"
	// ExitGraceful sends GOAWAY and lets RPCs end.
	ExitGraceful Exit = "graceful"
	// ExitNone has no handler for SIGTERM: the Go runtime ends the process.
	ExitNone Exit = "none"
)

// Protocol is what the server speaks.
type Protocol string

// Protocols.
const (
	GRPC  Protocol = "grpc"
	HTTP1 Protocol = "http1"
)

// Config of the server.
type Config struct {
	Logger *slog.Logger
	// Name is told in every answer.
	Name string
	// Listen is the address of the service.
	Listen string
	// Admin is the address of /ready, /stats and /reset.
	Admin string
	// Protocol is what it speaks. With HTTP1 every path answers with an
	// echo.Reply.
	Protocol Protocol
	// Certificate, if set, makes it speak TLS.
	Certificate *tls.Certificate
	// ReadyDelay is how long it is not ready after the start: health says
	// NOT_SERVING, /ready 503. It serves all the same.
	ReadyDelay time.Duration
	// Exit is how it ends.
	Exit Exit
	// Report is a URL which is asked (GET), with what=hook in its query, when
	// /hook is asked, and with what=term when Run's context ends. Zero: none.
	Report string
	// Started is told the addresses once it listens. Zero: nobody is told.
	Started func(service, admin net.Addr)
	// MaxConnectionAge makes it close connections, with GOAWAY. Zero: never.
	MaxConnectionAge time.Duration
}

// Stats is what /stats says.
type Stats struct {
	Name string `json:"name"`
	// Accepted counts connections, Open those that are open now.
	Accepted int64 `json:"accepted"`
	Open     int64 `json:"open"`
	// Started and Ended count RPCs (HTTP1: requests).
	Started int64 `json:"started"`
	Ended   int64 `json:"ended"`
}

type server struct {
	cfg                            Config
	health                         *health.Server
	ready                          atomic.Bool
	accepted, open, started, ended atomic.Int64
}

// Run serves until ctx ends. At Admin it answers
//
//	GET  /ready   200, or 503 before ReadyDelay
//	GET  /stats   Stats
//	GET  /hook    asks Report, as a pod's lifecycle hook
//	POST /reset   begin counting anew
func Run(ctx context.Context, cfg Config) error {
	s := &server{cfg: cfg, health: health.NewServer()}
	ln, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer ln.Close()
	admin, err := listen(ctx, cfg.Admin)
	if err != nil {
		return err
	}
	adminServer := &http.Server{Handler: s.admin(), ReadHeaderTimeout: 10 * time.Second}
	defer func() { _ = adminServer.Close() }() // the process ends
	failed := make(chan error, 2)
	go func() { failed <- fmt.Errorf("admin: %w", adminServer.Serve(admin)) }()

	s.setReady(false)
	timer := time.AfterFunc(cfg.ReadyDelay, func() { s.setReady(true) })
	defer timer.Stop()

	counted := &countingListener{Listener: ln, accepted: &s.accepted, open: &s.open}
	var serve func(net.Listener) error
	var stop func()
	switch cfg.Protocol {
	case GRPC:
		g := s.grpcServer()
		serve = func(ln net.Listener) error { return g.Serve(ln) }
		stop = g.Stop
		if cfg.Exit == ExitGraceful {
			stop = g.GracefulStop
		}
	case HTTP1:
		h := &http.Server{Handler: http.HandlerFunc(s.http1), ReadHeaderTimeout: 10 * time.Second}
		serve = func(ln net.Listener) error { return h.Serve(s.tls(ln)) }
		stop = func() { _ = h.Close() }
		if cfg.Exit == ExitGraceful {
			// Ends when the last request has ended, however long that takes:
			// then the kubelet ends us.
			stop = func() { _ = h.Shutdown(context.WithoutCancel(ctx)) }
		}
	}
	go func() { failed <- fmt.Errorf("serve: %w", serve(counted)) }()
	if cfg.Started != nil {
		cfg.Started(ln.Addr(), admin.Addr())
	}
	cfg.Logger.Info("serving", "name", cfg.Name, "address", ln.Addr(), "protocol", cfg.Protocol)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	cfg.Logger.Info("ending", "how", cfg.Exit)
	if err := s.report(context.WithoutCancel(ctx), "term"); err != nil {
		cfg.Logger.Warn("not reported", "error", err)
	}
	if cfg.Exit == ExitGraceful {
		s.health.Shutdown()
	}
	stop()
	return nil
}

// listen makes a plain TCP listener.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

func (s *server) setReady(ready bool) {
	s.ready.Store(ready)
	st := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
	s.health.SetServingStatus(echo.ServiceName, st)
}

func (s *server) tls(ln net.Listener) net.Listener {
	if s.cfg.Certificate == nil {
		return ln
	}
	return tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{*s.cfg.Certificate}})
}

func (s *server) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			http.Error(w, "not ready yet", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// A client that is gone needs no answer.
		_ = json.NewEncoder(w).Encode(Stats{
			Name: s.cfg.Name, Accepted: s.accepted.Load(), Open: s.open.Load(), Started: s.started.Load(), Ended: s.ended.Load(),
		})
	})
	mux.HandleFunc("GET /hook", func(w http.ResponseWriter, r *http.Request) {
		if err := s.report(r.Context(), "hook"); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) {
		s.accepted.Store(0)
		s.started.Store(0)
		s.ended.Store(0)
	})
	return mux
}

func (s *server) http1(w http.ResponseWriter, r *http.Request) {
	s.started.Add(1)
	defer s.ended.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(echo.Reply{
		Server: s.cfg.Name, Peer: r.RemoteAddr, Authority: r.Host, Received: 1, Payload: string(body),
	})
}

func (s *server) grpcServer() *grpc.Server {
	opts := []grpc.ServerOption{grpc.ForceServerCodecV2(echo.Codec())}
	if s.cfg.Certificate != nil {
		opts = append(opts, grpc.Creds(credentials.NewServerTLSFromCert(s.cfg.Certificate)))
	}
	if s.cfg.MaxConnectionAge > 0 {
		opts = append(opts, keepaliveAge(s.cfg.MaxConnectionAge))
	}
	g := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(g, s.health)
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: echo.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: s.unary}},
		Streams: []grpc.StreamDesc{
			{StreamName: "ServerStream", Handler: s.serverStream, ServerStreams: true},
			{StreamName: "ClientStream", Handler: s.clientStream, ClientStreams: true},
			{StreamName: "Bidi", Handler: s.bidi, ServerStreams: true, ClientStreams: true},
		},
	}, s)
	return g
}

func (s *server) unary(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	s.started.Add(1)
	defer s.ended.Add(1)
	var b []byte
	if err := dec(&b); err != nil {
		return nil, err
	}
	return s.answer(ctx, b, 1)
}

// answer waits as asked and makes the reply, or the asked-for error.
func (s *server) answer(ctx context.Context, b []byte, received int) (*[]byte, error) {
	var req echo.Request
	if err := echo.Decode(b, &req); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := sleep(ctx, req.Delay()); err != nil {
		return nil, err
	}
	if req.Status != 0 {
		return nil, status.Error(codes.Code(req.Status), "as asked, by "+s.cfg.Name)
	}
	reply := echo.Reply{Server: s.cfg.Name, Received: received, Payload: strings.Repeat("x", req.ReplyBytes)}
	if p, ok := peer.FromContext(ctx); ok {
		reply.Peer = p.Addr.String()
	}
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		reply.Authority = strings.Join(md.Get(":authority"), ",")
	}
	return echo.Encode(reply)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (s *server) serverStream(_ any, stream grpc.ServerStream) error {
	s.started.Add(1)
	defer s.ended.Add(1)
	var b []byte
	if err := stream.RecvMsg(&b); err != nil {
		return err
	}
	var req echo.Request
	if err := echo.Decode(b, &req); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for range max(1, req.Messages) {
		reply, err := s.answer(stream.Context(), b, 1)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(reply); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) clientStream(_ any, stream grpc.ServerStream) error {
	s.started.Add(1)
	defer s.ended.Add(1)
	var last []byte
	for n := 0; ; n++ {
		var b []byte
		err := stream.RecvMsg(&b)
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return status.Error(codes.InvalidArgument, "no message")
			}
			reply, err := s.answer(stream.Context(), last, n)
			if err != nil {
				return err
			}
			return stream.SendMsg(reply)
		}
		if err != nil {
			return err
		}
		last = b
	}
}

func (s *server) bidi(_ any, stream grpc.ServerStream) error {
	s.started.Add(1)
	defer s.ended.Add(1)
	for n := 1; ; n++ {
		var b []byte
		err := stream.RecvMsg(&b)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		reply, err := s.answer(stream.Context(), b, n)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(reply); err != nil {
			return err
		}
	}
}
