// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fuzzWorld is a session under an owner and a peer that do anything. What must
// hold whatever they do is in check.
type fuzzWorld struct {
	t       *testing.T
	s       *Session
	now     time.Time
	out     bytes.Buffer // what the session wrote
	open    map[*Stream]*fuzzStream
	streams []*fuzzStream // in order of opening
	refuse  bool
	lastErr error
}

type fuzzStream struct {
	w      *fuzzWorld
	st     *Stream
	closed bool
	ended  bool
	given  int // to WriteData
	sent   int
	owe    int // received and not Consumed
}

func newFuzzWorld(t *testing.T, role Role) *fuzzWorld {
	w := &fuzzWorld{t: t, now: time.Unix(1e9, 0), open: map[*Stream]*fuzzStream{}}
	w.s = New(role, &Config{
		StreamWindow: 70000, ConnWindow: 80000, SessionBuffer: 30000, OutputLimit: 5000,
		MaxConcurrentStreams: 5, MaxHeaderListSize: 2000, KeepaliveInterval: time.Second,
	}, w, w.now)
	return w
}

func (w *fuzzWorld) receive(b []byte) {
	piece := bytes.Clone(b)
	err := w.s.Receive(w.now, piece)
	for i := range piece {
		piece[i] = 0xdd
	}
	if w.lastErr != nil && err == nil {
		w.t.Fatal("an error that was final is forgotten")
	}
	w.lastErr = err
}

func (w *fuzzWorld) write(n int) {
	if out := w.s.Output(); out != nil {
		n = min(n, len(out))
		w.out.Write(out[:n])
		w.s.Wrote(w.now, n)
	}
}

// check ends the session and holds it to its promises.
func (w *fuzzWorld) check() {
	s := w.s
	if s.err == nil {
		if got := s.recvWindow + s.connOwed + int32(0); got != s.cfg.ConnWindow && s.recv.data.left == 0 && !s.recv.data.open {
			w.t.Fatalf("the connection's window is %d of %d", got, s.cfg.ConnWindow)
		}
		held := int64(0)
		for _, st := range s.streams.all(func(*Stream) bool { return true }) {
			held += int64(st.held)
			if st.held < 0 || st.owed < 0 || st.queue.n < 0 {
				w.t.Fatalf("stream %d: held %d, owed %d, queued %d", st.id, st.held, st.owed, st.queue.n)
			}
			inFrame := int32(0)
			if d := &s.recv.data; d.st == st {
				inFrame = int32(d.left)
			}
			if got := st.recvWindow + st.owed + st.held + inFrame; !st.recvEnd && !st.ignoreRecv && got != s.recvInitial {
				w.t.Fatalf("stream %d: window %d of %d", st.id, got, s.recvInitial)
			}
			fs := w.open[st]
			if fs == nil && !st.ignoreRecv {
				w.t.Fatalf("stream %d is open and nobody's", st.id)
			}
			if fs != nil && (fs.given-fs.sent != st.queue.n || fs.owe != int(st.held)) {
				w.t.Fatalf("stream %d: given %d, sent %d, queued %d; owes %d, held %d", st.id, fs.given, fs.sent, st.queue.n, fs.owe, st.held)
			}
		}
		if held != s.held {
			w.t.Fatalf("held %d, of the streams %d", s.held, held)
		}
	}
	if n := s.out.len(); n > s.cfg.OutputLimit+s.cfg.ControlLimit+1<<20 {
		w.t.Fatalf("%d bytes of output", n)
	}
	w.write(1 << 30)
	s.Abort(io.EOF)
	w.write(1 << 30)
	for i, fs := range w.streams {
		if !fs.closed {
			w.t.Fatalf("stream %d was never closed", i)
		}
	}
	if s.OpenStreams() != 0 || s.held != 0 {
		w.t.Fatalf("%d streams are open, %d bytes held", s.OpenStreams(), s.held)
	}
	w.checkOutput()
}

