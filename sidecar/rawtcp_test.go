// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// to makes the Sidecar believe that the app dialled addr.
func (r *rig) to(addr string) *rig {
	a := netip.MustParseAddrPort(addr)
	r.orig.Store(&a)
	return r
}

func (r *rig) tcp() *net.TCPConn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn.(*net.TCPConn)
}

// tcpServer serves each connection by f, then closes it.
func tcpServer(t *testing.T, f func(c *net.TCPConn)) string {
	lis := listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			go func() { defer c.Close(); f(c.(*net.TCPConn)) }()
		}
	}()
	t.Cleanup(func() { lis.Close(); <-done })
	return lis.Addr().String()
}

func TestRawHTTP1(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %d", req.URL.Path, len(body))
	}))
	t.Cleanup(srv.Close)
	r := newRig(t).to(srv.Listener.Addr().String())
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	for _, n := range []int{0, 1, 100_000} {
		resp, err := (&http.Client{Transport: tr}).Post("http://"+r.addr+"/path", "text/plain", strings.NewReader(strings.Repeat("x", n)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := fmt.Sprintf("/path %d", n); string(body) != want {
			t.Errorf("got %q, want %q", body, want)
		}
	}
}

func TestRawTLSWithGRPCInside(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS() // for its certificate
	t.Cleanup(web.Close)
	b := newBackend(t, "tls", grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
	r := newRig(t).to(b.addr)
	cc, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	out, err := testpb.NewTestServiceClient(cc).UnaryCall(withTimeout(t, 10*time.Second), &testpb.SimpleRequest{})
	if err != nil || out.GetServerId() != "tls" {
		t.Errorf("got %v, %v", out, err)
	}
}

func TestRawServerSpeaksFirst(t *testing.T) {
	addr := tcpServer(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "220 hello\r\n")
		_, _ = io.Copy(c, c)
	})
	c := newRig(t).to(addr).tcp()
	begin := time.Now()
	buf := make([]byte, 11)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "220 hello\r\n" {
		t.Fatalf("got %q, %v", buf, err)
	}
	if d := time.Since(begin); d < 900*time.Millisecond || d > 5*time.Second {
		t.Errorf("decided after %s, want about 1 s", d)
	}
	_, _ = io.WriteString(c, "QUIT")
	if _, err := io.ReadFull(c, buf[:4]); err != nil || string(buf[:4]) != "QUIT" {
		t.Errorf("got %q, %v", buf[:4], err)
	}
}

// A prefix of the preface that then turns out to be something else is passed on whole.
func TestRawPartOfThePreface(t *testing.T) {
	addr := tcpServer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	for _, first := range []string{"PRI * HT", "P", "PRI * HTTP/2.0\r\n\r\nXX"} {
		c := newRig(t).to(addr).tcp()
		for _, b := range []byte(first) {
			_, _ = c.Write([]byte{b})
		}
		_, _ = io.WriteString(c, "!rest")
		got := make([]byte, len(first)+5)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != first+"!rest" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func TestRawHalfClose(t *testing.T) {
	t.Run("by the app", func(t *testing.T) {
		addr := tcpServer(t, func(c *net.TCPConn) {
			b, _ := io.ReadAll(c)
			fmt.Fprintf(c, "got %d", len(b))
		})
		c := newRig(t).to(addr).tcp()
		_, _ = io.WriteString(c, "hello")
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); err != nil || string(b) != "got 5" {
			t.Errorf("got %q, %v", b, err)
		}
	})
	t.Run("by the app, with its first bytes", func(t *testing.T) {
		addr := tcpServer(t, func(c *net.TCPConn) {
			b, _ := io.ReadAll(c)
			fmt.Fprintf(c, "got %d", len(b))
		})
		c := newRig(t).to(addr).tcp()
		_ = c.CloseWrite()
		if b, err := io.ReadAll(c); err != nil || string(b) != "got 0" {
			t.Errorf("got %q, %v", b, err)
		}
	})
	t.Run("by the server", func(t *testing.T) {
		got := make(chan int, 1)
		addr := tcpServer(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "bye")
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			got <- len(b)
		})
		c := newRig(t).to(addr).tcp()
		_, _ = io.WriteString(c, "hello")
		if b, err := io.ReadAll(c); err != nil || string(b) != "bye" {
			t.Errorf("got %q, %v", b, err)
		}
		_, _ = io.WriteString(c, " again")
		_ = c.CloseWrite()
		if n := <-got; n != 11 {
			t.Errorf("the server got %d bytes, want 11", n)
		}
	})
}

func TestRawResetIsPassedOn(t *testing.T) {
	addr := tcpServer(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_ = c.SetLinger(0)
	})
	c := newRig(t).to(addr).tcp()
	_, _ = io.WriteString(c, "hello")
	if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestRawUnreachable(t *testing.T) {
	lis := listen(t)
	lis.Close()
	c := newRig(t).to(lis.Addr().String()).tcp()
	_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(c); len(b) > 0 || err == nil {
		t.Errorf("got %q, %v, want a reset", b, err)
	}
}

func TestRawWithoutDestination(t *testing.T) {
	r := newRig(t)
	r.orig.Store(nil)
	c := r.tcp()
	_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	if b, _ := io.ReadAll(c); len(b) > 0 {
		t.Errorf("got %q", b)
	}
	eventually(t, "nothing is left", func() bool { return len(r.snapshot().RawConns) == 0 })
}

// Both directions at once, far beyond every buffer, byte for byte.
func TestRawBulk(t *testing.T) {
	const n = 32 << 20
	addr := tcpServer(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() })
	c := newRig(t).to(addr).tcp()
	src := rand.NewChaCha8([32]byte{1})
	sent := sha256.New()
	go func() {
		_, _ = c.Write([]byte{0x16}) // as TLS begins
		sent.Write([]byte{0x16})
		_, _ = io.CopyN(io.MultiWriter(c, sent), src, n)
		_ = c.CloseWrite()
	}()
	got := sha256.New()
	m, err := io.Copy(got, c)
	if err != nil || m != n+1 {
		t.Fatalf("got %d bytes, %v", m, err)
	}
	if !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Error("the bytes differ")
	}
}

// A side that does not read stops the other side; the Sidecar does not buffer.
func TestRawBackPressure(t *testing.T) {
	release := make(chan struct{})
	addr := tcpServer(t, func(c *net.TCPConn) { <-release; _, _ = io.Copy(io.Discard, c) })
	r := newRig(t).to(addr)
	c := r.tcp()
	_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
	chunk := bytes.Repeat([]byte{0x16}, 1<<20)
	total := 0
	for {
		n, err := c.Write(chunk)
		total += n
		if err != nil {
			break
		}
		if total > 256<<20 {
			t.Fatal("256 MiB went nowhere")
		}
	}
	var pending int
	_ = r.s.inLoop(nil, func(time.Time) {
		for raw := range r.s.raws {
			pending += len(raw.server.pending)
		}
	})
	if pending > 64<<10 {
		t.Errorf("%d bytes are kept, want at most one buffer", pending)
	}
	close(release)
	_ = c.CloseWrite()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
}
