// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
)

// drained starts a Sidecar by hand, as its Run is what is tested.
func drained(t *testing.T, drain time.Duration) (r *rig, cancel func(), done chan error) {
	t.Helper()
	lis := listen(t)
	f, err := lis.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	t.Cleanup(func() { f.Close() })
	r = &rig{t: t, addr: lis.Addr().String()}
	if r.s, err = New(Config{Logger: slog.New(slog.DiscardHandler), Listeners: []*os.File{f}, Resolver: r, DrainTime: drain}); err != nil {
		t.Fatal(err)
	}
	r.s.Routes(router.NewTable(map[router.Key]router.Destination{{Name: "pricing.shop:50051"}: {Kind: router.Service, Service: testService}}))
	ctx, cancelCtx := context.WithCancel(context.Background())
	done = make(chan error, 1)
	go func() { done <- r.s.Run(ctx) }()
	t.Cleanup(cancelCtx)
	return r, cancelCtx, done
}

func (r *rig) endpoint(f *fakeServer) {
	r.s.Service(testService, specOf(f.addr))
}

func TestDrainLetsStreamsEnd(t *testing.T) {
	r, cancel, done := drained(t, 10*time.Second)
	f := newFakeServer(t)
	r.endpoint(f)
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	cancel()
	app.want("graceful: nothing is refused yet", "GOAWAY 2147483647 NO_ERROR")
	app.want("then what was seen counts", "GOAWAY 1 NO_ERROR")
	srv.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
	app.want("the stream ends well", "HEADERS 1 end"+grpcHeaders+" grpc-status=0")
	begin := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("Run went on for %s with nothing left", d)
	}
	if _, err := r.s.Snapshot(context.Background()); err == nil {
		t.Error("a snapshot of a Sidecar that has ended")
	}
}

func TestDrainIsBounded(t *testing.T) {
	r, cancel, done := drained(t, 100*time.Millisecond)
	f := newFakeServer(t)
	r.endpoint(f)
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Run did not return")
	}
}

func TestHeartbeatAdvances(t *testing.T) {
	r := newRig(t)
	before := r.s.Heartbeat()
	eventually(t, "an idle Sidecar beats", func() bool { return r.s.Heartbeat() > before+2 })
}

func specOf(addrs ...string) *balancer.Spec {
	spec := &balancer.Spec{Service: testService}
	for _, a := range addrs {
		spec.Endpoints = append(spec.Endpoints, balancer.EndpointSpec{Addr: mustAddr(a), State: balancer.Ready})
	}
	return spec
}
