// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/h2"
)

// Hostile peers, through the whole relay. What each frame does to a session is tested in h2; here it is
// that the other side, other connections and the process's memory are well meanwhile.

// mostMemory that a hostile peer may make the process take.
const mostMemory = 64 << 20

// watchMemory fails the test when more than mostMemory was resident beyond what was
// at the begin.
func watchMemory(t *testing.T) {
	t.Helper()
	if raceEnabled {
		return // it has its own memory
	}
	_, before := memory(t)
	stop := make(chan struct{})
	peak := make(chan int64)
	go func() {
		var most int64
		for {
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(2 * time.Millisecond):
				most = max(most, residentBytes(t))
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if grew := <-peak - before; grew > mostMemory {
			t.Errorf("%d MiB of memory", grew>>20)
		} else {
			t.Logf("%d MiB of memory", max(grew, 0)>>20)
		}
	})
}

// both are the counters of the sessions of either side.
func (s *Sidecar) both(t testing.TB) (down, up h2.Stats) {
	t.Helper()
	if err := s.inLoop(nil, func(time.Time) { down, up = *s.h2Down.Stats, *s.h2Up.Stats }); err != nil {
		t.Fatal(err)
	}
	return down, up
}

func abused(a h2.Abuse) func(*h2.Stats) uint64 { return func(s *h2.Stats) uint64 { return s.Abuse[a] } }

func headerFloods(s *h2.Stats) uint64 { return s.HeaderFloods }

// flooder writes frames in large pieces.
type flooder struct {
	buf  bytes.Buffer
	fr   *http2.Framer
	enc  *hpack.Encoder
	hbuf bytes.Buffer
}

func newFlooder() *flooder {
	f := &flooder{}
	f.fr = http2.NewFramer(&f.buf, nil)
	f.fr.AllowIllegalWrites = true
	f.enc = hpack.NewEncoder(&f.hbuf)
	return f
}

func (f *flooder) block(kv ...string) []byte {
	f.hbuf.Reset()
	for i := 0; i < len(kv); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return f.hbuf.Bytes()
}

func (f *flooder) headers(id uint32, end bool, block []byte) {
	_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: end, EndHeaders: true})
}

var requestFields = []string{
	":method", "POST", ":scheme", "http", ":path", "/a.B/C", ":authority", "pricing.shop:50051",
	"content-type", "application/grpc", "te", "trailers",
}

func (f *flooder) request(id uint32, end bool) { f.headers(id, end, f.block(requestFields...)) }

// flood writes what send makes until the peer has enough, or after most times; it
// reports whether the peer ended it.
func (f *flooder) flood(c net.Conn, most int, send func(i int)) (ended bool) {
	_ = c.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for i := 0; i < most; {
		f.buf.Reset()
		for ; i < most && f.buf.Len() < 16<<10; i++ {
			send(i)
		}
		if _, err := c.Write(f.buf.Bytes()); err != nil {
			return true
		}
	}
	return false
}

// discard reads to the end, which it tells.
func discard(c net.Conn) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, c)
	}()
	return ended
}

func within(t *testing.T, why string, ended chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatalf("not within 10 s: %s", why)
	}
}

// unharmed checks that an honest app is served.
func (r *rig) unharmed(body []byte) {
	r.t.Helper()
	if err := newLoad(r.t, r.addr, body).run(200, 20); err != nil {
		r.t.Errorf("an honest app: %v", err)
	}
}

