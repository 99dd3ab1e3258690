// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"evenkeel.dev/cmd/internal/sandbox"
)

// The service that the demo calls: one unary method without generated code.
const (
	serviceName = "shop.Pricing"
	quoteMethod = "/" + serviceName + "/Quote"
	// quoteTime is what a quote takes, so that RPCs are in flight together as in real life.
	quoteTime = time.Millisecond
)

type quoter interface {
	quote(context.Context) (*wrapperspb.StringValue, error)
}

// pricing describes the service to grpc-go.
var pricing = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*quoter)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Quote",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(new(emptypb.Empty)); err != nil {
				return nil, err
			}
			return srv.(quoter).quote(ctx)
		},
	}},
	Metadata: "demo",
}

// server is one replica of the pricing service, and the place where RPCs are counted: errors on the way must not win.
type server struct {
	name string
	addr netip.AddrPort
	grpc *grpc.Server
	pod  *sandbox.Pod // nil without Evenkeel

	mu   sync.Mutex
	at   []time.Duration
	zero time.Time
}

func newServer(name string, addr netip.AddrPort, zero time.Time) *server {
	return &server{name: name, addr: addr, zero: zero, at: make([]time.Duration, 0, 1<<14)}
}

// start listens and serves. Returning nil, the server takes connections.
func (s *server) start(ctx context.Context) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.addr.String())
	if err != nil {
		return fmt.Errorf("server %s: %w", s.name, err)
	}
	s.grpc = grpc.NewServer()
	s.grpc.RegisterService(&pricing, s)
	go func() { _ = s.grpc.Serve(ln) }() // ends with stop; its error is ErrServerStopped then
	return nil
}

// stop is what a program does that has no handler for SIGTERM: connections and RPCs end where they are.
func (s *server) stop() {
	if s.grpc != nil {
		s.grpc.Stop()
	}
}

func (s *server) quote(ctx context.Context) (*wrapperspb.StringValue, error) {
	now := time.Since(s.zero)
	s.mu.Lock()
	s.at = append(s.at, now)
	s.mu.Unlock()
	timer := time.NewTimer(quoteTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return wrapperspb.String(s.name), nil
}

// arrivals returns when RPCs arrived, in order.
func (s *server) arrivals() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Clone(s.at)
	slices.Sort(at) // two handlers may append in the other order
	return at
}
