// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watcher writes down what an Observer hears.
type watcher struct{ ch chan string }

func (w watcher) Connected(time.Time)    { w.ch <- "connected" }
func (w watcher) Disconnected(time.Time) { w.ch <- "disconnected" }
func (w watcher) Slow(time.Time)         { w.ch <- "slow" }
func (w watcher) Failing(now, retry time.Time, err error) {
	w.ch <- "failing: " + err.Error()
}

// waiter is a Waiter and the stream's handler.
type waiter struct{ ch chan error }

func (w waiter) StreamReady(time.Time, *h2.Stream) { w.ch <- nil }

func (w waiter) StreamRefused(_ time.Time, err error)                                  { w.ch <- err }
func (w waiter) HeadersReceived(*h2.Stream, h2.HeadersKind, []hpack.HeaderField, bool) {}
func (w waiter) DataReceived(*h2.Stream, []byte, bool)                                 {}
func (w waiter) DataSent(*h2.Stream, int)                                              {}
func (w waiter) Closed(*h2.Stream, h2.StreamEnd)                                       {}

type rig struct {
	t    *testing.T
	loop *loop.Loop
	ps   *Pools
	pool *Pool
	ch   chan string
}

func newRig(t *testing.T, addr string, edit func(*Config)) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	l, err := loop.New(loop.Config{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Logger: log, Loop: l, Rand: rand.New(rand.NewPCG(1, 1)), H2: h2.Config{Pool: &h2.Pool{}, Stats: &h2.Stats{}}}
	if edit != nil {
		edit(&cfg)
	}
	r := &rig{t: t, loop: l, ch: make(chan string, 100)}
	if r.ps, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.pool = r.ps.Pool(netip.MustParseAddrPort(addr), watcher{r.ch})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) in(f func(now time.Time)) {
	r.t.Helper()
	done := make(chan struct{})
	r.loop.Post(func(now time.Time) { f(now); close(done) })
	<-done
}

func (r *rig) want(prefix string) {
	r.t.Helper()
	select {
	case got := <-r.ch:
		if !strings.HasPrefix(got, prefix) {
			r.t.Fatalf("got %q, want %q", got, prefix)
		}
	case <-time.After(5 * time.Second):
		r.t.Fatalf("nothing came, want %q", prefix)
	}
}

func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	return lis.(*net.TCPListener)
}

func accept(t *testing.T, lis *net.TCPListener) (net.Conn, *http2.Framer) {
	t.Helper()
	_ = lis.SetDeadline(time.Now().Add(5 * time.Second))
	conn, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	return conn, http2.NewFramer(conn, conn)
}

func TestBackoffGrowsAndIsJittered(t *testing.T) {
	r := newRig(t, "127.0.0.1:1", nil)
	r.in(func(time.Time) {
		base := 100 * time.Millisecond
		for n := 1; n < 40; n++ {
			r.pool.failures = n
			low, high := time.Hour, time.Duration(0)
			for range 200 {
				d := r.pool.backoff()
				low, high = min(low, d), max(high, d)
			}
			if low < base*8/10 || high > base*12/10+time.Nanosecond || high-low < base/5 {
				t.Errorf("failure %d: %s to %s, want %s ± 20 %%", n, low, high, base)
			}
			base = min(base*16/10, 10*time.Second)
		}
		r.pool.failures = 0
	})
}

func TestWarmPoolKeepsTrying(t *testing.T) {
	lis := listen(t)
	addr := lis.Addr().String()
	lis.Close()
	r := newRig(t, addr, func(c *Config) { c.BackoffMin, c.BackoffMax = time.Millisecond, 5*time.Millisecond })
	r.in(func(now time.Time) { r.pool.Warm(now) })
	for range 3 {
		r.want("failing: dial " + addr + ": connection refused")
	}
	again, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	_, fr := accept(t, again.(*net.TCPListener))
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for {
		if got := <-r.ch; got == "connected" {
			break
		}
	}
	r.in(func(time.Time) {
		if c, err := r.pool.Connectivity(), r.pool.LastError(); c != Connected || err != nil {
			t.Errorf("%s, %v", c, err)
		}
	})
}