func TestHostileApp(t *testing.T) {
	for _, a := range []struct {
		name   string
		before func(f *flooder)
		send   func(f *flooder, i int)
		count  func(*h2.Stats) uint64
	}{
		{"rapid reset", nil, func(f *flooder, i int) {
			f.request(uint32(2*i+1), true)
			_ = f.fr.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}, abused(h2.AbuseReset)},
		{"streams that it makes us reset", nil, func(f *flooder, i int) {
			f.request(uint32(2*i+1), true)
			_ = f.fr.WriteWindowUpdate(uint32(2*i+1), 0)
		}, abused(h2.AbuseReset)},
		{"HEADERS that are no request", nil, func(f *flooder, i int) {
			f.headers(uint32(2*i+1), true, nil)
		}, abused(h2.AbuseReset)},
		{"more streams than are allowed", nil, func(f *flooder, i int) {
			f.request(uint32(2*i+1), false)
		}, abused(h2.AbuseReset)},
		{"SETTINGS", nil, func(f *flooder, _ int) { _ = f.fr.WriteSettings() }, abused(h2.AbuseSettings)},
		{"SETTINGS that change the table's size", nil, func(f *flooder, i int) {
			_ = f.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(-(i % 2))})
		}, abused(h2.AbuseSettings)},
		{"PING", nil, func(f *flooder, _ int) { _ = f.fr.WritePing(false, [8]byte{}) }, abused(h2.AbusePing)},
		{"empty DATA", func(f *flooder) { f.request(1, false) }, func(f *flooder, _ int) {
			_ = f.fr.WriteData(1, false, nil)
		}, abused(h2.AbuseEmptyData)},
		{"WINDOW_UPDATE", nil, func(f *flooder, _ int) { _ = f.fr.WriteWindowUpdate(0, 1) }, abused(h2.AbuseWindowUpdate)},
		{"PRIORITY", nil, func(f *flooder, _ int) { _ = f.fr.WritePriority(9, http2.PriorityParam{}) }, abused(h2.AbuseIgnored)},
		{"unknown frames", nil, func(f *flooder, _ int) { _ = f.fr.WriteRawFrame(0x99, 0, 0, []byte("x")) }, abused(h2.AbuseIgnored)},
		{"CONTINUATION", func(f *flooder) {
			_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(requestFields...)})
		}, func(f *flooder, i int) {
			_ = f.fr.WriteContinuation(1, false, f.block("a", fmt.Sprint(i, strings.Repeat("x", 8000))))
		}, headerFloods},
		{"empty CONTINUATION", func(f *flooder) {
			_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(requestFields...)})
		}, func(f *flooder, _ int) { _ = f.fr.WriteContinuation(1, false, nil) }, headerFloods},
	} {
		t.Run(a.name, func(t *testing.T) {
			body := message(14)
			r := newRig(t).serve(echoServer(t, body), echoServer(t, body))
			r.unharmed(body)
			watchMemory(t)
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ended := discard(c)
			f := newFlooder()
			if _, err := c.Write(hello(true)); err != nil {
				t.Fatal(err)
			}
			if a.before != nil {
				a.before(f)
				_, _ = c.Write(f.buf.Bytes())
			}
			f.flood(c, 1_000_000, func(i int) { a.send(f, i) })
			within(t, "its connection is ended", ended)
			if down, up := r.s.both(t); a.count(&down) != 1 || up.ConnectionErrors != 0 {
				t.Errorf("counted %d; %d faults of servers", a.count(&down), up.ConnectionErrors)
			}
			r.unharmed(body)
			r.quiet()
		})
	}
}

// Requests whose headers are more than they seem.
func TestHostileHeaders(t *testing.T) {
	body := message(14)
	t.Run("bombs", func(t *testing.T) {
		r := newRig(t).serve(echoServer(t, body))
		watchMemory(t)
		app := r.app()
		app.request(1, true, "bomb", strings.Repeat("x", 3900))
		app.want("the first is a request like others", "HEADERS 1…")
		app.wantBody("its response", len(body), false)
		app.want("to its end", "HEADERS 1 end…")
		for id := uint32(3); id < 203; id += 2 {
			// 12,000 references to the entry of 3.9 KiB: 47 MB each time.
			app.hbuf.Reset()
			app.encode(requestFields)
			block := append(bytes.Clone(app.hbuf.Bytes()), bytes.Repeat([]byte{0x80 | 62}, 12_000)...)
			app.do(app.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: true, EndHeaders: true}))
			app.want("refused as gRPC has it", fmt.Sprintf("HEADERS %d end%s grpc-status=8…", id, grpcHeaders))
		}
		if down, _ := r.s.both(t); down.HeadersTooLarge != 100 {
			t.Errorf("counted %d", down.HeadersTooLarge)
		}
		app.request(203, true)
		app.want("the connection goes on", "HEADERS 203…")
	})
	t.Run("games with the table's size", func(t *testing.T) {
		r := newRig(t).serve(echoServer(t, body))
		watchMemory(t)
		app := r.app()
		app.do(app.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 1<<32 - 1}))
		for i := range uint32(2000) {
			id := 2*i + 1
			app.henc.SetMaxDynamicTableSize(0)
			app.henc.SetMaxDynamicTableSize(4096 - i)
			app.request(id, true, fmt.Sprint("x-", i), strings.Repeat("y", 2000))
			app.want("each is served", fmt.Sprintf("HEADERS %d…", id))
			app.wantBody("each is served", len(body), false)
			app.want("each is served", fmt.Sprintf("HEADERS %d end…", id))
		}
		if down, up := r.s.both(t); down.ConnectionErrors+up.ConnectionErrors != 0 {
			t.Errorf("%d and %d connections ended for a fault", down.ConnectionErrors, up.ConnectionErrors)
		}
		r.quiet()
	})
}

