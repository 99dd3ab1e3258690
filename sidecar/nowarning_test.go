// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/upstream"
)

// Servers that end without a warning: grace 0, an OOM kill, a lost node.

// reset ends the connection by RST.
func (p *peer) reset() {
	p.t.Helper()
	if err := p.conn.(*net.TCPConn).SetLinger(0); err != nil {
		p.t.Fatal(err)
	}
	p.conn.Close()
}

// doomed has an RPC running on a fake server, beside a good one that is connected.
func doomed(t *testing.T) (app, srv, good *peer, f *fakeServer, l *told, r *rig) {
	t.Helper()
	r, l = tracked(t)
	f = newFakeServer(t)
	g := newFakeServer(t)
	r.set(ep(f.addr, "doomed", balancer.Ready))
	app = r.app()
	app.request(1, true)
	srv = f.accept()
	srv.want("the request", "HEADERS 1 end…")
	r.set(ep(f.addr, "doomed", balancer.Ready), ep(g.addr, "good", balancer.Ready))
	good = g.accept()
	l.want(t, "connected", g.addr, "good", "connected")
	return app, srv, good, f, l, r
}

// allGoTo makes RPCs, of which each must reach the peer.
func (p *peer) allGoTo(good *peer, from uint32) {
	p.t.Helper()
	for i := range uint32(20) {
		p.request(from+2*i, true)
		good.want("picking leaves what is lost at once", fmt.Sprintf("HEADERS %d end…", 1+2*i))
		good.headers(1+2*i, true, grpcOK...)
		p.want("answered", fmt.Sprintf("HEADERS %d end…", from+2*i))
	}
}

func TestServerIsLost(t *testing.T) {
	const lost = " grpc-status=14 grpc-message=evenkeel: lost the connection to 127.0.0.1:…"
	ends := map[string]func(p *peer){"RST": (*peer).reset, "FIN": func(p *peer) { p.conn.Close() }}
	for name, end := range ends {
		t.Run(name+" before the response", func(t *testing.T) {
			app, srv, good, f, l, r := doomed(t)
			f.lis.Close()
			end(srv)
			app.want("a server may have begun it", "HEADERS 1 end"+grpcHeaders+lost)
			app.allGoTo(good, 3)
			l.want(t, "the control plane hears of it", f.addr, "doomed", "connected failing failed=1")
			r.quiet()
		})
		t.Run(name+" after the response's headers", func(t *testing.T) {
			app, srv, good, f, l, r := doomed(t)
			srv.response(1)
			app.want("headers", "HEADERS 1"+grpcHeaders)
			f.lis.Close()
			end(srv)
			app.want("the reason comes as trailers", "HEADERS 1 end"+lost)
			app.allGoTo(good, 3)
			l.want(t, "the control plane hears of it", f.addr, "doomed", "connected failing failed=1")
			r.quiet()
		})
		t.Run(name+" of an idle session", func(t *testing.T) {
			app, srv, good, f, l, r := doomed(t)
			srv.headers(1, true, grpcOK...)
			app.want("answered", "HEADERS 1 end…")
			f.lis.Close()
			end(srv)
			l.want(t, "nobody failed", f.addr, "doomed", "connected failing")
			app.allGoTo(good, 3)
			r.quiet()
		})
		t.Run(name+" of an idle session, and it is back at once", func(t *testing.T) {
			app, srv, _, f, l, r := doomed(t)
			srv.headers(1, true, grpcOK...)
			app.want("answered", "HEADERS 1 end…")
			end(srv)
			f.accept()
			l.want(t, "a session that is made again is no failure", f.addr, "doomed", "connected")
			eventually(t, "picked again", func() bool {
				for _, e := range r.snapshot().Services[0].Endpoints {
					if e.Connectivity != "connected" {
						return false
					}
				}
				return true
			})
		})
	}
	t.Run("refused from the first on", func(t *testing.T) {
		r, l := tracked(t)
		b, dead := newBackend(t, "good"), deadAddr(t).String()
		r.set(ep(b.addr, "good", balancer.Ready), ep(dead, "dead", balancer.Ready))
		c := r.client()
		for range 50 {
			if _, err := call(t, c, 10*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		l.want(t, "no RPC failed", dead, "dead", "failed failing")
		r.quiet()
	})
	t.Run("with requests that had not left", func(t *testing.T) {
		r, l := tracked(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 }))
		f, g := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1}), newFakeServer(t)
		r.set(ep(f.addr, "doomed", balancer.Ready))
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the first", "HEADERS 1 end…")
		app.request(3, true)
		eventually(t, "one waits", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 1 })
		r.set(ep(f.addr, "doomed", balancer.Ready), ep(g.addr, "good", balancer.Ready))
		good := g.accept()
		l.want(t, "connected", g.addr, "good", "connected")
		f.lis.Close()
		srv.reset()
		app.want("the one that was sent", "HEADERS 1 end"+grpcHeaders+lost)
		good.want("the one that was not goes elsewhere", "HEADERS 1 end…")
		good.headers(1, true, grpcOK...)
		app.want("and the app notices nothing", "HEADERS 3 end"+grpcHeaders+" grpc-status=0")
		l.want(t, "one failed", f.addr, "doomed", "connected failing failed=1")
		r.quiet()
	})
}

// A node that loses its power says nothing. Its RPCs end, new ones leave it and the
// control plane hears of it, all within 10 s.
func TestNodeIsLost(t *testing.T) {
	t.Parallel()
	app, srv, good, f, l, _ := doomed(t)
	srv.vanish()
	begin := time.Now()
	app.want("a stream that only waits", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: lost the connection to …")
	app.allGoTo(good, 3)
	// Its address answers nothing: here a listener that nobody accepts from.
	l.want(t, "connecting anew hangs, which is a failure", f.addr, "doomed", "connected failing failed=1")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
}

// TestHelperServer is a server in a process of its own, for TestServerIsKilled.
func TestHelperServer(t *testing.T) {
	if os.Getenv("EVENKEEL_TEST_SERVER") == "" {
		return // a part of TestServerIsKilled
	}
	fmt.Println("serves", newBackend(t, "killed").addr)
	select {}
}

func TestServerIsKilled(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperServer$")
	cmd.Env = append(os.Environ(), "EVENKEEL_TEST_SERVER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for sc := bufio.NewScanner(out); addr == "" && sc.Scan(); {
		if a, ok := strings.CutPrefix(sc.Text(), "serves "); ok {
			addr = a
		}
	}
	good := newBackend(t, "good")
	r, l := tracked(t)
	r.set(ep(addr, "killed", balancer.Ready), ep(good.addr, "good", balancer.Ready))
	const width = 8
	var failed, onKilled atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range width {
		c := r.client()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				name, err := call(t, c, 10*time.Second)
				switch {
				case err == nil && name == "killed":
					onKilled.Add(1)
				case err != nil:
					failed.Add(1)
					wantStatus(t, err, codes.Unavailable, "evenkeel: lost the connection to "+addr)
				}
			}
		})
	}
	eventually(t, "it serves", func() bool { return onKilled.Load() > 100 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the control plane hears of it", func() bool {
		e, _ := l.endpoint(testService, addr, "killed")
		return e.Failing && e.Failed == uint64(failed.Load())
	})
	at := failed.Load()
	if at > width {
		t.Errorf("%d RPCs failed, of at most %d that were in flight", at, width)
	}
	before := good.calls.Load()
	eventually(t, "the load goes on", func() bool { return good.calls.Load() > before+200 })
	close(stop)
	wg.Wait()
	if n := failed.Load(); n != at {
		t.Errorf("%d more failed later", n-at)
	}
	r.quiet()
}
