// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"evenkeel.dev/sidecar/router"
)

// starved is an app that dialled addr, which is testService's, and had no CPU until after the listener's patience.
func starved(t *testing.T, addr string, endpoints ...string) (*rig, *net.TCPConn) {
	t.Helper()
	r := newRig(t).to(addr).serve(endpoints...)
	r.s.Routes(router.NewTable(map[router.Key]router.Destination{
		{Addr: netip.MustParseAddrPort(addr)}: {Kind: router.Service, Service: testService},
		{Name: "pricing.shop:50051"}:          {Kind: router.Service, Service: testService},
	}))
	return r, r.tcp()
}

func (r *rig) lateHTTP2() (n uint64) {
	r.t.Helper()
	if err := r.s.inLoop(nil, func(time.Time) { n = r.s.stats.LateHTTP2 }); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// whole checks that the connection is HTTP/2, and balanced.
func whole(t *testing.T, r *rig, c net.Conn, f *fakeServer) {
	t.Helper()
	app := newPeer(t, c)
	app.do(app.fr.WriteSettings())
	app.do(app.fr.WriteSettingsAck())
	for _, id := range []uint32{1, 3} {
		app.request(id, true)
	}
	srv := f.accept()
	for _, id := range []uint32{1, 3} {
		srv.want("to the service's endpoint, not to where the app connected", "HEADERS …")
		srv.headers(id, true, grpcOK...)
		app.want("answered", "HEADERS …")
	}
	if n := r.lateHTTP2(); n != 1 {
		t.Errorf("counted %d", n)
	}
	eventually(t, "not relayed as bytes", func() bool { return len(r.snapshot().RawConns) == 0 })
	r.quiet()
}

// Nothing that speaks HTTP/2 is pinned by a hiccup: not by one of the app either.
func TestLateHTTP2(t *testing.T) {
	settings := bytes.NewBuffer(nil)
	if err := http2.NewFramer(settings, nil).WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16384}); err != nil {
		t.Fatal(err)
	}
	t.Run("the server waits for the app", func(t *testing.T) {
		t.Parallel()
		said := make(chan string, 1)
		addr := tcpServer(t, func(c *net.TCPConn) { b, _ := io.ReadAll(c); said <- string(b) })
		f := newFakeServer(t)
		r, c := starved(t, addr, f.addr)
		time.Sleep(1200 * time.Millisecond)
		for _, b := range []byte(http2.ClientPreface) { // still short of CPU
			_, _ = c.Write([]byte{b})
			time.Sleep(time.Millisecond)
		}
		whole(t, r, c, f)
		if s := <-said; s != "" {
			t.Errorf("the server that was not needed got %q", s)
		}
	})
	t.Run("the server sends its SETTINGS at once", func(t *testing.T) {
		t.Parallel()
		addr := tcpServer(t, func(c *net.TCPConn) {
			for _, b := range settings.Bytes() {
				_, _ = c.Write([]byte{b})
				time.Sleep(time.Millisecond)
			}
			_, _ = io.ReadAll(c)
		})
		f := newFakeServer(t)
		r, c := starved(t, addr, f.addr)
		eventually(t, "known by the server's word", func() bool { return r.lateHTTP2() == 1 })
		_, _ = io.WriteString(c, http2.ClientPreface)
		whole(t, r, c, f)
	})
	t.Run("half of the preface came in time", func(t *testing.T) {
		t.Parallel()
		addr := newBackend(t, "grpc-go").addr
		f := newFakeServer(t)
		r, c := starved(t, addr, f.addr)
		_, _ = io.WriteString(c, http2.ClientPreface[:10])
		eventually(t, "known by the server's word", func() bool { return r.lateHTTP2() == 1 })
		_, _ = io.WriteString(c, http2.ClientPreface[10:])
		whole(t, r, c, f)
	})
	t.Run("without a destination", func(t *testing.T) {
		t.Parallel()
		f := newFakeServer(t)
		r, c := starved(t, newBackend(t, "nobody").addr, f.addr)
		c.Close()
		r.orig.Store(nil)
		c = r.tcp()
		time.Sleep(1200 * time.Millisecond)
		_, _ = io.WriteString(c, http2.ClientPreface)
		whole(t, r, c, f)
	})
}

// A server that speaks first, and not HTTP/2, nor does the app.
func TestLateAndNotHTTP2(t *testing.T) {
	for name, greeting := range map[string]string{
		"text": "220 hello", "almost SETTINGS": "\x00\x00\x0c\x04\x00\x00\x00\x00\x01", "of a length that is none": "\x00\x00\x0d\x04\x00",
		"another frame": "\x00\x00\x0c\x06\x00", "a longer one": "\x00\x41\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := tcpServer(t, func(c *net.TCPConn) {
				for _, b := range []byte(greeting) {
					_, _ = c.Write([]byte{b})
					time.Sleep(time.Millisecond)
				}
				_, _ = io.Copy(c, c)
			})
			r, c := starved(t, addr)
			_, _ = io.WriteString(c, "PRI") // and then something else
			got := make([]byte, len(greeting)+3)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != greeting+"PRI" {
				t.Fatalf("got %q, %v", got, err)
			}
			_, _ = io.WriteString(c, "VATE")
			_ = c.CloseWrite()
			if b, err := io.ReadAll(c); err != nil || string(b) != "VATE" {
				t.Errorf("got %q, %v", b, err)
			}
			if n := r.lateHTTP2(); n != 0 {
				t.Errorf("%d counted as HTTP/2", n)
			}
			eventually(t, "nothing is left", func() bool { return len(r.snapshot().RawConns) == 0 })
		})
	}
	t.Run("neither speaks, the app goes", func(t *testing.T) {
		t.Parallel()
		ended := make(chan error, 1)
		addr := tcpServer(t, func(c *net.TCPConn) { _, err := io.ReadAll(c); ended <- err })
		r, c := starved(t, addr)
		eventually(t, "it waits", func() bool { return len(r.snapshot().RawConns) == 1 })
		c.Close()
		if err := <-ended; err != nil {
			t.Errorf("the server sees %v, want the end", err)
		}
		eventually(t, "nothing is left", func() bool { return len(r.snapshot().RawConns) == 0 })
	})
	t.Run("the app speaks at last", func(t *testing.T) {
		t.Parallel()
		addr := tcpServer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
		_, c := starved(t, addr)
		time.Sleep(1200 * time.Millisecond)
		_, _ = io.WriteString(c, "GET /")
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); err != nil || string(b) != "GET /" {
			t.Errorf("got %q, %v", b, err)
		}
	})
}
