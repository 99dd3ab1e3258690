// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
)

// The benchmarks join a Server and a Client session by the least relay there can
// be, between an app and a server pod that are recordings: what is measured is
// the two sessions.

// miniSession relays each stream of the down session to the up session.
type miniSession struct {
	up   *Session
	free []*miniRelay
	done int
}

type miniRelay struct {
	m        *miniSession
	down, up *Stream
	closed   int
}

func (m *miniSession) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	var r *miniRelay
	if n := len(m.free); n > 0 {
		r = m.free[n-1]
		m.free = m.free[:n-1]
	} else {
		r = &miniRelay{m: m}
	}
	up, err := m.up.Open((*miniUp)(r))
	if err != nil {
		panic(err)
	}
	r.down, r.up, r.closed = st, up, 0
	st.SetHandler((*miniDown)(r))
	up.WriteHeaders(f, end)
}
func (m *miniSession) HeadersTooLarge(st *Stream, f []hpack.HeaderField) {}
func (m *miniSession) SettingsReceived()                                 {}
func (m *miniSession) GoAwayReceived(uint32, http2.ErrCode, []byte)      {}
func (m *miniSession) CapacityFreed()                                    {}
func (m *miniSession) PongReceived(time.Duration)                        {}
func (m *miniSession) OutputReady()                                      {}

func (r *miniRelay) oneClosed(end StreamEnd) {
	if end.Kind != Complete {
		panic(fmt.Sprint(end))
	}
	if r.closed++; r.closed == 2 {
		r.m.done++
		r.m.free = append(r.m.free, r)
	}
}

type miniDown miniRelay

func (r *miniDown) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	r.up.WriteHeaders(f, end)
}
func (r *miniDown) DataReceived(st *Stream, p []byte, end bool) { r.up.WriteData(p, end) }
func (r *miniDown) DataSent(st *Stream, n int)                  { r.up.Consumed(n) }
func (r *miniDown) Closed(st *Stream, end StreamEnd)            { (*miniRelay)(r).oneClosed(end) }

type miniUp miniRelay

func (r *miniUp) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	r.down.WriteHeaders(f, end)
}
func (r *miniUp) DataReceived(st *Stream, p []byte, end bool) { r.down.WriteData(p, end) }
func (r *miniUp) DataSent(st *Stream, n int)                  { r.down.Consumed(n) }
func (r *miniUp) Closed(st *Stream, end StreamEnd)            { (*miniRelay)(r).oneClosed(end) }

// recording is the frames of one request or response; the ids are filled in.
type recording struct {
	frames []byte
	ids    []int // offsets of the stream ids
}

func (r *recording) add(typ http2.FrameType, flags http2.Flags, payload []byte) {
	r.ids = append(r.ids, len(r.frames)+5)
	r.frames = appendFrameHeader(r.frames, len(payload), typ, flags, 0)
	r.frames = append(r.frames, payload...)
}

func (r *recording) play(dst []byte, id uint32) []byte {
	n := len(dst)
	dst = append(dst, r.frames...)
	for _, at := range r.ids {
		binary.BigEndian.PutUint32(dst[n+at:], id)
	}
	return dst
}

type benchWorld struct {
	now      time.Time
	mini     *miniSession
	down, up *Session
	app      *hpackPeer
	pod      *hpackPeer
	nextID   uint32
	appOut   []byte
	podOut   []byte
	request  func(w *benchWorld, id uint32, dst []byte) []byte
	response func(w *benchWorld, id uint32, dst []byte) []byte
	owedDown int
	owedUp   int
}

type hpackPeer struct {
	enc fieldEncoder
	buf []byte
}

func newBenchWorld() *benchWorld {
	w := &benchWorld{now: time.Unix(1000, 0), mini: &miniSession{}, app: &hpackPeer{}, pod: &hpackPeer{}}
	pool := &Pool{}
	cfg := &Config{Pool: pool}
	w.up = New(Client, cfg, w.mini, w.now)
	w.mini.up = w.up
	w.down = New(Server, cfg, w.mini, w.now)
	w.app.enc.init(4096)
	w.pod.enc.init(4096)
	w.nextID = 1
	const window = 1 << 30
	settings := binary.BigEndian.AppendUint32([]byte{0, 4}, window)
	hello := func(b []byte) []byte {
		b = appendFrameHeader(b, 6, http2.FrameSettings, 0, 0)
		b = append(b, settings...)
		b = appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, 0)
		b = binary.BigEndian.AppendUint32(b, window)
		return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	}
	w.must(w.down.Receive(w.now, hello([]byte(http2.ClientPreface))))
	w.must(w.up.Receive(w.now, hello(nil)))
	w.down.Wrote(w.now, len(w.down.Output()))
	w.up.Wrote(w.now, len(w.up.Output()))
	return w
}

