// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

func setting(id http2.SettingID, v uint32) http2.Setting { return http2.Setting{ID: id, Val: v} }

// TestReceiveWindows: a stream's window comes back when its data was Consumed,
// the connection's at receipt.
func TestReceiveWindows(t *testing.T) {
	cfg := &Config{StreamWindow: 1000, ConnWindow: 100000, SessionBuffer: 1500}
	t.Run("a stream that is not consumed", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		p.data(1, false, 600)
		p.data(1, false, 400)
		p.wantIdle("nothing is given back")
		st := p.streams[1].st
		st.Consumed(499)
		p.wantIdle("less than half is not worth a frame")
		st.Consumed(1)
		p.wantFrame("half the window", "WINDOW_UPDATE 1 500")
		st.Consumed(10000)
		p.wantFrame("no more than was delivered", "WINDOW_UPDATE 1 500")
		wantWindowsWhole(t, p)
	})
	t.Run("beyond the stream's window", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		p.data(1, false, 1000)
		p.data(1, false, 1)
		p.wantFrame("caught", "RST_STREAM 1 FLOW_CONTROL_ERROR")
		p.wantAlive("others go on")
		wantWindowsWhole(t, p)
	})
	t.Run("beyond the connection's window", func(t *testing.T) {
		p := newPeer(t, Server, &Config{ConnWindow: 65535, SessionBuffer: 1})
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		for range 4 {
			p.data(1, false, 16000)
		}
		p.data(1, false, 1535)
		p.wantIdle("withheld")
		p.data(1, false, 1)
		p.wantFailed("caught", flow)
	})
	t.Run("the connection's window is withheld while too much is held", func(t *testing.T) {
		p := newPeer(t, Server, &Config{ConnWindow: 65535, SessionBuffer: 30000})
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		p.request(3, false)
		p.data(1, false, 16000)
		p.data(1, false, 13000)
		p.wantIdle("less than half")
		p.data(3, false, 4000)
		p.wantIdle("more than half, but more than 30000 are held")
		if p.s.Held() != 33000 {
			t.Errorf("held %d", p.s.Held())
		}
		p.streams[3].st.Consumed(4000)
		p.wantFrame("given back once less is held", "WINDOW_UPDATE 0 33000")
		wantWindowsWhole(t, p)
	})
	t.Run("all sessions of a pool hold too much", func(t *testing.T) {
		pool := &Pool{MaxHeld: 200000}
		cfg := &Config{ConnWindow: 65535, Pool: pool}
		var stalled []*testPeer
		for range 10 {
			p := newPeer(t, Server, cfg)
			p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
			p.request(1, false)
			p.flush()
			for range 16 { // as much as the session's windows take
				if n := int(min(16000, p.s.recvWindow, p.streams[1].st.recvWindow)); n > 0 {
					p.data(1, false, n)
				}
				p.flush()
			}
			p.frames = nil
			stalled = append(stalled, p)
		}
		if h := pool.Held(); h < 200000 || h > 200000+10*(65535+shareWhenFull) {
			t.Errorf("%d bytes are held", h)
		}
		p := newPeer(t, Server, cfg)
		p.request(1, false)
		for range 20 {
			p.data(1, false, 16000)
			p.flush()
		}
		if n := len(p.streams[1].body); n != 320000 || p.err != nil {
			t.Errorf("a session that holds nothing got %d bytes: %v", n, p.err)
		}
		for _, p := range stalled {
			p.streams[1].st.Reset(http2.ErrCodeCancel)
			wantWindowsWhole(t, p)
		}
		if pool.Held() != 0 {
			t.Errorf("%d bytes are held of nobody", pool.Held())
		}
	})
	t.Run("a stream that is closed gives its bytes back", func(t *testing.T) {
		p := newPeer(t, Server, &Config{ConnWindow: 65535, SessionBuffer: 30000})
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		for range 3 {
			p.data(1, false, 16000)
		}
		p.wantIdle("withheld")
		p.streams[1].st.Reset(http2.ErrCodeCancel)
		p.wantFrame("the reset", "RST_STREAM 1 CANCEL")
		p.wantFrame("nothing is held any more", "WINDOW_UPDATE 0 48000")
		if p.s.Held() != 0 {
			t.Errorf("held %d", p.s.Held())
		}
		p.data(1, true, 16000)
		p.data(1, true, 10000)
		p.wantIdle("DATA that crosses counts")
		wantWindowsWhole(t, p)
		p.data(1, true, 10000)
		p.wantFrame("and is given back", "WINDOW_UPDATE 0 36000")
	})
	t.Run("padding is given back inside", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		for range 2 {
			p.check(p.fr.WriteDataPadded(1, false, make([]byte, 10), make([]byte, 255)))
		}
		p.wantFrame("padding and its length", "WINDOW_UPDATE 1 512")
		if got := p.streams[1].body; len(got) != 20 {
			t.Errorf("got %d bytes", len(got))
		}
		wantWindowsWhole(t, p)
	})
	t.Run("until SETTINGS are acknowledged the peer has the initial window", func(t *testing.T) {
		p := newRawPeer(t, Server, cfg)
		p.frames = nil
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.out.WriteString(http2.ClientPreface)
		p.check(p.fr.WriteSettings())
		p.request(1, false)
		for range 4 {
			p.data(1, false, 16000)
		}
		p.wantFrame("not a fault", "SETTINGS ACK")
		p.check(p.fr.WriteSettingsAck())
		p.wantIdle("64000 are held, of 1500")
		p.streams[1].st.Consumed(63999)
		p.wantFrame("what is beyond is given back in part", "WINDOW_UPDATE 1 63999")
		p.wantFrame("the connection's", "WINDOW_UPDATE 0 64000")
		if st := p.streams[1].st; st.recvWindow != 999 {
			t.Errorf("window %d", st.recvWindow)
		}
	})
	t.Run("half-closed streams need no window", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onOpen = func(ts *testStream, _ []field, _ bool) { ts.consume = false }
		p.request(1, false)
		p.data(1, true, 1000)
		p.flush()
		p.streams[1].st.Consumed(1000)
		p.wantIdle("the peer will send no more")
		if p.s.Held() != 0 {
			t.Errorf("held %d", p.s.Held())
		}
	})
}