// checkOutput has x/net read what the session wrote.
func (w *fuzzWorld) checkOutput() {
	out := w.out.Bytes()
	if w.s.role == Client {
		if len(out) < len(http2.ClientPreface) {
			return
		}
		out = out[len(http2.ClientPreface):]
	}
	fr := http2.NewFramer(io.Discard, bytes.NewReader(out))
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	ended := map[uint32]bool{}
	for {
		f, err := fr.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		if _, ok := errors.AsType[http2.StreamError](err); ok {
			continue // the owner wrote what x/net calls malformed
		}
		if err != nil {
			w.t.Fatalf("x/net does not take the output: %v (%v)", err, fr.ErrorDetail())
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.DataFrame:
			if ended[id] {
				w.t.Fatalf("DATA on stream %d after its end", id)
			}
			ended[id] = f.StreamEnded()
		case *http2.MetaHeadersFrame:
			if ended[id] {
				w.t.Fatalf("HEADERS on stream %d after its end", id)
			}
			ended[id] = f.StreamEnded()
		case *http2.RSTStreamFrame:
			ended[id] = true
		}
	}
}

func (w *fuzzWorld) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	if w.refuse {
		return
	}
	fs := &fuzzStream{w: w, st: st, ended: end}
	w.open[st] = fs
	w.streams = append(w.streams, fs)
	st.SetHandler(fs)
}

func (w *fuzzWorld) HeadersTooLarge(st *Stream, f []hpack.HeaderField) {
	if !w.refuse {
		st.WriteHeaders(fieldsOf(":status", "431"), true)
	}
}
func (w *fuzzWorld) SettingsReceived()                            {}
func (w *fuzzWorld) GoAwayReceived(uint32, http2.ErrCode, []byte) {}
func (w *fuzzWorld) CapacityFreed()                               {}
func (w *fuzzWorld) PongReceived(time.Duration)                   {}
func (w *fuzzWorld) OutputReady() {
	if w.s != nil && w.s.out.len() == 0 {
		w.t.Fatal("OutputReady without output")
	}
}

func (fs *fuzzStream) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	fs.alive()
	fs.ended = fs.ended || end
}

func (fs *fuzzStream) DataReceived(st *Stream, p []byte, end bool) {
	fs.alive()
	if fs.ended {
		fs.w.t.Fatal("data after the end")
	}
	fs.ended = end
	fs.owe += len(p)
}
func (fs *fuzzStream) DataSent(st *Stream, n int) { fs.sent += n }
func (fs *fuzzStream) Closed(st *Stream, end StreamEnd) {
	fs.alive()
	fs.closed = true
	delete(fs.w.open, st)
	if end.Kind == Complete && fs.given != fs.sent && end.Code == 0 && fs.w.s.role == Server && st.sendEnd {
		fs.w.t.Fatalf("complete with %d bytes of %d sent", fs.sent, fs.given)
	}
}

func (fs *fuzzStream) alive() {
	if fs.closed {
		fs.w.t.Fatal("a call after Closed")
	}
}

// FuzzReceive gives a session any bytes, behind a proper start.
func FuzzReceive(f *testing.F) {
	for _, seed := range fuzzSeeds() {
		f.Add(false, byte(0), seed)
		f.Add(true, byte(3), seed)
	}
	f.Fuzz(func(t *testing.T, client bool, cut byte, data []byte) {
		w := newFuzzWorld(t, Server)
		if client {
			w = newFuzzWorld(t, Client)
			for range 3 {
				w.openOne(true)
			}
		} else {
			w.receive([]byte(http2.ClientPreface))
		}
		var start []byte
		start = appendFrameHeader(start, 0, http2.FrameSettings, 0, 0)
		start = appendFrameHeader(start, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
		w.receive(start)
		for len(data) > 0 {
			n := len(data)
			if cut > 0 {
				n = min(n, int(cut))
			}
			w.receive(data[:n])
			data = data[n:]
		}
		w.check()
	})
}

func (w *fuzzWorld) openOne(end bool) {
	fs := &fuzzStream{w: w}
	st, err := w.s.Open(fs)
	if err != nil {
		return
	}
	fs.st = st
	w.open[st] = fs
	w.streams = append(w.streams, fs)
	st.WriteHeaders(fieldsOf(get...), end)
}

// FuzzSession has the input choose what peer and owner do, in frames.
func FuzzSession(f *testing.F) {
	f.Add(false, []byte{0, 1, 1, 0, 3, 1, 9, 9, 20, 1, 7, 22, 30, 60})
	f.Add(true, []byte{21, 1, 21, 0, 2, 1, 4, 4, 200, 30, 9, 3, 1, 100, 22, 0, 23, 1, 60})
	f.Add(false, []byte{0, 1, 1, 0, 3, 0, 1, 5, 1, 1, 20, 0, 20, 1, 22, 0, 12, 0, 5, 0, 0, 0, 1, 25, 9, 9, 60, 8, 1, 0, 0, 7, 60})
	f.Fuzz(func(t *testing.T, client bool, ops []byte) {
		if len(ops) <= 2000 {
			runOps(t, client, ops)
		}
	})
}

// TestRandomSessions is FuzzSession without a fuzzer: many more runs in a second.
func TestRandomSessions(t *testing.T) {
	for seed := range uint64(600) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		ops := make([]byte, 50+rnd.IntN(600))
		for i := range ops {
			if ops[i] = byte(rnd.IntN(256)); i%2 == 0 {
				ops[i] = []byte{0, 1, 3, 4, 7, 20, 22, 24, 25, 28, 30, 31, 30, 21, 23, ops[i]}[rnd.IntN(16)]
			}
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { runOps(t, seed%2 == 0, ops) }) {
			return
		}
	}
}