// Slow peers that hold on to what they got.
func TestSlowLoris(t *testing.T) {
	const conns = 300
	body := message(14)
	bounds := func(c *Config) {
		c.Downstream.PrefaceTimeout = 300 * time.Millisecond
		c.Downstream.HeaderTimeout = 300 * time.Millisecond
		c.Upstream.HeaderTimeout = 300 * time.Millisecond
	}
	t.Run("headers that never end", func(t *testing.T) {
		r := newRig(t, bounds).serve(echoServer(t, body))
		watchMemory(t)
		f := newFlooder()
		_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(requestFields...)[:10]})
		begin := bytes.Clone(f.buf.Bytes())
		f.buf.Reset()
		_ = f.fr.WriteContinuation(1, false, []byte{})
		drop := bytes.Clone(f.buf.Bytes())
		var wg sync.WaitGroup
		for range conns {
			wg.Go(func() {
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = c.Write(append(hello(true), begin...))
				ended := discard(c)
				for {
					select {
					case <-ended:
						return
					case <-time.After(50 * time.Millisecond):
						_, _ = c.Write(drop)
					}
				}
			})
		}
		r.unharmed(body)
		wg.Wait()
		if down, _ := r.s.both(t); down.Timeouts != conns {
			t.Errorf("%d timed out, want %d", down.Timeouts, conns)
		}
		r.quiet()
	})
	t.Run("a preface and no more", func(t *testing.T) {
		r := newRig(t, bounds).serve(echoServer(t, body))
		watchMemory(t)
		var all []chan struct{}
		for range conns {
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = c.Write([]byte(http2.ClientPreface))
			all = append(all, discard(c))
		}
		r.unharmed(body)
		for _, ended := range all {
			within(t, "it is ended", ended)
		}
		if down, _ := r.s.both(t); down.Timeouts != conns {
			t.Errorf("%d timed out, want %d", down.Timeouts, conns)
		}
	})
	t.Run("a server whose headers never end", func(t *testing.T) {
		f := newFakeServer(t)
		r := newRig(t, bounds).serve(f.addr)
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the request", "HEADERS 1 end…")
		time.Sleep(50 * time.Millisecond) // nothing else is due
		begin := time.Now()
		srv.do(srv.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}}))
		app.want("its RPC fails", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: lost the connection to…")
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("after %s", d)
		}
		if _, up := r.s.both(t); up.Timeouts != 1 {
			t.Errorf("%d timed out", up.Timeouts)
		}
		r.quiet()
	})
}

// Apps that ask for much and take none of it. What waits for them is bounded, and others are served.
func TestWindowStall(t *testing.T) {
	const conns, streams = 10, 100
	r := newRig(t).serve(largeServer(t, 1<<20), largeServer(t, 1<<20))
	watchMemory(t)
	var all []net.Conn
	for range conns {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f := newFlooder()
		f.buf.WriteString(http2.ClientPreface)
		_ = f.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		_ = f.fr.WriteSettingsAck()
		for i := range streams {
			f.request(uint32(2*i+1), true)
		}
		if _, err := c.Write(f.buf.Bytes()); err != nil {
			t.Fatal(err)
		}
		discard(c)
		all = append(all, c)
	}
	eventually(t, "all of them wait", func() bool { return r.snapshot().Streams == conns*streams })
	time.Sleep(300 * time.Millisecond)
	if n := r.snapshot().Services[0].Endpoints[0].HeldBytes; n > 16<<20 {
		t.Errorf("%d bytes are held for them at one endpoint", n)
	}
	honest := r.app()
	honest.request(1, true)
	honest.want("an honest app is served", "HEADERS 1…")
	honest.wantBody("all of it", 1<<20, true)
	for _, c := range all {
		c.Close()
	}
	r.quiet()
}