func (w *benchWorld) must(err error) {
	if err != nil {
		panic(err)
	}
}

// round runs n RPCs at once: one read brings them all, as from an app with n streams.
func (w *benchWorld) round(n int) {
	w.appOut = w.appOut[:0]
	for range n {
		w.appOut = w.request(w, w.nextID, w.appOut)
		w.nextID += 2
	}
	w.must(w.down.Receive(w.now, w.appOut))
	// The pod answers each HEADERS frame it sees.
	w.podOut = w.podOut[:0]
	var moreConn int
	for out := w.up.Output(); out != nil; out = w.up.Output() {
		for b := out; len(b) > 0; {
			f := parseFrameHeader(b)
			if f.typ == http2.FrameHeaders {
				w.podOut = w.response(w, f.id, w.podOut)
			}
			if f.typ == http2.FrameData {
				moreConn += f.length
			}
			b = b[9+f.length:]
		}
		w.up.Wrote(w.now, len(out))
	}
	w.owedUp += moreConn
	if w.owedUp > 1<<20 {
		w.podOut = appendFrameHeader(w.podOut, 4, http2.FrameWindowUpdate, 0, 0)
		w.podOut = binary.BigEndian.AppendUint32(w.podOut, uint32(w.owedUp))
		w.owedUp = 0
	}
	w.must(w.up.Receive(w.now, w.podOut))
	got := 0
	for out := w.down.Output(); out != nil; out = w.down.Output() {
		got += len(out)
		w.down.Wrote(w.now, len(out))
	}
	w.owedDown += got
	if w.owedDown > 1<<20 {
		w.appOut = appendFrameHeader(w.appOut[:0], 4, http2.FrameWindowUpdate, 0, 0)
		w.appOut = binary.BigEndian.AppendUint32(w.appOut, uint32(w.owedDown))
		w.owedDown = 0
		w.must(w.down.Receive(w.now, w.appOut))
	}
	w.up.Wrote(w.now, len(w.up.Output()))
}

func appendHeaders(p *hpackPeer, dst []byte, id uint32, flags http2.Flags, fields []hpack.HeaderField) []byte {
	p.buf = p.enc.append(p.buf[:0], fields)
	dst = appendFrameHeader(dst, len(p.buf), http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, id)
	return append(dst, p.buf...)
}

func h(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }

var (
	requestFields = []hpack.HeaderField{
		h(":method", "POST"), h(":scheme", "http"), h(":path", "/pricing.Pricing/Quote"), h(":authority", "pricing.shop:50051"),
		h("content-type", "application/grpc"), h("user-agent", "grpc-go/1.85.0"), h("te", "trailers"), h("grpc-accept-encoding", "gzip"),
	}
	responseFields = []hpack.HeaderField{h(":status", "200"), h("content-type", "application/grpc")}
	trailerFields  = []hpack.HeaderField{h("grpc-status", "0"), h("grpc-message", "")}
	message        = append([]byte{0, 0, 0, 0, 9}, "benchmark"...)
)

// same makes all requests alike, as h2load does: each header is in the table.
func (w *benchWorld) same() {
	appendHeaders(w.app, nil, 1, 0, requestFields)
	var req, resp recording
	first := true
	req.add(http2.FrameHeaders, http2.FlagHeadersEndHeaders, w.app.enc.append(nil, requestFields))
	req.add(http2.FrameData, http2.FlagDataEndStream, message)
	appendHeaders(w.pod, nil, 1, 0, responseFields)
	appendHeaders(w.pod, nil, 1, 0, trailerFields)
	resp.add(http2.FrameHeaders, http2.FlagHeadersEndHeaders, w.pod.enc.append(nil, responseFields))
	resp.add(http2.FrameData, 0, message)
	resp.add(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, w.pod.enc.append(nil, trailerFields))
	w.request = func(w *benchWorld, id uint32, dst []byte) []byte {
		if first { // fills the tables
			first = false
			w.app.enc, w.pod.enc = fieldEncoder{}, fieldEncoder{}
			w.app.enc.init(4096)
			w.pod.enc.init(4096)
			dst = appendHeaders(w.app, dst, id, 0, requestFields)
			dst = appendFrameHeader(dst, len(message), http2.FrameData, http2.FlagDataEndStream, id)
			return append(dst, message...)
		}
		return req.play(dst, id)
	}
	firstResp := true
	w.response = func(w *benchWorld, id uint32, dst []byte) []byte {
		if firstResp {
			firstResp = false
			dst = appendHeaders(w.pod, dst, id, 0, responseFields)
			dst = appendFrameHeader(dst, len(message), http2.FrameData, 0, id)
			dst = append(dst, message...)
			return appendHeaders(w.pod, dst, id, http2.FlagHeadersEndStream, trailerFields)
		}
		return resp.play(dst, id)
	}
	w.round(1)
}

