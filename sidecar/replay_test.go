// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
)

// fakeFleet are servers that all tell which of them got a session first.
type fakeFleet []*fakeServer

func newFleet(t *testing.T, n int) fakeFleet {
	var f fakeFleet
	for range n {
		f = append(f, newFakeServer(t))
	}
	return f
}

func (f fakeFleet) addrs() (all []string) {
	for _, s := range f {
		all = append(all, s.addr)
	}
	return all
}

// connected accepts the prewarmed session of each.
func (f fakeFleet) connected() (all []*peer) {
	for _, s := range f {
		all = append(all, s.accept())
	}
	return all
}

// holder finds the peer whose next stream frame is there: the one that was picked.
func holder(t *testing.T, why string, peers []*peer) (*peer, []*peer) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		for i, p := range peers {
			_ = p.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			h, err := p.fr.ReadFrame()
			_ = p.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if err != nil {
				continue
			}
			if m, ok := h.(*http2.MetaHeadersFrame); ok {
				if !strings.HasPrefix(describe(m), "HEADERS 1 ") {
					t.Fatalf("%s: got %s", why, describe(m))
				}
				rest := append(append([]*peer(nil), peers[:i]...), peers[i+1:]...)
				return p, rest
			}
		}
	}
	t.Fatalf("%s: no server got the request", why)
	return nil, nil
}

func TestReplay(t *testing.T) {
	refusals := map[string]func(p *peer){
		"REFUSED_STREAM": func(p *peer) { p.do(p.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)) },
		"GOAWAY":         func(p *peer) { p.do(p.fr.WriteGoAway(0, http2.ErrCodeNo, nil)) },
		"GOAWAY with an error": func(p *peer) {
			p.do(p.fr.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte("busy")))
		},
		"two GOAWAYs": func(p *peer) {
			p.do(p.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
			p.do(p.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
		},
	}
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 2)
			r := newRig(t).serve(fleet.addrs()...)
			app := r.app()
			app.request(1, true)
			first, rest := holder(t, "picked", fleet.connected())
			refuse(first)
			second, _ := holder(t, "another endpoint", rest)
			second.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
			app.want("the app notices nothing", "HEADERS 1 end"+grpcHeaders+" grpc-status=0")
			r.quiet()
			if n := r.snapshot().Replays; n != 1 {
				t.Errorf("%d replays, want 1", n)
			}
		})
		t.Run(name+" with half the body sent", func(t *testing.T) {
			fleet := newFleet(t, 2)
			r := newRig(t).serve(fleet.addrs()...)
			app := r.app()
			app.request(1, false)
			app.data(1, false, message(20_000)[:12_000])
			first, rest := holder(t, "picked", fleet.connected())
			first.wantBody("the half", 12_000, false)
			refuse(first)
			second, _ := holder(t, "another endpoint", rest)
			second.wantBody("the half again", 12_000, false)
			app.data(1, true, message(20_000)[12_000:])
			second.wantBody("the other half", 8_005, true)
			second.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
			app.want("the app notices nothing", "HEADERS 1 end"+grpcHeaders+" grpc-status=0")
			r.quiet()
		})
	}
}

