// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// These tests put two sessions, joined by the benchmarks' relay, between
// x/net's client and x/net's server: what arrives must be what was sent.

// relayConn drives a relay over two connections by a lock in place of a loop.
type relayConn struct {
	mu       sync.Mutex
	down, up *Session
	downConn net.Conn
	upConn   net.Conn
	mini     *joinSession
}

// joinSession relays every stream, with its resets.
type joinSession struct{ c *relayConn }

type join struct{ down, up *Stream }

func (j *joinSession) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	r := &join{down: st}
	up, err := j.c.up.Open((*joinUp)(r))
	if err != nil {
		st.Reset(http2.ErrCodeRefusedStream)
		return
	}
	r.up = up
	st.SetHandler((*joinDown)(r))
	up.WriteHeaders(f, end)
}

func (j *joinSession) HeadersTooLarge(st *Stream, f []hpack.HeaderField) {
	st.WriteHeaders(fieldsOf(":status", "431"), true)
}
func (j *joinSession) SettingsReceived()                            {}
func (j *joinSession) GoAwayReceived(uint32, http2.ErrCode, []byte) {}
func (j *joinSession) CapacityFreed()                               {}
func (j *joinSession) PongReceived(time.Duration)                   {}
func (j *joinSession) OutputReady()                                 {}

type joinDown join

func (r *joinDown) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	if r.up != nil {
		r.up.WriteHeaders(f, end)
	}
}

func (r *joinDown) DataReceived(st *Stream, p []byte, end bool) {
	if r.up == nil {
		st.Consumed(len(p))
		return
	}
	r.up.WriteData(p, end)
}

func (r *joinDown) DataSent(st *Stream, n int) {
	if r.up != nil {
		r.up.Consumed(n)
	}
}

func (r *joinDown) Closed(st *Stream, end StreamEnd) {
	r.down = nil
	if up := r.up; up != nil && end.Kind != Complete {
		up.Reset(http2.ErrCodeCancel)
	}
}

type joinUp join

func (r *joinUp) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	if r.down != nil {
		r.down.WriteHeaders(f, end)
	}
}

func (r *joinUp) DataReceived(st *Stream, p []byte, end bool) {
	if r.down != nil {
		r.down.WriteData(p, end)
	}
}

func (r *joinUp) DataSent(st *Stream, n int) {
	if r.down != nil {
		r.down.Consumed(n)
	}
}

func (r *joinUp) Closed(st *Stream, end StreamEnd) {
	r.up = nil
	down := r.down
	switch {
	case down == nil:
	case end.Kind != Complete:
		down.Reset(end.Code)
	case !down.RecvClosed():
		down.Reset(http2.ErrCodeNo)
	}
}

func newRelayConn(downConn, upConn net.Conn, cfg *Config) *relayConn {
	c := &relayConn{downConn: downConn, upConn: upConn}
	c.mini = &joinSession{c}
	c.down = New(Server, cfg, c.mini, time.Now())
	c.up = New(Client, cfg, c.mini, time.Now())
	return c
}

// run relays until either connection ends.
func (c *relayConn) run(wg *sync.WaitGroup) {
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	done := make(chan struct{})
	var once sync.Once
	finish := func() { once.Do(func() { close(done) }) }
	reader := func(s *Session, conn net.Conn) {
		defer wg.Done()
		defer finish()
		buf := make([]byte, 7000)
		for {
			n, err := conn.Read(buf)
			c.mu.Lock()
			if err == nil {
				err = s.Receive(time.Now(), buf[:n])
			} else {
				s.Abort(err)
			}
			c.mu.Unlock()
			poke()
			if err != nil {
				return
			}
		}
	}
	wg.Add(3)
	go reader(c.down, c.downConn)
	go reader(c.up, c.upConn)
	go func() {
		defer wg.Done()
		defer c.downConn.Close()
		defer c.upConn.Close()
		for {
			for _, side := range []struct {
				s    *Session
				conn net.Conn
			}{{c.down, c.downConn}, {c.up, c.upConn}} {
				for {
					c.mu.Lock()
					out := bytes.Clone(side.s.Output())
					c.mu.Unlock()
					if len(out) == 0 {
						break
					}
					n, err := side.conn.Write(out)
					c.mu.Lock()
					side.s.Wrote(time.Now(), n)
					c.mu.Unlock()
					if err != nil {
						finish()
						return
					}
				}
			}
			select {
			case <-wake:
			case <-done:
				return
			}
		}
	}()
	poke()
}

