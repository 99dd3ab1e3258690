// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// testPeer is the other end of a Session, in the hands of a test. It writes and
// reads frames by x/net's Framer, a judge that was not written here. Time stands
// still but for advance. TestHarness shows how it is used.
type testPeer struct {
	t   *testing.T
	s   *Session
	now time.Time
	err error // of the last Receive or Tick
	cut int   // the most bytes that one Receive gets; 0: all

	out  bytes.Buffer // from the peer, not yet received by s
	in   bytes.Buffer // from s, not yet read as frames
	fr   *http2.Framer
	henc *hpack.Encoder
	hbuf bytes.Buffer
	hdec *hpack.Decoder

	stuck   bool     // the transport takes nothing
	frames  []string // that s sent, not yet wanted
	events  []string // that s told, not yet wanted
	streams map[uint32]*testStream
	ready   int // OutputReady calls

	onOpen  func(*testStream, []hpack.HeaderField, bool)
	onLarge func(*testStream)
}

// testStream hears of a stream, and remembers.
type testStream struct {
	p       *testPeer
	st      *Stream
	body    []byte
	fields  map[HeadersKind][]hpack.HeaderField
	ended   bool
	closed  int
	end     StreamEnd
	sent    int
	consume bool // gives the window back at once
}

// newPeer makes a session and its peer, and shakes hands unless the test wants to.
func newPeer(t *testing.T, role Role, cfg *Config) *testPeer {
	t.Helper()
	p := newRawPeer(t, role, cfg)
	if role == Server {
		p.out.WriteString(http2.ClientPreface)
	}
	p.check(p.fr.WriteSettings())
	p.check(p.fr.WriteSettingsAck())
	p.flush()
	p.frames, p.events = nil, nil
	return p
}

func newRawPeer(t *testing.T, role Role, cfg *Config) *testPeer {
	p := &testPeer{t: t, now: time.Unix(1e9, 0), streams: map[uint32]*testStream{}}
	p.fr = http2.NewFramer(&p.out, &p.in)
	p.fr.AllowIllegalWrites = true
	p.fr.SetMaxReadFrameSize(1 << 24)
	p.henc = hpack.NewEncoder(&p.hbuf)
	p.hdec = hpack.NewDecoder(initialTable, nil)
	p.s = New(role, cfg, p, p.now)
	if role == Client {
		out := p.s.Output()
		if !bytes.HasPrefix(out, []byte(http2.ClientPreface)) {
			t.Fatalf("a client's output starts with %q, want the preface", out)
		}
		p.s.Wrote(p.now, len(http2.ClientPreface))
	}
	p.read()
	return p
}

func (p *testPeer) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// flush has the session receive what the peer wrote, and reads its answer.
func (p *testPeer) flush() {
	p.t.Helper()
	b := p.out.Bytes()
	for len(b) > 0 {
		n := len(b)
		if p.cut > 0 {
			n = min(n, p.cut)
		}
		// A copy: the session must not keep it.
		piece := bytes.Clone(b[:n])
		p.err = p.s.Receive(p.now, piece)
		for i := range piece {
			piece[i] = 0xee
		}
		b = b[n:]
	}
	p.out.Reset()
	p.read()
}

// read takes the session's output, unless the transport is stuck.
func (p *testPeer) read() {
	p.t.Helper()
	if p.stuck {
		return
	}
	for out := p.s.Output(); out != nil; out = p.s.Output() {
		p.in.Write(out)
		p.s.Wrote(p.now, len(out))
	}
	for p.in.Len() > 0 {
		f, err := p.fr.ReadFrame()
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.t.Fatalf("the session sent what x/net does not take: %v (%v)", err, p.fr.ErrorDetail())
		}
		p.frames = append(p.frames, p.describe(f))
	}
}

// describe puts a frame in words: "RST_STREAM 1 CANCEL".
func (p *testPeer) describe(f http2.Frame) string {
	h := f.Header()
	switch f := f.(type) {
	case *http2.DataFrame:
		return fmt.Sprintf("DATA %d %d%s", h.StreamID, len(f.Data()), endMark(f.StreamEnded()))
	case *http2.HeadersFrame:
		return fmt.Sprintf("HEADERS %d%s%s", h.StreamID, p.decode(f.HeaderBlockFragment(), f.HeadersEnded()), endMark(f.StreamEnded()))
	case *http2.ContinuationFrame:
		return fmt.Sprintf("CONTINUATION %d%s", h.StreamID, p.decode(f.HeaderBlockFragment(), f.HeadersEnded()))
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("RST_STREAM %d %s", h.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %s", f.LastStreamID, f.ErrCode)
	case *http2.WindowUpdateFrame:
		return fmt.Sprintf("WINDOW_UPDATE %d %d", h.StreamID, f.Increment)
	case *http2.PingFrame:
		if f.IsAck() {
			return fmt.Sprintf("PING ACK %x", f.Data)
		}
		return fmt.Sprintf("PING %s", f.Data)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return "SETTINGS ACK"
		}
		var vals []string
		p.check(f.ForeachSetting(func(s http2.Setting) error {
			vals = append(vals, s.String())
			return nil
		}))
		return "SETTINGS " + strings.Join(vals, " ")
	}
	return h.Type.String()
}