// TestSendWindows: what we send keeps to the peer's windows.
func TestSendWindows(t *testing.T) {
	t.Run("the stream's window", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 10)))
		p.request(1, true)
		p.wantFrame("the ACK", "SETTINGS ACK")
		ts := p.streams[1]
		ts.st.WriteHeaders(fieldsOf(":status", "200"), false)
		ts.st.WriteData(make([]byte, 25), false)
		ts.st.WriteHeaders(fieldsOf("grpc-status", "0"), true)
		p.wantFrame("headers", "HEADERS 1 :status=200")
		p.wantFrame("as much as the window takes", "DATA 1 10")
		p.wantIdle("the window is used up")
		if ts.sent != 10 || ts.st.Queued() != 15 {
			t.Errorf("sent %d, queued %d", ts.sent, ts.st.Queued())
		}
		p.check(p.fr.WriteWindowUpdate(1, 14))
		p.wantFrame("more", "DATA 1 14")
		p.wantIdle("one is left")
		p.check(p.fr.WriteWindowUpdate(1, 1))
		p.wantFrame("the last", "DATA 1 1")
		p.wantFrame("trailers wait for data", "HEADERS 1 grpc-status=0 END")
		p.events = p.events[1:]
		p.wantEvent("opened", "opened 1 END")
		p.wantEvent("done", "closed 1 complete NO_ERROR")
		if ts.sent != 25 {
			t.Errorf("sent %d", ts.sent)
		}
	})
	t.Run("SETTINGS make windows negative, and whole again", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 100)))
		p.request(1, true)
		p.wantFrame("the ACK", "SETTINGS ACK")
		st := p.streams[1].st
		st.WriteHeaders(fieldsOf(":status", "200"), false)
		st.WriteData(make([]byte, 60), false)
		p.wantFrame("headers", "HEADERS 1 :status=200")
		p.wantFrame("60 of 100", "DATA 1 60")
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 0)))
		p.wantFrame("the ACK", "SETTINGS ACK")
		st.WriteData(make([]byte, 10), true)
		p.wantIdle("the window is -60")
		p.check(p.fr.WriteWindowUpdate(1, 60))
		p.wantIdle("the window is 0")
		p.check(p.fr.WriteWindowUpdate(1, 4))
		p.wantFrame("the window is 4", "DATA 1 4")
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 1), setting(http2.SettingInitialWindowSize, 6)))
		p.wantFrame("the ACK", "SETTINGS ACK")
		p.wantFrame("SETTINGS bring the rest", "DATA 1 6 END")
		p.request(3, true)
		p.flush()
		p.streams[3].st.WriteData(make([]byte, 10), true)
		p.wantFrame("a new stream's window", "DATA 3 6")
	})
	t.Run("the connection's window is shared in turn", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		for id := uint32(1); id < 6; id += 2 {
			p.request(id, true)
		}
		p.flush()
		p.streams[1].st.WriteData(make([]byte, 65535+20000), true)
		p.streams[3].st.WriteData(make([]byte, 40000), true)
		p.streams[5].st.WriteData([]byte("x"), true)
		for range 3 {
			p.wantFrame("the connection's first window", "DATA 1 16384")
		}
		p.wantFrame("its rest", "DATA 1 16383")
		p.wantIdle("used up")
		p.check(p.fr.WriteWindowUpdate(1, 1<<20))
		p.wantIdle("a stream's window does not help")
		p.check(p.fr.WriteWindowUpdate(0, 16384+1))
		p.wantFrame("stream 3 was first to wait", "DATA 3 16384")
		p.wantFrame("then 5", "DATA 5 1 END")
		p.check(p.fr.WriteWindowUpdate(0, 1<<20))
		p.wantFrame("1's turn", "DATA 1 16384")
		p.wantFrame("3's turn", "DATA 3 16384")
		p.wantFrame("1's turn", "DATA 1 3616 END")
		p.wantFrame("3's turn", "DATA 3 7232 END")
	})
	t.Run("empty DATA needs no window", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 0)))
		p.request(1, true)
		p.wantFrame("the ACK", "SETTINGS ACK")
		p.streams[1].st.WriteData(nil, true)
		p.wantFrame("the end", "DATA 1 0 END")
	})
	t.Run("the end behind queued data", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 0)))
		p.request(1, true)
		p.wantFrame("the ACK", "SETTINGS ACK")
		p.streams[1].st.WriteData([]byte("abc"), false)
		p.streams[1].st.WriteData(nil, true)
		p.wantIdle("no window")
		p.check(p.fr.WriteWindowUpdate(1, 3))
		p.wantFrame("on the last frame", "DATA 1 3 END")
	})
	t.Run("MAX_FRAME_SIZE", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingMaxFrameSize, 1<<20), setting(http2.SettingInitialWindowSize, 1<<20)))
		p.request(1, true)
		p.wantFrame("the ACK", "SETTINGS ACK")
		p.streams[1].st.WriteData(make([]byte, 20000), true)
		p.wantFrame("one stream's turn stays short", "DATA 1 16384")
		p.wantFrame("the rest", "DATA 1 3616 END")
	})
	t.Run("a reset drops what waits", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, true)
		p.flush()
		st := p.streams[1].st
		st.WriteData(make([]byte, 100000), true)
		p.read()
		p.frames = nil
		p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		p.check(p.fr.WriteWindowUpdate(0, 1<<20))
		p.wantIdle("nothing is sent on a stream that is closed")
		if n := len(p.s.pool.chunks); n == 0 {
			t.Error("its chunks are not in the pool")
		}
	})
}