// largeServer answers each request with size bytes, as windows allow.
func largeServer(t *testing.T, size int) string {
	return tcpServer(t, func(c *net.TCPConn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		type response struct {
			id           uint32
			left, window int
		}
		var (
			f          = newFlooder()
			in         = http2.NewFramer(nil, c)
			open       = map[uint32]*response{}
			conn       = 65535
			first      = 65535 // window of a new stream
			chunk      = make([]byte, 16<<10)
			pump       func(r *response)
			blockFor   = func() []byte { return f.block(":status", "200", "content-type", "application/grpc") }
			flushAfter = func() error { _, err := c.Write(f.buf.Bytes()); f.buf.Reset(); return err }
		)
		pump = func(r *response) {
			for n := 1; n > 0 && r.left > 0; {
				n = min(conn, r.window, r.left, len(chunk))
				if n > 0 {
					conn, r.window, r.left = conn-n, r.window-n, r.left-n
					_ = f.fr.WriteData(r.id, r.left == 0, chunk[:n])
				}
			}
			if r.left == 0 {
				delete(open, r.id)
			}
		}
		_ = f.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10_000})
		_ = f.fr.WriteSettingsAck()
		for flushAfter() == nil {
			fr, err := in.ReadFrame()
			if err != nil {
				return
			}
			switch fr := fr.(type) {
			case *http2.SettingsFrame:
				if v, ok := fr.Value(http2.SettingInitialWindowSize); ok {
					first = int(v)
				}
			case *http2.HeadersFrame:
				r := &response{id: fr.StreamID, left: size, window: first}
				open[r.id] = r
				f.headers(r.id, false, blockFor())
				pump(r)
			case *http2.WindowUpdateFrame:
				if fr.StreamID == 0 {
					conn += int(fr.Increment)
					for _, r := range open {
						pump(r)
					}
				} else if r := open[fr.StreamID]; r != nil {
					r.window += int(fr.Increment)
					pump(r)
				}
			case *http2.RSTStreamFrame:
				delete(open, fr.StreamID)
			}
		}
	})
}