func (p *testPeer) decode(block []byte, end bool) string {
	p.t.Helper()
	var b strings.Builder
	p.hdec.SetEmitFunc(func(f hpack.HeaderField) { fmt.Fprintf(&b, " %s=%s", f.Name, f.Value) })
	if _, err := p.hdec.Write(block); err != nil {
		p.t.Fatalf("the session sent a field block that x/net cannot decode: %v", err)
	}
	if !end {
		return b.String() + " ..."
	}
	p.check(p.hdec.Close())
	return b.String()
}

func endMark(end bool) string {
	if end {
		return " END"
	}
	return ""
}

// wantFrame: the session's next frame, for the reason given.
func (p *testPeer) wantFrame(why, want string) {
	p.t.Helper()
	p.flush()
	if len(p.frames) == 0 {
		p.t.Fatalf("%s:\nno frame, want %s\n(error %v, events %q)", why, want, p.err, p.events)
	}
	if p.frames[0] != want {
		p.t.Fatalf("%s:\n got %s\nwant %s\n(then %q)", why, p.frames[0], want, p.frames[1:])
	}
	p.frames = p.frames[1:]
}

// wantIdle: the session has sent nothing more.
func (p *testPeer) wantIdle(why string) {
	p.t.Helper()
	p.flush()
	if len(p.frames) != 0 {
		p.t.Fatalf("%s:\nwant no frame, got %q", why, p.frames)
	}
}

// wantEvent: what the session told next, for the reason given.
func (p *testPeer) wantEvent(why, want string) {
	p.t.Helper()
	p.flush()
	if len(p.events) == 0 {
		p.t.Fatalf("%s:\nno event, want %s\n(error %v, frames %q)", why, want, p.err, p.frames)
	}
	if p.events[0] != want {
		p.t.Fatalf("%s:\n got %s\nwant %s\n(then %q)", why, p.events[0], want, p.events[1:])
	}
	p.events = p.events[1:]
}

// wantQuiet: the session has told nothing more.
func (p *testPeer) wantQuiet(why string) {
	p.t.Helper()
	p.flush()
	if len(p.events) != 0 {
		p.t.Fatalf("%s:\nwant no event, got %q", why, p.events)
	}
}

// wantAlive: the connection goes on.
func (p *testPeer) wantAlive(why string) {
	p.t.Helper()
	p.flush()
	p.frames = nil
	p.check(p.fr.WritePing(false, [8]byte{1}))
	p.wantFrame(why+": the connection goes on", "PING ACK 0100000000000000")
	if p.err != nil {
		p.t.Fatalf("%s: %v", why, p.err)
	}
}

// wantFailed: the session ended with a connection error.
func (p *testPeer) wantFailed(why string, code http2.ErrCode) {
	p.t.Helper()
	p.flush()
	ce, ok := errors.AsType[*ConnectionError](p.err)
	if !ok || ce.Code != code {
		p.t.Fatalf("%s:\n got %v\nwant a connection error %s\n(frames %q)", why, p.err, code, p.frames)
	}
	if !slices.ContainsFunc(p.frames, func(f string) bool {
		return strings.HasPrefix(f, "GOAWAY ") && strings.HasSuffix(f, " "+code.String())
	}) {
		p.t.Fatalf("%s:\nwant GOAWAY %s, got %q", why, code, p.frames)
	}
	for _, st := range p.streams {
		if st.closed != 1 {
			p.t.Fatalf("%s: the session is over, but stream %d was told so %d times", why, st.st.ID(), st.closed)
		}
	}
	if n := p.s.OpenStreams(); n != 0 {
		p.t.Fatalf("%s: the session is over with %d open streams", why, n)
	}
}

func (p *testPeer) advance(d time.Duration) {
	p.t.Helper()
	p.now = p.now.Add(d)
	if next := p.s.NextDeadline(); !next.IsZero() && !next.After(p.now) {
		p.err = p.s.Tick(p.now)
	}
	p.read()
}

// block encodes fields, given as name, value, name, value…
func (p *testPeer) block(kv ...string) []byte {
	p.hbuf.Reset()
	for i := 0; i < len(kv); i += 2 {
		p.check(p.henc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]}))
	}
	return bytes.Clone(p.hbuf.Bytes())
}

func (p *testPeer) headers(id uint32, end bool, kv ...string) {
	p.t.Helper()
	p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: p.block(kv...), EndHeaders: true, EndStream: end,
	}))
}

var get = []string{":method", "POST", ":scheme", "http", ":path", "/s/m", ":authority", "s"}

// request opens a stream on a server session.
func (p *testPeer) request(id uint32, end bool, more ...string) {
	p.t.Helper()
	p.headers(id, end, append(slices.Clone(get), more...)...)
}