func TestReplayIsBounded(t *testing.T) {
	t.Run("each endpoint is asked once", func(t *testing.T) {
		fleet := newFleet(t, 3)
		r := newRig(t).serve(fleet.addrs()...)
		app := r.app()
		app.request(1, true)
		left := fleet.connected()
		for range 3 {
			var p *peer
			p, left = holder(t, "one that was not asked", left)
			p.do(p.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
		}
		app.want("all refused", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: no ready endpoint for shop/pricing:50051 (3 known, 3 ready, 3 tried): …")
		r.quiet()
	})
	t.Run("attempts", func(t *testing.T) {
		fleet := newFleet(t, 4)
		r := newRig(t, func(c *Config) { c.ReplayAttempts = 2 }).serve(fleet.addrs()...)
		app := r.app()
		app.request(1, true)
		left := fleet.connected()
		for range 2 {
			var p *peer
			p, left = holder(t, "one that was not asked", left)
			p.do(p.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
		}
		app.want("enough", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: 127.0.0.1:… did not process the request (REFUSED_STREAM), and so did 1 endpoints before")
	})
	t.Run("never after a response byte", func(t *testing.T) {
		fleet := newFleet(t, 2)
		r := newRig(t).serve(fleet.addrs()...)
		app := r.app()
		app.request(1, true)
		first, rest := holder(t, "picked", fleet.connected())
		first.response(1)
		app.want("headers", "HEADERS 1"+grpcHeaders)
		first.do(first.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
		app.want("an error", "RST 1 REFUSED_STREAM")
		rest[0].silent("no other endpoint", 100*time.Millisecond)
	})
	t.Run("per stream", func(t *testing.T) {
		fleet := newFleet(t, 2)
		r := newRig(t, func(c *Config) { c.ReplayBytes = 1000 }).serve(fleet.addrs()...)
		app := r.app()
		app.request(1, false)
		app.data(1, true, message(1000))
		first, rest := holder(t, "picked", fleet.connected())
		first.do(first.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
		app.want("too large to be kept", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: 127.0.0.1:… did not process the request (REFUSED_STREAM), and the request was too large to be kept for another endpoint")
		rest[0].silent("no other endpoint", 100*time.Millisecond)
		r.quiet()
	})
	t.Run("per process", func(t *testing.T) {
		fleet := newFleet(t, 1)
		r := newRig(t, func(c *Config) { c.ReplayBudget = 10_000 }).serve(fleet.addrs()...)
		app := r.app()
		for id := uint32(1); id < 40; id += 2 {
			app.request(id, false)
			app.data(id, false, message(1000))
		}
		fleet.connected()
		eventually(t, "the bodies came", func() bool { return r.snapshot().Services[0].Endpoints[0].InFlight == 20 })
		eventually(t, "the budget holds", func() bool { k := r.snapshot().KeptBytes; return k > 0 && k <= 10_000 })
	})
}

// A single endpoint that retires its connection gets the request on a new one.
func TestReplayOnANewSessionOfTheOnlyEndpoint(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	app.request(1, true)
	first := f.accept()
	first.want("the request", "HEADERS 1 end…")
	first.do(first.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
	second := f.accept()
	second.want("again", "HEADERS 1 end…")
	second.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
	app.want("the app notices nothing", "HEADERS 1 end"+grpcHeaders+" grpc-status=0")
	// But one that refuses the stream is not asked again.
	app.request(3, true)
	second.want("the next request", "HEADERS 3 end…")
	second.do(second.fr.WriteRSTStream(3, http2.ErrCodeRefusedStream))
	app.want("refused", "HEADERS 3 end"+grpcHeaders+" grpc-status=14…")
	r.quiet()
}

func TestGoAwayLetsOpenStreamsEnd(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	app.request(1, true)
	first := f.accept()
	first.want("the request", "HEADERS 1 end…")
	first.do(first.fr.WriteGoAway(1, http2.ErrCodeNo, nil))
	second := f.accept() // before it is needed
	app.request(3, true)
	second.want("new streams go to the new session", "HEADERS 1 end…")
	first.response(1)
	first.trailers(1, "0")
	app.want("the old one answers", "HEADERS 1"+grpcHeaders)
	app.want("to its end", "HEADERS 1 end grpc-status=0")
	second.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
	app.want("the new one too", "HEADERS 3 end…")
	if _, err := first.conn.Read(make([]byte, 1024)); err == nil {
		// What is left are WINDOW_UPDATE and the like; then the end.
		for err == nil {
			_, err = first.conn.Read(make([]byte, 1024))
		}
	}
	r.quiet()
}

// Real servers that retire their connections all the time: no RPC may notice.
func TestMaxConnectionAge(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, newBackend(t, "x", grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: 5 * time.Second,
		})).addr)
	}
	r := newRig(t).serve(addrs...)
	c := r.client()
	var failed, done atomic.Int64
	stop := time.Now().Add(1500 * time.Millisecond)
	finished := make(chan struct{})
	for range 8 {
		go func() {
			defer func() { finished <- struct{}{} }()
			for time.Now().Before(stop) {
				if _, err := c.EmptyCall(withTimeout(t, 20*time.Second), &testpb.Empty{}); err != nil {
					failed.Add(1)
					t.Error(err)
					return
				}
				done.Add(1)
			}
		}()
	}
	for range 8 {
		<-finished
	}
	t.Logf("%d RPCs, %d failed", done.Load(), failed.Load())
	r.quiet()
}

// A server that stops gracefully under load, and is gone then: no RPC may notice.
func TestServersRestartUnderLoad(t *testing.T) {
	a, b, c := newBackend(t, "a"), newBackend(t, "b"), newBackend(t, "c")
	r := newRig(t).serve(a.addr, b.addr, c.addr)
	cl := r.client()
	stop := make(chan struct{})
	finished := make(chan int)
	for range 8 {
		go func() {
			n := 0
			defer func() { finished <- n }()
			for ; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := cl.UnaryCall(withTimeout(t, 20*time.Second), &testpb.SimpleRequest{}); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	for _, old := range []*backend{a, b} {
		time.Sleep(200 * time.Millisecond)
		old.srv.GracefulStop() // the listener closes at once: dials are refused
		time.Sleep(200 * time.Millisecond)
		lc := net.ListenConfig{}
		lc.SetMultipathTCP(false)
		lis, err := lc.Listen(t.Context(), "tcp", old.addr)
		if err != nil {
			t.Fatal(err)
		}
		again := newBackendOn(t, old.name, lis)
		eventually(t, "the new one is used", func() bool { return again.calls.Load() > 10 })
	}
	close(stop)
	total := 0
	for range 8 {
		total += <-finished
	}
	t.Logf("%d RPCs", total)
	r.quiet()
}
