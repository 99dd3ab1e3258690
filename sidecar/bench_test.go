// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
)

// Clients and servers that allocate nothing and cost little, so that what is
// measured is the Sidecar. They send frames that were encoded before.

type wire struct {
	conn net.Conn
	buf  []byte
	n    int // bytes in buf
	out  []byte
}

func newWire(conn net.Conn) *wire { return &wire{conn: conn, buf: make([]byte, 256<<10)} }

// each reads once, and calls f for each frame that is complete.
func (w *wire) each(f func(typ http2.FrameType, flags http2.Flags, id uint32)) error {
	n, err := w.conn.Read(w.buf[w.n:])
	if err != nil {
		return err
	}
	w.n += n
	at := 0
	for w.n-at >= 9 {
		h := w.buf[at : at+9]
		size := 9 + (int(h[0])<<16 | int(h[1])<<8 | int(h[2]))
		if w.n-at < size {
			break
		}
		f(http2.FrameType(h[3]), http2.Flags(h[4]), binary.BigEndian.Uint32(h[5:])&(1<<31-1))
		at += size
	}
	w.n = copy(w.buf, w.buf[at:w.n])
	return nil
}

// template is a run of frames on one stream, whose id is put in before each use.
type template struct {
	b   []byte
	ids []int // offsets of stream ids
}

func (t *template) frame(typ http2.FrameType, flags http2.Flags, payload []byte) {
	t.b = append(t.b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), byte(typ), byte(flags))
	t.ids = append(t.ids, len(t.b))
	t.b = append(append(t.b, 0, 0, 0, 0), payload...)
}

func (t *template) appendTo(b []byte, id uint32) []byte {
	for _, at := range t.ids {
		binary.BigEndian.PutUint32(t.b[at:], id)
	}
	return append(b, t.b...)
}

// encodeTwice returns a block that fills the peer's dynamic table, and one that only refers to it.
func encodeTwice(fields []hpack.HeaderField) (first, then []byte) {
	var buf bytes.Buffer
	e := hpack.NewEncoder(&buf)
	for _, f := range fields {
		_ = e.WriteField(f)
	}
	first = bytes.Clone(buf.Bytes())
	buf.Reset()
	for _, f := range fields {
		_ = e.WriteField(f)
	}
	return first, bytes.Clone(buf.Bytes())
}

func hello(client bool) []byte {
	var b bytes.Buffer
	if client {
		b.WriteString(http2.ClientPreface)
	}
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 10000})
	_ = fr.WriteWindowUpdate(0, 1<<30)
	_ = fr.WriteSettingsAck()
	return b.Bytes()
}

// echoServer answers each request with a header section, body and trailers.
func echoServer(t testing.TB, body []byte) string {
	lis := listen(t)
	var head, tail [2][]byte
	// One table for both sections, as a real server has.
	var buf bytes.Buffer
	e := hpack.NewEncoder(&buf)
	for i := range 2 {
		buf.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		_ = e.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
		head[i] = bytes.Clone(buf.Bytes())
		buf.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "0"})
		_ = e.WriteField(hpack.HeaderField{Name: "grpc-message", Value: ""})
		tail[i] = bytes.Clone(buf.Bytes())
	}
	serve := func(conn net.Conn) {
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		_, _ = conn.Write(hello(false))
		var answers [2]template
		for i := range answers {
			answers[i].frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, head[i])
			for b := body; len(b) > 0; {
				n := min(len(b), 16384)
				answers[i].frame(http2.FrameData, 0, b[:n])
				b = b[n:]
			}
			answers[i].frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, tail[i])
		}
		w := newWire(conn)
		used := 0
		for {
			err := w.each(func(typ http2.FrameType, flags http2.Flags, id uint32) {
				if (typ == http2.FrameData || typ == http2.FrameHeaders) && flags&http2.FlagDataEndStream != 0 {
					w.out = answers[used].appendTo(w.out, id)
					used = 1
				}
			})
			if err != nil {
				return
			}
			if len(w.out) > 0 {
				_, _ = conn.Write(w.out)
				w.out = w.out[:0]
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	t.Cleanup(func() { lis.Close(); <-done })
	return lis.Addr().String()
}

// load is a client connection that has a number of streams open at all times.
type load struct {
	w      *wire
	first  template
	then   template
	nextID uint32
}

func newLoad(t testing.TB, addr string, body []byte, extra ...hpack.HeaderField) *load {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, _ = conn.Write(hello(true))
	l := &load{w: newWire(conn), nextID: 1}
	first, then := encodeTwice(append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/echo.Echo/Echo"},
		{Name: ":authority", Value: "pricing.shop:50051"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "bench"},
		{Name: "te", Value: "trailers"},
	}, extra...))
	for _, x := range []struct {
		t     *template
		block []byte
	}{{&l.first, first}, {&l.then, then}} {
		x.t.frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, x.block)
		for b := body; len(b) > 0; {
			n := min(len(b), 16384)
			flags := http2.Flags(0)
			if n == len(b) {
				flags = http2.FlagDataEndStream
			}
			x.t.frame(http2.FrameData, flags, b[:n])
			b = b[n:]
		}
	}
	return l
}