// TestOutputLimit: DATA waits on its stream while the transport takes nothing.
func TestOutputLimit(t *testing.T) {
	p := newPeer(t, Server, &Config{OutputLimit: 1000})
	p.check(p.fr.WriteSettings(setting(http2.SettingInitialWindowSize, 1<<20)))
	p.check(p.fr.WriteWindowUpdate(0, 1<<20))
	p.request(1, true)
	p.wantFrame("the ACK", "SETTINGS ACK")
	p.stuck = true
	ts := p.streams[1]
	ts.st.WriteHeaders(fieldsOf(":status", "200"), false)
	ts.st.WriteData(make([]byte, 600), false)
	ts.st.WriteData(make([]byte, 600), false)
	ts.st.WriteData(make([]byte, 600), false)
	if ts.sent != 1200 || ts.st.Queued() != 600 {
		t.Fatalf("sent %d, queued %d", ts.sent, ts.st.Queued())
	}
	p.ready = 0
	ts.st.WriteHeaders(fieldsOf("grpc-status", "0"), true)
	if p.ready != 0 {
		t.Error("OutputReady, though there was output")
	}
	// The transport takes it byte by byte.
	var got bytes.Buffer
	for out := p.s.Output(); out != nil; out = p.s.Output() {
		got.WriteByte(out[0])
		p.s.Wrote(p.now, 1)
	}
	p.in.Write(got.Bytes())
	p.stuck = false
	p.read()
	want := "HEADERS 1 :status=200|DATA 1 600|DATA 1 600|DATA 1 600|HEADERS 1 grpc-status=0 END"
	if s := strings.Join(p.frames, "|"); s != want {
		t.Fatalf("got %s", s)
	}
	p.frames = nil
	if ts.closed != 1 || ts.end.Kind != Complete {
		t.Errorf("end %v", ts.end)
	}
	p.wantAlive("once it was written")
	if p.ready != 1 {
		t.Errorf("OutputReady %d times for one answer", p.ready)
	}
	if p.s.out.buf != nil {
		t.Error("an idle session keeps an output buffer")
	}
}

// TestBackToBack moves random bodies both ways between two sessions, in pieces
// of any size, under small windows that change: all must arrive whole.
func TestBackToBack(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newPair(t, rnd)
		for range 30 {
			w.openRandom()
			w.step()
		}
		w.settle()
		for i, x := range w.exchanges {
			if !x.clientEnd || x.clientGot != x.respLen || x.serverGot != x.reqLen {
				t.Fatalf("seed %d: exchange %d: request %d of %d, response %d of %d, ended %t", seed, i,
					x.serverGot, x.reqLen, x.clientGot, x.respLen, x.clientEnd)
			}
		}
		if n := w.client.OpenStreams() + w.server.OpenStreams(); n != 0 {
			t.Fatalf("seed %d: %d streams are open", seed, n)
		}
		for _, s := range []*Session{w.client, w.server} {
			if s.held != 0 || s.recvWindow+s.connOwed != s.cfg.ConnWindow {
				t.Fatalf("seed %d: %s: held %d, window %d+%d", seed, s.role, s.held, s.recvWindow, s.connOwed)
			}
		}
	}
}
