// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/upstream"
)

func sessions(c func(*upstream.Config)) func(*Config) { return func(cfg *Config) { c(&cfg.Sessions) } }

func TestPrewarm(t *testing.T) {
	fleet := newFleet(t, 3)
	r := newRig(t).serve(fleet.addrs()...)
	app := r.app()
	for _, f := range fleet {
		_ = f.lis.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond))
		if c, err := f.lis.Accept(); err == nil {
			c.Close()
			t.Fatal("dialled before the app called the service")
		}
	}
	app.request(1, true)
	fleet.connected() // all three, for one RPC
}

func TestMaxConcurrentStreams(t *testing.T) {
	t.Run("one more session, up to the cap, then a queue", func(t *testing.T) {
		f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		r := newRig(t).serve(f.addr)
		app := r.app()
		for id := uint32(1); id <= 11; id += 2 {
			app.request(id, true)
		}
		var peers []*peer
		for range 4 {
			p := f.accept()
			p.want("one stream each", "HEADERS 1 end…")
			peers = append(peers, p)
		}
		eventually(t, "two wait", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 2 })
		_ = f.lis.(*net.TCPListener).SetDeadline(time.Now().Add(100 * time.Millisecond))
		if c, err := f.lis.Accept(); err == nil {
			c.Close()
			t.Error("a fifth session")
		}
		ok := []string{":status", "200", "content-type", "application/grpc", "grpc-status", "0"}
		peers[2].headers(1, true, ok...)
		peers[2].want("the next in the queue", "HEADERS 3 end…")
		peers[2].headers(3, true, ok...)
		peers[2].want("and the last", "HEADERS 5 end…")
		for _, p := range []*peer{peers[0], peers[1], peers[3]} {
			p.headers(1, true, ok...)
		}
		peers[2].headers(5, true, ok...)
		for range 6 {
			app.want("each is answered", "HEADERS …")
		}
		r.quiet()
	})
	t.Run("the queue knows deadlines and cancels", func(t *testing.T) {
		f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		r := newRig(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 })).serve(f.addr)
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the first", "HEADERS 1 end…")
		app.request(3, true, "grpc-timeout", "50m")
		app.want("its deadline", "HEADERS 3 end"+grpcHeaders+" grpc-status=4…")
		app.request(5, true)
		eventually(t, "it waits", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 1 })
		app.do(app.fr.WriteRSTStream(5, http2.ErrCodeCancel))
		eventually(t, "it is gone", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 0 })
		srv.headers(1, true, ":status", "200", "grpc-status", "0")
		app.want("the first", "HEADERS 1 end…")
		srv.silent("neither was sent", 50*time.Millisecond)
		r.quiet()
	})
	t.Run("the queue is bounded", func(t *testing.T) {
		f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		r := newRig(t, sessions(func(c *upstream.Config) { c.MaxSessions, c.MaxQueue = 1, 2 })).serve(f.addr)
		app := r.app()
		app.request(1, true)
		f.accept().want("the first", "HEADERS 1 end…")
		app.request(3, true)
		app.request(5, true)
		app.request(7, true)
		app.want("load is shed", "HEADERS 7 end"+grpcHeaders+" grpc-status=8 grpc-message=evenkeel: no ready endpoint for shop/pricing:50051 (1 known, 1 ready, 1 tried): 127.0.0.1:…: too many streams wait for this endpoint")
	})
	t.Run("real clients and a server that takes one stream at a time", func(t *testing.T) {
		b := newBackend(t, "a", grpc.MaxConcurrentStreams(1))
		r := newRig(t).serve(b.addr)
		c := r.client()
		errs := make(chan error)
		for range 20 {
			go func() {
				for range 20 {
					if _, err := c.EmptyCall(withTimeout(t, 30*time.Second), &testpb.Empty{}); err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
		}
		for range 20 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		r.quiet()
	})
	t.Run("lowered to zero and raised again", func(t *testing.T) {
		f := newFakeServer(t)
		r := newRig(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 })).serve(f.addr)
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the first", "HEADERS 1 end…")
		srv.do(srv.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}))
		srv.headers(1, true, ":status", "200", "grpc-status", "0")
		app.want("the first", "HEADERS 1 end…")
		app.request(3, true)
		srv.silent("no stream is allowed", 50*time.Millisecond)
		srv.do(srv.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10}))
		srv.want("the one that waited", "HEADERS 3 end…")
	})
}