func (l *load) open() {
	t := &l.then
	if l.nextID == 1 {
		t = &l.first
	}
	l.w.out = t.appendTo(l.w.out, l.nextID)
	l.nextID += 2
}

// run makes n RPCs, width at a time.
func (l *load) run(n, width int) error {
	started, ended := 0, 0
	for ; started < min(n, width); started++ {
		l.open()
	}
	for ended < n {
		if len(l.w.out) > 0 {
			if _, err := l.w.conn.Write(l.w.out); err != nil {
				return err
			}
			l.w.out = l.w.out[:0]
		}
		var bad error
		err := l.w.each(func(typ http2.FrameType, flags http2.Flags, id uint32) {
			switch {
			case typ == http2.FrameRSTStream || typ == http2.FrameGoAway:
				bad = fmt.Errorf("%s on stream %d", typ, id)
			case (typ == http2.FrameHeaders || typ == http2.FrameData) && flags&http2.FlagDataEndStream != 0:
				ended++
				if started < n {
					started++
					l.open()
				}
			}
		})
		if err != nil || bad != nil {
			return errors.Join(err, bad)
		}
	}
	return nil
}

// No RPC allocates in steady state; the handful allowed are the runtime's own and the heartbeat's.
func TestAllocsPerRPC(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	body := message(14)
	r := newRig(t).serve(echoServer(t, body), echoServer(t, body), echoServer(t, body))
	l := newLoad(t, r.addr, body)
	if err := l.run(5000, 50); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	const n = 20_000
	runtime.ReadMemStats(&before)
	if err := l.run(n, 50); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if per := float64(after.Mallocs-before.Mallocs) / n; per > 0.05 {
		t.Errorf("%.2f allocations per RPC, want none", per)
	} else {
		t.Logf("%.3f allocations per RPC", per)
	}
}

// cpu is the CPU time of the process in microseconds. Most of it is the Sidecar's, but not all.
func cpu() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return (u.Utime.Nano() + u.Stime.Nano()) / 1000
}

func BenchmarkUnary(b *testing.B) {
	for _, shape := range []struct{ width, size int }{{1, 14}, {50, 14}, {8, 64 << 10}} {
		b.Run(fmt.Sprintf("streams=%d/bytes=%d", shape.width, shape.size), func(b *testing.B) {
			width, size := shape.width, shape.size
			body := message(size)
			r := newRig(b).serve(echoServer(b, body), echoServer(b, body), echoServer(b, body))
			l := newLoad(b, r.addr, body)
			if err := l.run(1000, width); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			begin := cpu()
			b.ResetTimer()
			if err := l.run(b.N, width); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpu()-begin)/float64(b.N), "cpu-us/op")
		})
	}
}
