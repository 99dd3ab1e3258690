// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"evenkeel.dev/xds"
)

// BenchmarkFanOut changes one endpoint of a Service of 1,000 which many sidecars
// subscribe to, each with a connection of its own over a unix socket, and waits
// until the last of them has received it and acknowledged it. Clients and server
// share the process, so the CPU is that of both sides.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("sidecars=%d", n), func(b *testing.B) { fanOut(b, n, 1000) })
	}
}

// BenchmarkConnect is all sidecars coming at once, as after a restart of the
// control plane, each with one Service of 1,000 endpoints and no versions.
func BenchmarkConnect(b *testing.B) {
	const n = 500
	for b.Loop() {
		newFleet(b, n, 1000).close()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/sidecar")
}

// fleet is a server with many sidecars.
type fleet struct {
	b        testing.TB
	srv      *Server
	members  []int
	received atomic.Int64 // responses by all
	acks     sync.WaitGroup
	cancel   context.CancelFunc
	served   chan error
	conns    []*grpc.ClientConn
}

func newFleet(b testing.TB, n, endpoints int) *fleet {
	b.Helper()
	raiseFileLimit(b, 2*n+200)
	srv, err := New(Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	f := &fleet{b: b, srv: srv, served: make(chan error, 1)}
	for i := range endpoints {
		f.members = append(f.members, i)
	}
	f.apply(f.members)
	srv.Synced()
	ln, err := net.Listen("unix", filepath.Join(b.TempDir(), fmt.Sprintf("s%d", time.Now().UnixNano()%1e9)))
	if err != nil {
		b.Fatal(err)
	}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	go func() { f.served <- srv.Serve(ctx, ln, nil) }()
	for i := range n {
		f.connect(ctx, ln.Addr().String(), i)
	}
	f.waitFor(n)
	return f
}

func (f *fleet) apply(members []int) {
	f.srv.Apply(toChanges(members), time.Now())
}

func (f *fleet) connect(ctx context.Context, addr string, i int) {
	f.b.Helper()
	cc, err := grpc.NewClient("unix://"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		f.b.Fatal(err)
	}
	f.conns = append(f.conns, cc)
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx)
	if err != nil {
		f.b.Fatal(err)
	}
	err = stream.Send(&discoverypb.DeltaDiscoveryRequest{
		Node:    nodeProto(xds.Node{Namespace: "shop", Pod: fmt.Sprintf("web-%d", i)}),
		TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{xds.EndpointCollection(pricing)},
	})
	if err != nil {
		f.b.Fatal(err)
	}
	f.acks.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			if err := stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
				return
			}
			f.received.Add(1)
		}
	})
}

func (f *fleet) waitFor(n int) {
	for f.received.Load() < int64(n) {
		runtime.Gosched()
		time.Sleep(100 * time.Microsecond)
	}
	f.received.Add(-int64(n))
}

func (f *fleet) close() {
	for _, cc := range f.conns {
		_ = cc.Close()
	}
	f.acks.Wait()
	f.cancel()
	if err := <-f.served; err != nil {
		f.b.Error(err)
	}
}

func fanOut(b *testing.B, n, endpoints int) {
	f := newFleet(b, n, endpoints)
	defer f.close()
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	bytesBefore := metricValue(b, f.srv.metrics.bytes.WithLabelValues("endpoint"))
	i := 0
	for b.Loop() {
		// One endpoint joins, then leaves: the same set is never sent twice in a row.
		members := f.members
		if i++; i%2 == 1 {
			members = append(slices.Clone(f.members), endpoints)
		}
		f.apply(members)
		f.waitFor(n)
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	rpcs := float64(b.N) * float64(n)
	b.ReportMetric(float64(cpu.Nanoseconds())/1e3/rpcs, "cpu-µs/sidecar")
	b.ReportMetric((metricValue(b, f.srv.metrics.bytes.WithLabelValues("endpoint"))-bytesBefore)/rpcs, "bytes/sidecar")
}

func raiseFileLimit(b testing.TB, want int) {
	b.Helper()
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		b.Fatal(err)
	}
	if l.Max < uint64(want) {
		b.Skipf("needs %d descriptors; the hard limit is %d", want, l.Max)
	}
	l.Cur = max(l.Cur, uint64(want))
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		b.Fatal(err)
	}
}