// runOps lets the bytes of ops choose what peer and owner do.
func runOps(t *testing.T, client bool, ops []byte) {
	role := Server
	if client {
		role = Client
	}
	w := newFuzzWorld(t, role)
	var in bytes.Buffer
	fr := http2.NewFramer(&in, nil)
	fr.AllowIllegalWrites = true
	if !client {
		in.WriteString(http2.ClientPreface)
	}
	_ = fr.WriteSettings()
	_ = fr.WriteSettingsAck()
	var hbuf bytes.Buffer
	henc := hpack.NewEncoder(&hbuf)
	next := func() int {
		if len(ops) == 0 {
			return 0
		}
		b := ops[0]
		ops = ops[1:]
		return int(b)
	}
	block := func(kind int) []byte {
		hbuf.Reset()
		kv := get
		switch kind % 6 {
		case 1:
			kv = []string{":status", "200"}
		case 2:
			kv = []string{"grpc-status", "0"}
		case 3:
			kv = []string{":status", "103"}
		case 4:
			kv = with("content-length", "5")
		case 5:
			kv = with("x-big", string(bytes.Repeat([]byte("\x7f"), 1500+kind*10)))
		}
		for i := 0; i < len(kv); i += 2 {
			_ = henc.WriteField(field{Name: kv[i], Value: kv[i+1]})
		}
		return hbuf.Bytes()
	}
	stream := func() *fuzzStream {
		if len(w.streams) == 0 {
			return nil
		}
		fs := w.streams[next()%len(w.streams)]
		if fs.closed {
			return nil
		}
		return fs
	}
	id := func() uint32 { return uint32(next()) % 32 }
	for len(ops) > 0 {
		switch op := next(); op % 32 {
		case 0, 1:
			b := block(next())
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id(), EndStream: op%2 == 1, EndHeaders: true, BlockFragment: b})
		case 2:
			b := block(next())
			cut := next() % (len(b) + 1)
			sid := id()
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: sid, BlockFragment: b[:cut], PadLength: byte(next())})
			_ = fr.WriteContinuation(sid, true, b[cut:])
		case 3, 4:
			_ = fr.WriteData(id(), op%2 == 0, make([]byte, next()*80))
		case 5:
			_ = fr.WriteDataPadded(id(), next()%2 == 0, make([]byte, next()), make([]byte, next()%256))
		case 6:
			_ = fr.WriteRSTStream(id(), http2.ErrCode(next()%16))
		case 7:
			_ = fr.WriteWindowUpdate(id(), uint32(next()*next()))
		case 8:
			_ = fr.WriteSettings(setting(http2.SettingInitialWindowSize, uint32(next()*next())))
		case 9:
			_ = fr.WriteSettings(setting(http2.SettingHeaderTableSize, uint32(next()*next())))
		case 10:
			_ = fr.WriteSettings(setting(http2.SettingMaxConcurrentStreams, uint32(next()%8)))
		case 11:
			_ = fr.WritePing(next()%2 == 0, [8]byte([]byte("evenkeel")))
		case 12:
			_ = fr.WriteGoAway(id(), http2.ErrCode(next()%16), nil)
		case 13:
			typ, flags, sid, n := next()%12, next(), id(), next()
			_ = fr.WriteRawFrame(http2.FrameType(typ), http2.Flags(flags), sid, ops[:min(len(ops), n)])
		case 14:
			_ = fr.WritePing(true, [8]byte([]byte("evendrai")))
		case 15:
			henc.SetMaxDynamicTableSize(uint32(next() * 16))
		case 16:
			w.refuse = next()%2 == 0
		case 17:
			w.now = w.now.Add(time.Duration(next()) * 20 * time.Millisecond)
			w.lastErr = w.s.Tick(w.now)
		case 18:
			w.s.Ping(w.now)
		case 19:
			w.s.Shutdown(w.now, http2.ErrCode(next()%2), "fuzz")
		case 20, 21:
			if client {
				w.openOne(op%2 == 0)
			} else if fs := stream(); fs != nil {
				fs.st.WriteHeaders(fieldsOf(":status", "200"), op%2 == 0)
			}
		case 22, 23:
			if fs := stream(); fs != nil && !fs.st.SendClosed() && w.s.err == nil {
				n := next() * 100
				if fs.st.ID() != 0 {
					fs.given += n
				}
				fs.st.WriteData(make([]byte, n), op%2 == 0)
			}
		case 24:
			if fs := stream(); fs != nil {
				fs.st.WriteHeaders(fieldsOf("grpc-status", "0"), true)
			}
		case 25:
			if fs := stream(); fs != nil {
				n := min(next()*300, fs.owe)
				fs.owe -= n
				fs.st.Consumed(n)
			}
		case 26:
			if fs := stream(); fs != nil {
				fs.st.Reset(http2.ErrCode(next() % 16))
			}
		case 27:
			if client {
				fs := &fuzzStream{w: w}
				if st, err := w.s.Open(fs); err == nil {
					fs.st = st
					w.open[st] = fs
					w.streams = append(w.streams, fs)
				}
			}
		case 28, 29:
			w.write(1 + next()*100)
		default:
			n := max(1, next()*20)
			for in.Len() > 0 {
				w.receive(in.Next(n))
			}
		}
	}
	w.receive(in.Bytes())
	w.check()
}