func TestIdleSessionsAreClosed(t *testing.T) {
	f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	r := newRig(t, sessions(func(c *upstream.Config) { c.ExtraIdle = 10 * time.Millisecond })).serve(f.addr)
	app := r.app()
	app.request(1, true)
	app.request(3, true)
	a, b := f.accept(), f.accept()
	for _, p := range []*peer{a, b} {
		p.want("a stream each", "HEADERS 1 end…")
		p.headers(1, true, ":status", "200", "grpc-status", "0")
		app.want("answered", "HEADERS …")
	}
	eventually(t, "one session is left, as the service is in use", func() bool { return r.s.upstreamSessions(t) == 1 })
	time.Sleep(1200 * time.Millisecond)
	if n := r.s.upstreamSessions(t); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// A server that accepts and says nothing, or nonsense, is no endpoint.
func TestServerThatIsNotHTTP2(t *testing.T) {
	good := newBackend(t, "good")
	bad := tcpServer(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_, _ = c.Read(make([]byte, 100))
	})
	mute := tcpServer(t, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = c.Read(make([]byte, 1<<16))
		_, _ = c.Read(make([]byte, 1))
	})
	r := newRig(t).serve(good.addr, bad, mute)
	c := r.client()
	for range 50 {
		if name, err := call(t, c, 10*time.Second); err != nil || name != "good" {
			t.Fatalf("got %q, %v", name, err)
		}
	}
	r.quiet()
}

// Slow readers on either side stop the sender; memory is bounded by windows.
func TestSlowReaders(t *testing.T) {
	const perStream = 1 << 20 // far above a stream's window and what is in the buffers
	t.Run("the app", func(t *testing.T) {
		f := newFakeServer(t)
		r := newRig(t).serve(f.addr)
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the request", "HEADERS 1 end…")
		srv.response(1)
		app.want("headers", "HEADERS 1"+grpcHeaders)
		sent := srv.pour(1)
		if sent > perStream {
			t.Errorf("the server could send %d bytes to an app that reads none", sent)
		}
		app.do(app.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		r.quiet()
	})
	t.Run("the server", func(t *testing.T) {
		f := newFakeServer(t)
		r := newRig(t).serve(f.addr)
		app := r.app()
		app.request(1, false)
		srv := f.accept()
		srv.want("the request", "HEADERS 1 :method…")
		sent := app.pour(1)
		if sent > perStream {
			t.Errorf("the app could send %d bytes to a server that reads none", sent)
		}
		app.do(app.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		r.quiet()
	})
	t.Run("many streams", func(t *testing.T) {
		b := newBackend(t, "a")
		r := newRig(t).serve(b.addr)
		c := r.client()
		ctx := withTimeout(t, 60*time.Second)
		var params []*testpb.ResponseParameters
		for range 1000 {
			params = append(params, &testpb.ResponseParameters{Size: 64 << 10})
		}
		for range 20 {
			if _, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: params}); err != nil {
				t.Fatal(err)
			}
		}
		held := func() int64 { return r.snapshot().Services[0].Endpoints[0].HeldBytes }
		eventually(t, "the streams are stuck", func() bool { return held() > 1<<20 })
		time.Sleep(300 * time.Millisecond) // 1.3 GB would pass, if nothing held it
		// 2 MiB for the session, and what one window lets in on top.
		if n := held(); n > 4<<20 {
			t.Errorf("%d bytes are held", n)
		}
		// And the others go on meanwhile.
		other := r.client()
		for range 20 {
			if _, err := call(t, other, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// pour sends DATA as the windows allow until they stay shut, and returns how much it was.
func (p *peer) pour(id uint32) int {
	p.t.Helper()
	var conn, stream atomic.Int64
	conn.Store(65535)
	stream.Store(65535)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for {
			f, err := p.fr.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					conn.Add(int64(f.Increment))
				} else {
					stream.Add(int64(f.Increment))
				}
			case *http2.SettingsFrame:
				if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
					stream.Add(int64(v) - 65535)
				}
			}
		}
	}()
	total, idle := 0, time.Now()
	for time.Since(idle) < 300*time.Millisecond {
		n := min(conn.Load(), stream.Load(), 16384)
		if n <= 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		p.data(id, false, make([]byte, n))
		conn.Add(-n)
		stream.Add(-n)
		total += int(n)
		idle = time.Now()
		if total > 64<<20 {
			p.t.Fatal("64 MiB went nowhere")
		}
	}
	_ = p.conn.SetReadDeadline(time.Now())
	<-stop
	_ = p.conn.SetDeadline(time.Now().Add(20 * time.Second))
	return total
}

// A storm of cancelled RPCs from an honest app trips no bound.
func TestStormOfCancels(t *testing.T) {
	b := newBackend(t, "a")
	b.block = make(chan struct{})
	r := newRig(t).serve(b.addr)
	c := r.client()
	errs := make(chan error)
	const workers, each = 20, 500
	for range workers {
		go func() {
			for range each {
				_, err := call(t, c, time.Millisecond)
				if s := codeOf(err); s != codes.DeadlineExceeded {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Errorf("want only DeadlineExceeded: %v", err)
		}
	}
	close(b.block)
	if _, err := call(t, c, 10*time.Second); err != nil {
		t.Error(err)
	}
	if n := len(r.snapshot().Downstream); n != 1 {
		t.Errorf("%d connections of the app, want the one", n)
	}
	r.quiet()
	down, up := r.s.both(t)
	for side, s := range map[string]h2.Stats{"downstream": down, "upstream": up} {
		if s.ConnectionErrors != 0 || s.Abuse != (h2.Stats{}).Abuse || s.OutputOverflows+s.HeaderFloods+s.Timeouts != 0 {
			t.Errorf("%s: a bound was hit: %+v", side, s)
		}
	}
}
