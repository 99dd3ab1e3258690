// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
)

func call(t *testing.T, c testpb.TestServiceClient, d time.Duration) (string, error) {
	t.Helper()
	out, err := c.UnaryCall(withTimeout(t, d), &testpb.SimpleRequest{})
	return out.GetServerId(), err
}

func wantStatus(t *testing.T, err error, c codes.Code, text string) {
	t.Helper()
	if status.Code(err) != c || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("got %v, want %s with %q", err, c, text)
	}
}

func TestNoEndpoint(t *testing.T) {
	t.Run("the wait ends", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.EndpointWait = 50 * time.Millisecond }).serve()
		_, err := call(t, r.client(), 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "evenkeel: no ready endpoint for shop/pricing:50051 (0 known, 0 ready)")
		r.quiet()
	})
	t.Run("the deadline comes first", func(t *testing.T) {
		f := newFakeServer(t)
		f.lis.Close()
		r := newRig(t).serve()
		app := r.app()
		app.request(1, true, "grpc-timeout", "50m")
		app.want("the sidecar keeps the deadline too", "HEADERS 1 end"+grpcHeaders+" grpc-status=4 grpc-message=evenkeel: the deadline passed before the request could be sent")
		r.quiet()
	})
	t.Run("one comes", func(t *testing.T) {
		b := newBackend(t, "a")
		r := newRig(t).serve()
		time.AfterFunc(50*time.Millisecond, func() { r.serve(b.addr) })
		if _, err := call(t, r.client(), 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("a refused one is no endpoint, then comes back", func(t *testing.T) {
		lis := listen(t)
		lis.Close()
		r := newRig(t, func(c *Config) { c.EndpointWait = 200 * time.Millisecond }).serve(lis.Addr().String())
		_, err := call(t, r.client(), 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "evenkeel: no ready endpoint for shop/pricing:50051 (1 known, 1 ready, 1 failing to connect): dial "+lis.Addr().String()+": connection refused")
		r.quiet()
	})
	t.Run("warming ones are connected and not picked", func(t *testing.T) {
		b, w := newBackend(t, "a"), newBackend(t, "warming")
		r := newRig(t).serve(b.addr)
		r.s.Service(testService, &balancer.Spec{Service: testService, Endpoints: []balancer.EndpointSpec{
			{Addr: netip.MustParseAddrPort(b.addr), State: balancer.Ready},
			{Addr: netip.MustParseAddrPort(w.addr), State: balancer.Warming},
		}})
		c := r.client()
		for range 50 {
			if name, err := call(t, c, 10*time.Second); err != nil || name != "a" {
				t.Fatalf("got %q, %v", name, err)
			}
		}
		eventually(t, "the warming one is connected", func() bool {
			for _, e := range r.snapshot().Services[0].Endpoints {
				if e.Connectivity != "connected" {
					return false
				}
			}
			return true
		})
	})
}

// What a wait has used up is not given to the server again.
func TestDeadlineShrinksByTheWait(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve()
	app := r.app()
	app.request(1, true, "grpc-timeout", "10S")
	time.Sleep(100 * time.Millisecond)
	r.serve(f.addr)
	h := f.accept().want("after the wait", "HEADERS 1 end…grpc-timeout=…").(*http2.MetaHeadersFrame)
	for _, field := range h.Fields {
		if field.Name == "grpc-timeout" {
			left, ok := parseTimeout(field.Value)
			if !ok || left > 9900*time.Millisecond || left < 5*time.Second {
				t.Errorf("grpc-timeout is %s after a wait of 100 ms of 10 s", field.Value)
			}
		}
	}
}

func TestBlackHoleIsLeftQuickly(t *testing.T) {
	good := newBackend(t, "good")
	// A listener whose backlog is full does not answer SYNs.
	hole := blackHole(t)
	r := newRig(t).serve(good.addr, hole)
	c := r.client()
	for range 20 {
		begin := time.Now()
		if _, err := call(t, c, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("an RPC took %s", d)
		}
	}
}

func TestUnknownDestination(t *testing.T) {
	t.Run("waits for the word", func(t *testing.T) {
		b := newBackend(t, "a")
		r := newRig(t)
		time.AfterFunc(100*time.Millisecond, func() { r.serve(b.addr) })
		begin := time.Now()
		if _, err := call(t, r.client(), 10*time.Second); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d < 100*time.Millisecond {
			t.Errorf("answered after %s, before it could be known", d)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		want := []router.Key{{Addr: clusterIP}, {Name: "pricing.shop:50051"}}
		if len(r.asked) != 2 || r.asked[0] != want[0] || r.asked[1] != want[1] {
			t.Errorf("asked %v, want %v", r.asked, want)
		}
	})
	t.Run("no word: relayed to where the app meant, and balanced once known, on the same connection", func(t *testing.T) {
		orig, b := newBackend(t, "orig"), newBackend(t, "balanced")
		r := newRig(t, func(c *Config) { c.RouteWait = 100 * time.Millisecond })
		addr := netip.MustParseAddrPort(orig.addr)
		r.orig.Store(&addr)
		app := r.client()
		begin := time.Now()
		if name, err := call(t, app, 10*time.Second); err != nil || name != "orig" {
			t.Fatalf("got %q, %v", name, err)
		}
		if d := time.Since(begin); d < 100*time.Millisecond {
			t.Errorf("relayed after %s, without a wait", d)
		}
		// The control plane is away: the first stream is late, not each.
		begin = time.Now()
		for range 20 {
			if name, err := call(t, app, 10*time.Second); err != nil || name != "orig" {
				t.Fatalf("got %q, %v", name, err)
			}
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("20 further calls took %s", d)
		}
		r.serve(b.addr)
		r.s.Routes(router.NewTable(map[router.Key]router.Destination{{Addr: addr}: {Kind: router.Service, Service: testService}}))
		eventually(t, "the same channel is balanced", func() bool {
			name, err := call(t, app, 10*time.Second)
			return err == nil && name == "balanced"
		})
		if n := len(r.snapshot().Downstream); n != 1 {
			t.Errorf("%d connections of the app, want the one", n)
		}
		r.quiet()
	})
	t.Run("service known, its endpoints not: relayed", func(t *testing.T) {
		orig := newBackend(t, "orig")
		r := newRig(t, func(c *Config) { c.RouteWait = 100 * time.Millisecond })
		addr := netip.MustParseAddrPort(orig.addr)
		r.orig.Store(&addr)
		r.s.Routes(router.NewTable(map[router.Key]router.Destination{{Addr: addr}: {Kind: router.Service, Service: testService}}))
		if name, err := call(t, r.client(), 10*time.Second); err != nil || name != "orig" {
			t.Errorf("got %q, %v", name, err)
		}
	})
	t.Run("no original destination", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.RouteWait = 50 * time.Millisecond })
		r.orig.Store(nil)
		_, err := call(t, r.client(), 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "evenkeel: the control plane has not said yet where pricing.shop:50051 is")
	})
	t.Run("by authority alone", func(t *testing.T) {
		b := newBackend(t, "a")
		r := newRig(t).serve(b.addr)
		r.orig.Store(nil)
		r.s.Routes(router.NewTable(map[router.Key]router.Destination{{Name: "pricing.shop:50051"}: {Kind: router.Service, Service: testService}}))
		if name, err := call(t, r.client(), 10*time.Second); err != nil || name != "a" {
			t.Errorf("got %q, %v", name, err)
		}
	})
	t.Run("the app dials the sidecar by a pretended destination", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.RouteWait = 50 * time.Millisecond })
		self := netip.MustParseAddrPort(r.addr)
		r.orig.Store(&self)
		_, err := call(t, r.client(), 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "is the sidecar itself")
	})
	t.Run("the address refuses", func(t *testing.T) {
		lis := listen(t)
		lis.Close()
		r := newRig(t, func(c *Config) { c.RouteWait = 50 * time.Millisecond })
		addr := netip.MustParseAddrPort(lis.Addr().String())
		r.orig.Store(&addr)
		_, err := call(t, r.client(), 10*time.Second)
		wantStatus(t, err, codes.Unavailable, "evenkeel: cannot reach dial "+lis.Addr().String()+": connection refused")
		r.quiet()
	})
}

