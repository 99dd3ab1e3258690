// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package listener

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"evenkeel.dev/sidecar/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is what a Handler got.
type seen struct {
	kind  string
	first string
	orig  netip.AddrPort
	ended bool
	// silent: nobody can say yet.
	silent bool
}

type recorder struct{ ch chan seen }

func (r recorder) HTTP2(_ time.Time, c Conn) { r.take("http2", c) }
func (r recorder) Raw(_ time.Time, c Conn)   { r.take("raw", c) }

func (r recorder) take(kind string, c Conn) {
	r.ch <- seen{kind: kind, first: string(c.First), orig: c.Orig, ended: c.Ended, silent: c.Silent}
	c.FD.Close()
}

type rig struct {
	t    *testing.T
	addr string
	loop *loop.Loop
	l    *Listener
	ch   chan seen
}

func newRig(t *testing.T, edit func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, ch: make(chan seen, 64)}
	log := slog.New(slog.DiscardHandler)
	var err error
	if r.loop, err = loop.New(loop.Config{Logger: log}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Logger: log, Loop: r.loop, Handler: recorder{r.ch}, SniffTimeout: 200 * time.Millisecond}
	if edit != nil {
		edit(&cfg)
	}
	if r.l, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := lis.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	r.addr = lis.Addr().String()
	lis.Close()
	if err := r.l.Add(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.l.Close()
		f.Close()
	})
	return r
}

func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

func (r *rig) want(want seen) {
	r.t.Helper()
	select {
	case got := <-r.ch:
		if got != want {
			r.t.Errorf("got %+v, want %+v", got, want)
		}
	case <-time.After(5 * time.Second):
		r.t.Errorf("nothing came, want %+v", want)
	}
}

func (r *rig) stats() (s Stats) {
	ch := make(chan Stats, 1)
	r.loop.Post(func(time.Time) { ch <- r.l.Stats() })
	return <-ch
}

func TestSniff(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces []string
		end    bool
		want   seen
	}{
		{"preface and more", []string{preface + "more"}, false, seen{kind: "http2", first: preface + "more"}},
		{"preface in two", []string{preface[:5], preface[5:]}, false, seen{kind: "http2", first: preface}},
		{"TLS", []string{"\x16\x03\x01"}, false, seen{kind: "raw", first: "\x16\x03\x01"}},
		{"HTTP/1", []string{"GET / HTTP/1.1\r\n"}, false, seen{kind: "raw", first: "GET / HTTP/1.1\r\n"}},
		{"almost a preface", []string{preface[:20], "XXXX"}, false, seen{kind: "raw", first: preface[:20] + "XXXX"}},
		{"HTTP/1 POST begins like PRI", []string{"P", "OST / HTTP/1.1"}, false, seen{kind: "raw", first: "POST / HTTP/1.1"}},
		{"silence", nil, false, seen{kind: "raw", silent: true}},
		{"silence within the preface", []string{preface[:10]}, false, seen{kind: "raw", first: preface[:10], silent: true}},
		{"end at once", nil, true, seen{kind: "raw", ended: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			conn := r.dial()
			for i, p := range c.pieces {
				if i > 0 {
					time.Sleep(20 * time.Millisecond)
				}
				_, _ = io.WriteString(conn, p)
			}
			if c.end {
				_ = conn.CloseWrite()
			}
			r.want(c.want)
			if n := r.stats().Undecided; n != 0 {
				t.Errorf("%d connections are still undecided", n)
			}
		})
	}
}

func TestPrefaceByteByByte(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SniffTimeout = 5 * time.Second })
	conn := r.dial()
	for _, b := range []byte(preface) {
		_, _ = conn.Write([]byte{b})
		time.Sleep(time.Millisecond)
	}
	r.want(seen{kind: "http2", first: preface})
}

