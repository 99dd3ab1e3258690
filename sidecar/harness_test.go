// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
)

// TestMain checks that no goroutine and no descriptor outlives the tests.
func TestMain(m *testing.M) {
	before := descriptors()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines leaked:", err)
			code = 1
		}
		// Descriptors of connections that a library closes in the background.
		deadline := time.Now().Add(5 * time.Second)
		for descriptors() > before+2 && time.Now().Before(deadline) {
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
		}
		// The runtime's own epoll set and eventfd come with the first use of the network.
		if n := descriptors(); n > before+2 {
			fmt.Fprintf(os.Stderr, "descriptors leaked: %d before, %d after\n", before, n)
			code = 1
		}
	}
	os.Exit(code)
}

func descriptors() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(all)
}

const testService = "shop/pricing:50051"

// clusterIP is never dialled: it is the original destination that tests pretend.
var clusterIP = netip.MustParseAddrPort("10.96.3.4:50051")

// rig is a running Sidecar whose connections all come from clusterIP, unless orig is changed.
type rig struct {
	t    testing.TB
	s    *Sidecar
	addr string
	orig atomic.Pointer[netip.AddrPort]

	mu    sync.Mutex
	asked []router.Key
}

func (r *rig) Resolve(k router.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, k)
}

var errNone = errors.New("not redirected")

// newRig starts a Sidecar. edit may change its configuration.
func newRig(t testing.TB, edit ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t}
	r.orig.Store(&clusterIP)
	lis := listen(t)
	f, err := lis.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	cfg := Config{
		Logger: testLogger(t), Listeners: []*os.File{f}, Resolver: r,
		OriginalDst: func(int) (netip.AddrPort, error) {
			if o := r.orig.Load(); o != nil {
				return *o, nil
			}
			return netip.AddrPort{}, errNone
		},
		ErrNoOriginalDst: errNone,
		DrainTime:        -1,
	}
	for _, e := range edit {
		e(&cfg)
	}
	if r.s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.addr = lis.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.Close()
	})
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

func testLogger(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("test", t.Name())
	}
	return slog.New(slog.DiscardHandler)
}

// routed says that clusterIP is testService.
func (r *rig) routed() *rig {
	r.s.Routes(router.NewTable(map[router.Key]router.Destination{
		{Addr: clusterIP}: {Kind: router.Service, Service: testService},
	}))
	return r
}

// serve gives testService these endpoints.
func (r *rig) serve(addrs ...string) *rig {
	spec := &balancer.Spec{Service: testService}
	for _, a := range addrs {
		spec.Endpoints = append(spec.Endpoints, balancer.EndpointSpec{Addr: netip.MustParseAddrPort(a), State: balancer.Ready})
	}
	r.s.Service(testService, spec)
	return r.routed()
}

// dial makes a channel through the Sidecar.
func (r *rig) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	r.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("pricing.shop:50051"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///"+r.addr, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cc.Close() })
	return cc
}

func (r *rig) client(opts ...grpc.DialOption) testpb.TestServiceClient {
	r.t.Helper()
	return testpb.NewTestServiceClient(r.dial(opts...))
}

func (r *rig) snapshot() Snapshot {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	snap, err := r.s.Snapshot(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return snap
}

// quiet waits until nothing is held for any stream any more.
func (r *rig) quiet() {
	r.t.Helper()
	eventually(r.t, "no stream and no kept byte is left", func() bool {
		snap := r.snapshot()
		if snap.Streams != 0 || snap.KeptBytes != 0 {
			return false
		}
		for _, svc := range snap.Services {
			for _, e := range svc.Endpoints {
				if e.InFlight != 0 || e.Queued != 0 {
					return false
				}
			}
		}
		return true
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// backend is a real gRPC server.
type backend struct {
	testpb.UnimplementedTestServiceServer
	name  string
	addr  string
	srv   *grpc.Server
	calls atomic.Int64
	block chan struct{} // unary calls wait for it, when not nil
}

func newBackend(t testing.TB, name string, opts ...grpc.ServerOption) *backend {
	t.Helper()
	return newBackendOn(t, name, listen(t), opts...)
}

func newBackendOn(t testing.TB, name string, lis net.Listener, opts ...grpc.ServerOption) *backend {
	b := &backend{name: name, addr: lis.Addr().String()}
	opts = append([]grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20), grpc.MaxSendMsgSize(64 << 20)}, opts...)
	b.srv = grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(b.srv, b)
	done := make(chan struct{})
	go func() { defer close(done); _ = b.srv.Serve(lis) }()
	t.Cleanup(func() { b.srv.Stop(); <-done })
	return b
}

func (b *backend) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	b.calls.Add(1)
	return &testpb.Empty{}, nil
}

func (b *backend) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	b.calls.Add(1)
	if b.block != nil {
		select {
		case <-b.block:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get("x-echo"); len(v) > 0 {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-echo", v[0]))
	}
	if v := md.Get("x-echo-bin"); len(v) > 0 {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-echo-bin", v[0]))
	}
	if s := in.GetResponseStatus(); s.GetCode() != 0 {
		return nil, status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	return &testpb.SimpleResponse{
		Payload: &testpb.Payload{Body: make([]byte, in.GetResponseSize())}, ServerId: b.name,
		Hostname: strconv.Itoa(len(in.GetPayload().GetBody())),
	}, nil
}

func (b *backend) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	b.calls.Add(1)
	return respond(in, out)
}

type sender interface {
	Send(*testpb.StreamingOutputCallResponse) error
}

func respond(in *testpb.StreamingOutputCallRequest, out sender) error {
	for _, p := range in.GetResponseParameters() {
		time.Sleep(time.Duration(p.GetIntervalUs()) * time.Microsecond)
		if err := out.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	if s := in.GetResponseStatus(); s.GetCode() != 0 {
		return status.Error(codes.Code(s.GetCode()), s.GetMessage())
	}
	return nil
}

func (b *backend) StreamingInputCall(in grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	b.calls.Add(1)
	var sum int32
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return in.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: sum})
		}
		if err != nil {
			return err
		}
		sum += int32(len(m.GetPayload().GetBody()))
	}
}

func (b *backend) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	b.calls.Add(1)
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := respond(in, s); err != nil {
			return err
		}
	}
}

func withTimeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