func TestServiceGoesAway(t *testing.T) {
	b := newBackend(t, "a")
	b.block = make(chan struct{})
	r := newRig(t).serve(b.addr)
	c := r.client()
	got := make(chan error, 1)
	go func() { _, err := call(t, c, 10*time.Second); got <- err }()
	eventually(t, "the call is at the server", func() bool { return b.calls.Load() == 1 })
	r.s.Service(testService, nil)
	eventually(t, "the service is forgotten", func() bool { return len(r.snapshot().Services) == 0 })
	close(b.block)
	if err := <-got; err != nil {
		t.Errorf("the RPC in flight did not end well: %v", err)
	}
	r.serve(b.addr)
	if _, err := call(t, c, 10*time.Second); err != nil {
		t.Errorf("made again: %v", err)
	}
	r.quiet()
}

func TestEndpointRemovedWhileInUse(t *testing.T) {
	a, b := newBackend(t, "a"), newBackend(t, "b")
	a.block = make(chan struct{})
	r := newRig(t).serve(a.addr)
	c := r.client()
	got := make(chan error, 1)
	go func() { _, err := call(t, c, 10*time.Second); got <- err }()
	eventually(t, "the call is at the server", func() bool { return a.calls.Load() == 1 })
	r.serve(b.addr)
	for range 10 {
		if name, err := call(t, c, 10*time.Second); err != nil || name != "b" {
			t.Fatalf("got %q, %v", name, err)
		}
	}
	close(a.block)
	if err := <-got; err != nil {
		t.Errorf("the RPC in flight did not end well: %v", err)
	}
	r.quiet()
	eventually(t, "the session to the removed one is closed", func() bool { return r.s.upstreamSessions(t) == 1 })
}