func (p *testPeer) data(id uint32, end bool, n int) {
	p.t.Helper()
	p.check(p.fr.WriteData(id, end, bytes.Repeat([]byte{'x'}, n)))
}

// open opens a stream of a client session and takes its HEADERS off the frames.
func (p *testPeer) open(end bool, more ...string) *testStream {
	p.t.Helper()
	ts := p.newStream(nil)
	st, err := p.s.Open(ts)
	if err != nil {
		p.t.Fatal(err)
	}
	ts.st = st
	st.WriteHeaders(fieldsOf(append(slices.Clone(get), more...)...), end)
	p.streams[st.ID()] = ts
	p.read()
	if len(p.frames) > 0 {
		p.frames = p.frames[1:]
	}
	return ts
}

func fieldsOf(kv ...string) []hpack.HeaderField {
	var f []hpack.HeaderField
	for i := 0; i < len(kv); i += 2 {
		f = append(f, hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
	return f
}

func (p *testPeer) newStream(st *Stream) *testStream {
	return &testStream{p: p, st: st, fields: map[HeadersKind][]hpack.HeaderField{}, consume: true}
}

func (p *testPeer) event(format string, args ...any) {
	p.events = append(p.events, fmt.Sprintf(format, args...))
}

func (p *testPeer) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	p.event("opened %d%s", st.ID(), endMark(end))
	ts := p.newStream(st)
	ts.fields[Response] = slices.Clone(f)
	ts.ended = end
	p.streams[st.ID()] = ts
	st.SetHandler(ts)
	if p.onOpen != nil {
		p.onOpen(ts, f, end)
	}
}

func (p *testPeer) HeadersTooLarge(st *Stream, f []hpack.HeaderField) {
	p.event("too large %d", st.ID())
	ts := p.newStream(st)
	p.streams[st.ID()] = ts
	st.SetHandler(ts)
	if p.onLarge != nil {
		p.onLarge(ts)
	}
}

func (p *testPeer) SettingsReceived() { p.event("settings") }
func (p *testPeer) GoAwayReceived(last uint32, code http2.ErrCode, debug []byte) {
	p.event("goaway %d %s %s", last, code, debug)
}
func (p *testPeer) CapacityFreed()                 { p.event("capacity") }
func (p *testPeer) PongReceived(rtt time.Duration) { p.event("pong %s", rtt) }
func (p *testPeer) OutputReady()                   { p.ready++ }

func (ts *testStream) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	ts.p.event("headers %d %s%s", st.ID(), k, endMark(end))
	ts.fields[k] = slices.Clone(f)
	ts.ended = ts.ended || end
}

func (ts *testStream) DataReceived(st *Stream, b []byte, end bool) {
	ts.p.event("data %d %d%s", st.ID(), len(b), endMark(end))
	if ts.ended {
		ts.p.t.Errorf("stream %d: data after the end", st.ID())
	}
	ts.body = append(ts.body, b...)
	ts.ended = end
	if ts.consume {
		st.Consumed(len(b))
	}
}

func (ts *testStream) DataSent(st *Stream, n int) { ts.sent += n }

func (ts *testStream) Closed(st *Stream, end StreamEnd) {
	ts.closed++
	if ts.closed > 1 {
		ts.p.t.Errorf("stream %d closed %d times", st.ID(), ts.closed)
	}
	ts.end = end
	ts.p.event("closed %d %s %s", st.ID(), end.Kind, end.Code)
}

// TestHarness shows a request and its response, from both sides.
func TestHarness(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, false)
		p.wantEvent("HEADERS opens a stream", "opened 1")
		p.data(1, true, 5)
		p.wantEvent("DATA is passed on", "data 1 5 END")
		st := p.streams[1]
		st.st.WriteHeaders(fieldsOf(":status", "200"), false)
		p.wantFrame("the response's headers", "HEADERS 1 :status=200")
		st.st.WriteData([]byte("hello"), false)
		p.wantFrame("the response's body", "DATA 1 5")
		st.st.WriteHeaders(fieldsOf("grpc-status", "0"), true)
		p.wantFrame("the trailers", "HEADERS 1 grpc-status=0 END")
		p.wantEvent("both sides have ended", "closed 1 complete NO_ERROR")
		p.wantAlive("after a whole RPC")
	})
	t.Run("client", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		ts := p.newStream(nil)
		st, err := p.s.Open(ts)
		if err != nil {
			t.Fatal(err)
		}
		st.WriteHeaders(fieldsOf(get...), true)
		p.wantFrame("the request", "HEADERS 1 :method=POST :scheme=http :path=/s/m :authority=s END")
		p.headers(1, false, ":status", "200")
		p.wantEvent("a response", "headers 1 response")
		p.data(1, false, 3)
		p.wantEvent("its body", "data 1 3")
		p.headers(1, true, "grpc-status", "0")
		p.wantEvent("its trailers", "headers 1 trailers END")
		p.wantEvent("both sides have ended", "closed 1 complete NO_ERROR")
	})
}