// newInterop returns net/http's client, each of whose connections leads through
// two sessions to net/http's server.
func newInterop(t *testing.T, cfg *Config, h http.Handler) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 50}}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(ln) })
	tr := &http.Transport{Protocols: &protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		conn, far := tcpPipe(t)
		up, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		newRelayConn(far, up, cfg).run(&wg)
		return conn, nil
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		wg.Wait()
	})
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

func tcpPipe(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestInterop(t *testing.T) {
	h := http.NewServeMux()
	h.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		for k, v := range r.Header {
			if strings.HasPrefix(k, "X-") {
				w.Header()[k] = v
			}
		}
		sum := sha256.New()
		buf := make([]byte, 10000)
		for {
			n, err := r.Body.Read(buf)
			sum.Write(buf[:n])
			_, _ = w.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
	})
	h.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot) // the request's body is not read
	})
	h.HandleFunc("/hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "a")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	})
	h.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("some"))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	h.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })

	for name, cfg := range map[string]*Config{
		"defaults": nil,
		"small":    {StreamWindow: 3000, ConnWindow: 1, SessionBuffer: 5000, OutputLimit: 1000, DecoderTableSize: -1, EncoderTableSize: 200},
	} {
		t.Run(name, func(t *testing.T) {
			client := newInterop(t, cfg, h)
			t.Run("bodies", func(t *testing.T) {
				var wg sync.WaitGroup
				for i := range 30 {
					wg.Go(func() {
						for j := range 4 {
							body := bytes.Repeat([]byte{byte(i)}, i*j*3000)
							big := strings.Repeat("h", i*j*200)
							req, _ := http.NewRequest("POST", "http://test/echo", bytes.NewReader(body))
							req.Header.Set("X-Big", big)
							req.Header.Set("X-Id", fmt.Sprint(i, j))
							resp, err := client.Do(req)
							if err != nil {
								t.Error(err)
								return
							}
							got, err := io.ReadAll(resp.Body)
							resp.Body.Close()
							sum := fmt.Sprintf("%x", sha256.Sum256(body))
							if err != nil || !bytes.Equal(got, body) || resp.Trailer.Get("X-Sum") != sum || resp.Header.Get("X-Big") != big {
								t.Errorf("%d %d: %v, %d bytes of %d, trailer %q", i, j, err, len(got), len(body), resp.Trailer)
							}
						}
					})
				}
				wg.Wait()
			})
			t.Run("an answer before the request's end", func(t *testing.T) {
				r, w := io.Pipe()
				defer func() { _ = w.Close() }()
				resp, err := client.Post("http://test/early", "a/b", r)
				if err != nil || resp.StatusCode != http.StatusTeapot {
					t.Fatal(resp, err)
				}
				resp.Body.Close()
			})
			t.Run("1xx", func(t *testing.T) {
				resp, err := client.Get("http://test/hints")
				if err != nil || resp.StatusCode != 200 {
					t.Fatal(resp, err)
				}
				resp.Body.Close()
			})
			t.Run("a reset within the response", func(t *testing.T) {
				resp, err := client.Get("http://test/abort")
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				// net/http's error type has the name and the fields of x/net's.
				if string(b) != "some" || err == nil || !strings.Contains(err.Error(), "INTERNAL_ERROR") {
					t.Fatalf("%q, %v", b, err)
				}
			})
			t.Run("cancelled requests", func(t *testing.T) {
				for range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
					req, _ := http.NewRequestWithContext(ctx, "GET", "http://test/wait", nil)
					if resp, err := client.Do(req); err == nil {
						resp.Body.Close()
						t.Error("an answer")
					}
					cancel()
				}
				resp, err := client.Get("http://test/hints")
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			})
		})
	}
}