func TestGoAwayDialsTheNext(t *testing.T) {
	lis := listen(t)
	r := newRig(t, lis.Addr().String(), func(c *Config) { c.BackoffMin = time.Millisecond })
	r.in(func(now time.Time) { r.pool.Warm(now) })
	for range 3 {
		_, fr := accept(t, lis)
		if err := fr.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		r.want("connected")
		if err := fr.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
			t.Fatal(err)
		}
		r.want("disconnected")
	}
}

func TestRenewDialsTheNewServerAtOnce(t *testing.T) {
	lis := listen(t)
	r := newRig(t, lis.Addr().String(), func(c *Config) { c.BackoffMin, c.BackoffMax = time.Hour, time.Hour })
	r.in(func(now time.Time) { r.pool.Warm(now) })
	conn, fr := accept(t, lis)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	r.want("connected")
	r.in(func(now time.Time) { r.pool.Renew(now) })
	r.want("disconnected")
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("the old session ended without GOAWAY: %v", err)
		}
		if _, is := f.(*http2.GoAwayFrame); is {
			break
		}
	}
	// One that is still opening is given up too, without blame.
	half, _ := accept(t, lis)
	r.in(func(now time.Time) { r.pool.Renew(now) })
	_ = half.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, half); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the attempt to reach the old server goes on: %v", err)
	}
	_, fr = accept(t, lis)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	r.want("connected")
	r.in(func(time.Time) {
		if n, err := r.pool.Sessions(), r.pool.LastError(); n != 1 || err != nil {
			t.Errorf("%d sessions, %v", n, err)
		}
	})
}

func TestSilentServerIsSlowThenFailing(t *testing.T) {
	lis := listen(t)
	r := newRig(t, lis.Addr().String(), func(c *Config) {
		c.SlowConnect, c.ConnectTimeout = 20*time.Millisecond, 100*time.Millisecond
	})
	w := waiter{make(chan error, 1)}
	var ticket Ticket
	r.in(func(now time.Time) {
		if st, err := r.pool.Open(now, w, &ticket, w); st != nil || err != nil {
			t.Errorf("got %v, %v, want to wait", st, err)
		}
	})
	accept(t, lis) // and says nothing
	r.want("slow")
	r.want("failing: dial " + lis.Addr().String() + ": no HTTP/2 SETTINGS in 100ms")
	if err := <-w.ch; err == nil {
		t.Error("a stream on a session without SETTINGS")
	}
}

func TestEvictAndClose(t *testing.T) {
	lis := listen(t)
	r := newRig(t, lis.Addr().String(), nil)
	w := waiter{make(chan error, 3)}
	var a, b, c Ticket
	r.in(func(now time.Time) {
		for _, tk := range []*Ticket{&a, &b} {
			if _, err := r.pool.Open(now, w, tk, w); err != nil {
				t.Error(err)
			}
		}
		a.Cancel()
		a.Cancel()
		r.pool.Evict(now)
	})
	if err := <-w.ch; !errors.Is(err, ErrSlow) {
		t.Errorf("got %v, want ErrSlow", err)
	}
	r.in(func(now time.Time) {
		if _, err := r.pool.Open(now, w, &c, w); err != nil {
			t.Error(err)
		}
		r.pool.Close(now)
		if _, err := r.pool.Open(now, w, &a, w); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
	if err := <-w.ch; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if len(w.ch) > 0 {
		t.Error("a cancelled ticket was served")
	}
	r.in(func(time.Time) {
		if s := r.ps.Stats(); s.Sessions != 0 || s.Queued != 0 {
			t.Errorf("left behind: %+v", s)
		}
	})
}

func TestColdPoolClosesItsIdleSession(t *testing.T) {
	lis := listen(t)
	r := newRig(t, lis.Addr().String(), func(c *Config) { c.IdleTimeout = 10 * time.Millisecond })
	r.in(func(now time.Time) { r.pool.Warm(now) })
	conn, fr := accept(t, lis)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	r.want("connected")
	r.in(func(time.Time) { r.pool.Cool() })
	r.want("disconnected")
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	sawGoAway := false
	for {
		f, err := fr.ReadFrame()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, is := f.(*http2.GoAwayFrame)
		sawGoAway = sawGoAway || is
	}
	if !sawGoAway {
		t.Error("closed without GOAWAY")
	}
}