func TestOriginalDestination(t *testing.T) {
	none := errors.New("none")
	for _, c := range []struct {
		name string
		addr netip.AddrPort
		err  error
		want netip.AddrPort
		errs uint64
	}{
		{"IPv4", netip.MustParseAddrPort("10.96.0.1:50051"), nil, netip.MustParseAddrPort("10.96.0.1:50051"), 0},
		{"IPv4-mapped", netip.MustParseAddrPort("[::ffff:10.96.0.1]:50051"), nil, netip.MustParseAddrPort("10.96.0.1:50051"), 0},
		{"IPv6", netip.MustParseAddrPort("[fd00::1]:50051"), nil, netip.MustParseAddrPort("[fd00::1]:50051"), 0},
		{"none", netip.AddrPort{}, none, netip.AddrPort{}, 0},
		{"broken", netip.AddrPort{}, errors.New("broken"), netip.AddrPort{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) {
				cfg.OriginalDst = func(int) (netip.AddrPort, error) { return c.addr, c.err }
				cfg.ErrNoOriginalDst = none
			})
			_, _ = io.WriteString(r.dial(), preface)
			r.want(seen{kind: "http2", first: preface, orig: c.want})
			if n := r.stats().LookupErrors; n != c.errs {
				t.Errorf("%d lookup errors, want %d", n, c.errs)
			}
		})
	}
}

func TestResetWhileUndecided(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SniffTimeout = 10 * time.Second })
	conn := r.dial()
	_, _ = io.WriteString(conn, "PRI")
	eventually(t, "it is there", func() bool { return r.stats().Undecided == 1 })
	_ = conn.SetLinger(0)
	conn.Close()
	eventually(t, "it is forgotten", func() bool { return r.stats().Undecided == 0 })
}

func TestTooManyUndecided(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SniffTimeout, c.MaxConns = 10*time.Second, 3 })
	for range 3 {
		r.dial()
	}
	eventually(t, "three are there", func() bool { return r.stats().Undecided == 3 })
	if _, err := r.dial().Read(make([]byte, 1)); err == nil {
		t.Error("the fourth was not closed")
	}
	if n := r.stats().TooMany; n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
}

// Without a descriptor left connections are closed at once; with one, taken again.
func TestNoDescriptorLeft(t *testing.T) {
	r := newRig(t, nil)
	// The clients' own descriptors come first; the kernel completes the
	// connections without the listener's help.
	_, _ = io.WriteString(r.dial(), preface)
	r.want(seen{kind: "http2", first: preface})

	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	// Blocking sockets of our own, so that nothing else opens descriptors meanwhile.
	var socks []int
	for range 4 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		socks = append(socks, fd)
		defer unix.Close(fd)
	}
	low := unix.Rlimit{Cur: uint64(lowestFree(t)), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }()
	addr := netip.MustParseAddrPort(r.addr)
	for _, fd := range socks {
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(fd, make([]byte, 1)); n > 0 || err == unix.EAGAIN {
			t.Errorf("the connection was not closed: %d, %v", n, err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if n := r.stats().NoDescriptor; n < 4 {
		t.Errorf("%d counted, want 4", n)
	}
	_, _ = io.WriteString(r.dial(), preface)
	r.want(seen{kind: "http2", first: preface})
}

// lowestFree is the number that the next descriptor would get. All below it are taken.
func lowestFree(t *testing.T) int {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return fd
}

func TestPauseLeavesConnectionsToTheKernel(t *testing.T) {
	r := newRig(t, nil)
	done := make(chan struct{})
	r.loop.Post(func(time.Time) { r.l.Pause(); close(done) })
	<-done
	_, _ = io.WriteString(r.dial(), preface) // the file of the rig still listens
	select {
	case got := <-r.ch:
		t.Errorf("accepted %+v after Pause", got)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestConfigErrorsComeAllAtOnce(t *testing.T) {
	_, err := New(Config{})
	for _, want := range []string{"Config.Logger", "Config.Loop", "Config.Handler"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	r := newRig(t, nil)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := r.l.Add(f); err == nil {
		t.Error("a file was taken for a listener")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