func TestHostileServer(t *testing.T) {
	unavailable := " grpc-status=14 grpc-message=evenkeel: lost the connection to…"
	for _, a := range []struct {
		name   string
		before func(f *flooder)
		send   func(f *flooder, i int)
		most   int // what is legal at first, or has a bound of its own, is sent this often; 0: until it is ended
		count  func(*h2.Stats) uint64
		want   string // how the app's RPC ends
	}{
		{"SETTINGS", nil, func(f *flooder, _ int) { _ = f.fr.WriteSettings() }, 0, abused(h2.AbuseSettings), unavailable},
		{"GOAWAY", nil, func(f *flooder, _ int) { _ = f.fr.WriteGoAway(9, http2.ErrCodeNo, nil) }, 0, abused(h2.AbuseSettings), unavailable},
		{"PING", nil, func(f *flooder, _ int) { _ = f.fr.WritePing(false, [8]byte{}) }, 0, abused(h2.AbusePing), unavailable},
		{"empty DATA", func(f *flooder) { f.headers(1, false, f.block(":status", "200", "content-type", "application/grpc")) }, func(f *flooder, _ int) {
			_ = f.fr.WriteData(1, false, nil)
		}, 0, abused(h2.AbuseEmptyData), unavailable},
		{"WINDOW_UPDATE", nil, func(f *flooder, _ int) { _ = f.fr.WriteWindowUpdate(0, 1) }, 0, abused(h2.AbuseWindowUpdate), unavailable},
		{"PRIORITY", nil, func(f *flooder, _ int) { _ = f.fr.WritePriority(9, http2.PriorityParam{}) }, 0, abused(h2.AbuseIgnored), unavailable},
		{"unknown frames", nil, func(f *flooder, _ int) { _ = f.fr.WriteRawFrame(0x99, 0, 0, []byte("x")) }, 0, abused(h2.AbuseIgnored), unavailable},
		{"CONTINUATION", func(f *flooder) {
			_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(":status", "200")})
		}, func(f *flooder, i int) {
			_ = f.fr.WriteContinuation(1, false, f.block("a", fmt.Sprint(i, strings.Repeat("x", 8000))))
		}, 0, headerFloods, unavailable},
		{"empty CONTINUATION", func(f *flooder) {
			_ = f.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(":status", "200")})
		}, func(f *flooder, _ int) { _ = f.fr.WriteContinuation(1, false, nil) }, 0, headerFloods, unavailable},
		{"1xx", nil, func(f *flooder, _ int) { f.headers(1, false, f.block(":status", "103")) }, 33, func(s *h2.Stats) uint64 {
			return s.ResetsSent
		}, " grpc-status=13…"},
		{"a bomb", nil, func(f *flooder, _ int) {
			block := bytes.Clone(f.block(":status", "200", "bomb", strings.Repeat("x", 3900)))
			f.headers(1, false, append(block, bytes.Repeat([]byte{0x80 | 62}, 12_000)...))
		}, 1, func(s *h2.Stats) uint64 { return s.HeadersTooLarge }, " grpc-status=8…"},
		{"pushes", nil, func(f *flooder, _ int) {
			_ = f.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: f.block(requestFields...), EndHeaders: true})
		}, 1, func(s *h2.Stats) uint64 { return s.ConnectionErrors }, unavailable},
	} {
		t.Run(a.name, func(t *testing.T) {
			srv := newFakeServer(t)
			r := newRig(t).serve(srv.addr)
			watchMemory(t)
			app := r.app()
			app.request(1, true)
			p := srv.accept()
			p.want("the request", "HEADERS 1 end…")
			ended := discard(p.conn)
			f := newFlooder()
			if a.before != nil {
				a.before(f)
				_, _ = p.conn.Write(f.buf.Bytes())
			}
			most := a.most
			if most == 0 {
				most = 1_000_000
			}
			if !f.flood(p.conn, most, func(i int) { a.send(f, i) }) && a.most == 0 {
				within(t, "its connection is ended", ended)
			}
			for {
				got := describe(app.next())
				if matches(got, "HEADERS 1 end…"+a.want) {
					break
				}
				if !matches(got, "HEADERS 1 :status=103") && !matches(got, "HEADERS 1 :status=200…") && !matches(got, "DATA 1 0 bytes") {
					t.Fatalf("the app gets %s, want its end with %s", got, a.want)
				}
			}
			if down, up := r.s.both(t); a.count(&up) != 1 || down.ConnectionErrors != 0 {
				t.Errorf("counted %d; %d faults of apps", a.count(&up), down.ConnectionErrors)
			}
			body := message(14)
			r.serve(echoServer(t, body))
			r.unharmed(body)
			r.quiet()
		})
	}
}

// A server that takes nothing of large requests: what waits for it is bounded, other servers' are not harmed.
func TestServerStall(t *testing.T) {
	const streams = 100
	stuck := newFakeServer(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	r := newRig(t).serve(stuck.addr)
	watchMemory(t)
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	discard(c)
	f := newFlooder()
	f.buf.Write(hello(true))
	for i := range streams {
		f.request(uint32(2*i+1), false)
		for range 3 { // no more than the windows allow without being told
			_ = f.fr.WriteData(uint32(2*i+1), false, make([]byte, 200))
		}
	}
	if _, err := c.Write(f.buf.Bytes()); err != nil {
		t.Fatal(err)
	}
	p := stuck.accept()
	discard(p.conn)
	eventually(t, "all of them wait", func() bool { return r.snapshot().Streams == streams })
	f.flood(c, 30_000, func(i int) { _ = f.fr.WriteData(uint32(2*(i%streams)+1), false, make([]byte, 1000)) })
	c.Close()
	body := message(14)
	r.serve(echoServer(t, body))
	r.unharmed(body)
	r.quiet()
}