// unique gives each request a trace id, a request id and a token of its own; the
// app encodes as x/net's hpack does: everything indexed, in Huffman's code.
func (w *benchWorld) unique() {
	w.same()
	var buf writerBuf
	enc := hpack.NewEncoder(&buf)
	token := "Bearer " + strings.Repeat("eyJhbGciOiJSUzI1NiIsImtpZCI6Ij", 26)
	fields := append(append([]hpack.HeaderField(nil), requestFields...),
		h("traceparent", ""), h("x-request-id", ""), h("authorization", ""))
	n := 0
	// 512 requests are prepared, so that encoding them is not measured.
	blocks := make([][]byte, 512)
	for i := range blocks {
		n++
		fields[8].Value = fmt.Sprintf("00-4bf92f3577b34da6a3ce929d%08x-00f067aa%08x-01", n, n)
		fields[9].Value = fmt.Sprintf("7d9f%08x-c2a1-4f5b-9a7e-0123456789ab", n)
		fields[10].Value = fmt.Sprintf("%s%08x", token, n)
		buf.b = nil
		for _, f := range fields {
			w.must(enc.WriteField(f))
		}
		blocks[i] = buf.b
	}
	first := true
	i := 0
	w.request = func(w *benchWorld, id uint32, dst []byte) []byte {
		if first {
			first = false
			// The decoder has entries of the warm-up; x/net's encoder starts
			// from an empty table, which a size update to 0 and back gives.
			b := append([]byte{0x20, 0x3f, 0xe1, 0x1f}, blocks[0]...)
			i = 1
			dst = appendFrameHeader(dst, len(b), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id)
			dst = append(dst, b...)
		} else {
			b := blocks[i]
			if i++; i == len(blocks) {
				i = 1
				first = true
			}
			dst = appendFrameHeader(dst, len(b), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id)
			dst = append(dst, b...)
		}
		dst = appendFrameHeader(dst, len(message), http2.FrameData, http2.FlagDataEndStream, id)
		return append(dst, message...)
	}
}

type writerBuf struct{ b []byte }

func (w *writerBuf) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

func benchmarkRPC(b *testing.B, prepare func(*benchWorld), streams int) {
	w := newBenchWorld()
	prepare(w)
	for range 4 {
		w.round(streams)
	}
	b.ReportAllocs()
	b.ResetTimer()
	start, cpu := w.mini.done, cpuTime()
	for i := 0; i < b.N; i += streams {
		w.now = w.now.Add(time.Microsecond)
		w.round(streams)
	}
	b.StopTimer()
	// On a machine that others use, wall-clock time says little.
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
	if w.mini.done-start < b.N {
		b.Fatalf("%d RPCs done of %d", w.mini.done-start, b.N)
	}
}

func BenchmarkSame1(b *testing.B)    { benchmarkRPC(b, (*benchWorld).same, 1) }
func BenchmarkSame50(b *testing.B)   { benchmarkRPC(b, (*benchWorld).same, 50) }
func BenchmarkUnique50(b *testing.B) { benchmarkRPC(b, (*benchWorld).unique, 50) }

// BenchmarkData relays a long body in frames of 16 KiB, read 64 KiB at a time.
func BenchmarkData(b *testing.B) {
	w := newBenchWorld()
	w.same()
	req := w.request(w, w.nextID, nil)
	w.must(w.down.Receive(w.now, req[:len(req)-len(message)-9]))
	frame := appendFrameHeader(nil, 16384, http2.FrameData, 0, w.nextID)
	frame = append(frame, make([]byte, 16384)...)
	read := bytes.Repeat(frame, 4)
	credit := appendFrameHeader(nil, 4, http2.FrameWindowUpdate, 0, 0)
	credit = binary.BigEndian.AppendUint32(credit, 65536)
	credit = appendFrameHeader(credit, 4, http2.FrameWindowUpdate, 0, 1)
	credit = binary.BigEndian.AppendUint32(credit, 65536)
	credit[len(credit)-5] = 3 // the relayed stream's id
	b.SetBytes(65536)
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	for range b.N {
		w.must(w.down.Receive(w.now, read))
		for out := w.up.Output(); out != nil; out = w.up.Output() {
			w.up.Wrote(w.now, len(out))
		}
		w.must(w.up.Receive(w.now, credit))
		w.down.Wrote(w.now, len(w.down.Output()))
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

func BenchmarkUnique1(b *testing.B) { benchmarkRPC(b, (*benchWorld).unique, 1) }

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