// fuzzSeeds are frames of every kind.
func fuzzSeeds() [][]byte {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	var hbuf bytes.Buffer
	henc := hpack.NewEncoder(&hbuf)
	for i := 0; i < len(get); i += 2 {
		_ = henc.WriteField(field{Name: get[i], Value: get[i+1]})
	}
	var seeds [][]byte
	take := func() {
		seeds = append(seeds, bytes.Clone(b.Bytes()))
	}
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: hbuf.Bytes(), EndHeaders: true})
	_ = fr.WriteDataPadded(1, false, []byte("hello"), make([]byte, 3))
	take()
	_ = fr.WriteWindowUpdate(1, 10)
	_ = fr.WriteWindowUpdate(0, 10)
	_ = fr.WritePriority(1, http2.PriorityParam{StreamDep: 3})
	_ = fr.WritePing(false, [8]byte{})
	take()
	_ = fr.WriteSettings(setting(http2.SettingInitialWindowSize, 100), setting(http2.SettingHeaderTableSize, 0), setting(http2.SettingMaxFrameSize, 20000))
	_ = fr.WriteGoAway(1, 0, []byte("debug"))
	_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
	take()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte("\x83\x86"), PadLength: 4})
	_ = fr.WriteContinuation(3, true, []byte("\x84\x41\x01a"))
	_ = fr.WriteRawFrame(0x55, 1, 3, []byte("unknown"))
	take()
	b.Reset()
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\x88"), EndHeaders: true})
	_ = fr.WriteData(1, false, []byte("response"))
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\x00\x0bgrpc-status\x010"), EndHeaders: true, EndStream: true})
	take()
	return seeds
}
