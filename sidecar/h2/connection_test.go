// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestGoAwayReceived(t *testing.T) {
	t.Run("no open streams", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.check(p.fr.WriteGoAway(0, http2.ErrCodeNo, []byte("max_age")))
		p.wantEvent("told", "goaway 0 NO_ERROR max_age")
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrDraining) {
			t.Errorf("Open: %v", err)
		}
		if !p.s.Draining() || !p.s.Finished() {
			t.Error("nothing is left to do")
		}
		p.wantAlive("pings are answered still")
	})
	t.Run("streams above the last id were not processed", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		a, b, c := p.open(true), p.open(false), p.open(true)
		p.check(p.fr.WriteGoAway(3, http2.ErrCodeNo, nil))
		p.wantEvent("before GoAwayReceived", "closed 5 unprocessed NO_ERROR")
		p.wantEvent("then", "goaway 3 NO_ERROR ")
		if c.closed != 1 || a.closed+b.closed != 0 || p.s.OpenStreams() != 2 {
			t.Fatal("the wrong streams are closed")
		}
		p.headers(5, true, ":status", "200")
		p.wantIdle("what crosses on a declined stream is ignored")
		p.headers(1, true, ":status", "200")
		p.wantEvent("others end in peace", "headers 1 response END")
		p.wantEvent("others end in peace", "closed 1 complete NO_ERROR")
		b.st.WriteData([]byte("abc"), true)
		p.wantFrame("and may still be sent", "DATA 3 3 END")
		if p.s.Finished() {
			t.Error("finished with a stream open")
		}
		p.headers(3, true, ":status", "200")
		p.flush()
		if !p.s.Finished() {
			t.Error("not finished")
		}
	})
	t.Run("two steps", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.open(true)
		p.check(p.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
		p.wantEvent("refuses nothing yet", "goaway 2147483647 NO_ERROR ")
		p.check(p.fr.WriteGoAway(1, http2.ErrCodeNo, nil))
		p.wantEvent("now it does", "closed 3 unprocessed NO_ERROR")
		p.wantEvent("told again", "goaway 1 NO_ERROR ")
		p.check(p.fr.WriteGoAway(5, http2.ErrCodeNo, nil))
		p.wantEvent("an id that rises changes nothing", "goaway 5 NO_ERROR ")
		p.check(p.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
		p.wantEvent("a third one", "closed 1 unprocessed NO_ERROR")
	})
	t.Run("with an error", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.check(p.fr.WriteGoAway(1, calm, []byte("too_many_pings")))
		p.wantEvent("the code is passed on", "goaway 1 ENHANCE_YOUR_CALM too_many_pings")
		p.s.Abort(errors.New("EOF"))
		p.wantEvent("the stream may have been processed", "closed 1 connection lost INTERNAL_ERROR")
	})
	t.Run("a stream that has a response is not replayed", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.headers(1, false, ":status", "200")
		p.wantEvent("the response", "headers 1 response")
		p.check(p.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
		p.wantEvent("a liar", "closed 1 connection lost NO_ERROR")
	})
	t.Run("a stream without an id", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		ts := p.newStream(nil)
		st, err := p.s.Open(ts)
		p.check(err)
		ts.st = st
		p.check(p.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
		p.wantEvent("never left", "closed 0 unprocessed NO_ERROR")
		st.WriteHeaders(fieldsOf(get...), true)
		p.flush()
		p.wantIdle("nor will it")
	})
	t.Run("of a client", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, true)
		p.check(p.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
		p.wantEvent("the request", "opened 1 END")
		p.wantEvent("told", "goaway 0 NO_ERROR ")
		p.request(3, true)
		p.wantEvent("it concerns pushes alone", "opened 3 END")
	})
}

func TestShutdown(t *testing.T) {
	t.Run("a server, in two steps", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, true)
		p.flush()
		p.s.Shutdown(p.now, http2.ErrCodeNo, "going")
		p.s.Shutdown(p.now, http2.ErrCodeNo, "going")
		p.wantFrame("refuses nothing yet", "GOAWAY 2147483647 NO_ERROR")
		p.wantFrame("measures a round trip", "PING evendrai")
		p.wantIdle("once")
		p.request(3, true)
		p.flush()
		if p.streams[3] == nil {
			t.Fatal("a request that was on its way is lost")
		}
		p.check(p.fr.WritePing(true, [8]byte([]byte("evendrai"))))
		p.wantFrame("the real one", "GOAWAY 3 NO_ERROR")
		p.request(5, false)
		p.data(5, true, 10)
		p.wantIdle("a later request is ignored: the client knows")
		if p.streams[5] != nil {
			t.Fatal("a declined request was opened")
		}
		wantWindowsWhole(t, p)
		answered(p, 1)
		if p.s.Finished() {
			t.Error("finished with a stream open")
		}
		answered(p, 3)
		if !p.s.Finished() {
			t.Error("not finished")
		}
	})
	t.Run("a server whose client does not answer", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.s.Shutdown(p.now, http2.ErrCodeNo, "")
		p.wantFrame("first", "GOAWAY 2147483647 NO_ERROR")
		p.wantFrame("ping", "PING evendrai")
		p.advance(999 * time.Millisecond)
		p.wantIdle("not yet")
		p.advance(time.Millisecond)
		p.wantFrame("second", "GOAWAY 0 NO_ERROR")
		if !p.s.Finished() || !p.s.NextDeadline().IsZero() {
			t.Error("not finished")
		}
	})
	t.Run("a server, at once", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, true)
		p.flush()
		p.s.Shutdown(p.now, calm, "why")
		p.wantFrame("one step", "GOAWAY 1 ENHANCE_YOUR_CALM")
		p.wantFrame2(t, "streams go on", 1)
	})
	t.Run("a client", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.s.Shutdown(p.now, http2.ErrCodeNo, "idle")
		p.wantFrame("no pushes", "GOAWAY 0 NO_ERROR")
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrDraining) {
			t.Errorf("Open: %v", err)
		}
		p.headers(1, true, ":status", "200")
		p.wantEvent("streams end in peace", "headers 1 response END")
		if !p.s.Finished() {
			t.Error("not finished")
		}
	})
}

func (p *testPeer) wantFrame2(t *testing.T, why string, id uint32) {
	t.Helper()
	p.streams[id].st.WriteHeaders(fieldsOf(":status", "200"), true)
	p.wantFrame(why, "HEADERS 1 :status=200 END")
	if !p.s.Finished() {
		t.Error(why + ": not finished")
	}
}

func TestMaxConcurrentStreams(t *testing.T) {
	t.Run("ours", func(t *testing.T) {
		p := newPeer(t, Server, &Config{MaxConcurrentStreams: 2})
		p.request(1, true)
		p.request(3, true)
		p.request(5, false)
		p.data(5, true, 10)
		p.wantFrame("one too many", "RST_STREAM 5 REFUSED_STREAM")
		p.wantIdle("its body is ignored")
		if p.streams[5] != nil || p.s.OpenStreams() != 2 || p.s.Stats().StreamsRefused != 1 {
			t.Error("it was opened")
		}
		answered(p, 1)
		p.request(7, true)
		p.wantIdle("one has ended")
		if p.streams[7] == nil {
			t.Error("not opened")
		}
		wantWindowsWhole(t, p)
	})
	t.Run("the peer's", func(t *testing.T) {
		for _, limit := range []uint32{0, 1, 100} {
			p := newPeer(t, Client, nil)
			p.check(p.fr.WriteSettings(setting(http2.SettingMaxConcurrentStreams, limit)))
			p.wantFrame("the ACK", "SETTINGS ACK")
			p.wantEvent("told", "settings")
			if got := p.s.Capacity(); got != int(limit) {
				t.Fatalf("capacity %d, want %d", got, limit)
			}
			for range limit {
				p.open(true)
			}
			if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrNoCapacity) {
				t.Fatalf("limit %d: Open: %v", limit, err)
			}
			if limit > 0 {
				p.headers(1, true, ":status", "200")
				p.wantEvent("", "headers 1 response END")
				p.wantEvent("", "closed 1 complete NO_ERROR")
				p.wantEvent("a slot is free", "capacity")
				p.headers(3, true, ":status", "200")
				if limit > 1 {
					p.wantEvent("", "headers 3 response END")
					p.wantEvent("", "closed 3 complete NO_ERROR")
				}
				p.events = nil
			}
			if _, err := p.s.Open(p.newStream(nil)); (err == nil) != (limit > 0) {
				t.Fatalf("limit %d: Open: %v", limit, err)
			}
			if limit == 0 {
				p.check(p.fr.WriteSettings(setting(http2.SettingMaxConcurrentStreams, 1)))
				p.wantFrame("the ACK", "SETTINGS ACK")
				p.wantEvent("told", "settings")
				p.wantEvent("a slot is there", "capacity")
			}
		}
	})
	t.Run("lowered below what is open", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.open(true)
		p.check(p.fr.WriteSettings(setting(http2.SettingMaxConcurrentStreams, 1)))
		p.wantFrame("the ACK", "SETTINGS ACK")
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrNoCapacity) {
			t.Errorf("Open: %v", err)
		}
		p.headers(1, true, ":status", "200")
		p.flush()
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrNoCapacity) {
			t.Errorf("Open: %v", err)
		}
	})
	t.Run("before SETTINGS", func(t *testing.T) {
		p := newRawPeer(t, Client, &Config{AssumedMaxStreams: 2})
		p.frames = nil
		p.open(true)
		p.open(true)
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrNoCapacity) {
			t.Errorf("Open: %v", err)
		}
		p.check(p.fr.WriteSettings())
		p.wantEvent("established", "settings")
		p.wantEvent("there is no limit", "capacity")
	})
	t.Run("ids run out", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.s.nextID = maxStreamID
		ts := p.open(true)
		if ts.st.ID() != maxStreamID {
			t.Fatalf("id %d", ts.st.ID())
		}
		if _, err := p.s.Open(p.newStream(nil)); !errors.Is(err, ErrDraining) || !p.s.Draining() {
			t.Errorf("Open: %v", err)
		}
	})
	t.Run("a slot given back unused", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.check(p.fr.WriteSettings(setting(http2.SettingMaxConcurrentStreams, 1)))
		p.wantFrame("the ACK", "SETTINGS ACK")
		ts := p.newStream(nil)
		st, err := p.s.Open(ts)
		p.check(err)
		st.Reset(http2.ErrCodeCancel)
		p.wantIdle("the peer never knew it")
		if ts.closed != 1 || p.s.OpenStreams() != 0 {
			t.Error("not closed")
		}
		p.open(true)
	})
}

func TestAbort(t *testing.T) {
	p := newPeer(t, Client, nil)
	a := p.open(true)
	p.stuck = true
	b := p.newStream(nil)
	st, err := p.s.Open(b)
	p.check(err)
	b.st = st
	st.WriteHeaders(fieldsOf(get...), true)
	p.s.Wrote(p.now, len(p.s.Output())-1)
	cause := errors.New("read: connection reset by peer")
	p.s.Abort(cause)
	p.s.Abort(cause)
	if a.end.Kind != ConnectionLost || !errors.Is(a.end.Cause, cause) || a.closed != 1 {
		t.Errorf("a request that was sent: %v", a.end)
	}
	if b.end.Kind != Unprocessed || b.closed != 1 {
		t.Errorf("a request whose headers were not wholly written: %v", b.end)
	}
	if p.s.Output() != nil || !p.s.Finished() || p.s.OpenStreams() != 0 {
		t.Error("an aborted session has something to do")
	}
	if err := p.s.Receive(p.now, []byte("x")); !errors.Is(err, cause) {
		t.Errorf("Receive: %v", err)
	}
	if _, err := p.s.Open(a); !errors.Is(err, ErrDraining) {
		t.Errorf("Open: %v", err)
	}
	p.s.Ping(p.now)
	p.s.Shutdown(p.now, http2.ErrCodeNo, "")
	if p.s.Output() != nil {
		t.Error("an aborted session speaks")
	}
}

func TestTimers(t *testing.T) {
	t.Run("the preface", func(t *testing.T) {
		p := newRawPeer(t, Server, nil)
		p.frames = nil
		if d := p.s.NextDeadline().Sub(p.now); d != 10*time.Second {
			t.Fatalf("deadline in %v", d)
		}
		p.out.WriteString(http2.ClientPreface)
		p.flush()
		p.advance(10 * time.Second)
		p.wantFailed("a slow loris", http2.ErrCodeSettingsTimeout)
		var ce *ConnectionError
		if !errors.As(p.err, &ce) || ce.Blame != Local || p.s.Stats().Timeouts != 1 {
			t.Errorf("error %v", p.err)
		}
	})
	t.Run("SETTINGS are not acknowledged", func(t *testing.T) {
		p := newRawPeer(t, Client, &Config{SettingsTimeout: 3 * time.Second, PrefaceTimeout: -1})
		p.frames = nil
		p.check(p.fr.WriteSettings())
		p.wantFrame("the ACK", "SETTINGS ACK")
		p.advance(2 * time.Second)
		p.wantIdle("not yet")
		p.advance(time.Second)
		p.wantFailed("RFC 9113 section 6.5.3", http2.ErrCodeSettingsTimeout)
	})
	t.Run("a field block is not ended", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.advance(time.Minute)
		p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
		p.flush()
		p.advance(9 * time.Second)
		p.wantIdle("not yet")
		p.check(p.fr.WriteContinuation(1, false, nil))
		p.advance(time.Second)
		p.wantFailed("a slow loris", calm)
	})
	t.Run("no timer without a reason", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, false)
		p.flush()
		if d := p.s.NextDeadline(); !d.IsZero() {
			t.Errorf("deadline %v", d)
		}
	})
	t.Run("keepalive", func(t *testing.T) {
		p := newPeer(t, Client, &Config{KeepaliveInterval: time.Minute})
		p.advance(time.Hour)
		p.wantIdle("gRPC: no pings without streams")
		p.open(true)
		p.advance(59 * time.Second)
		p.advance(time.Second)
		p.wantFrame("the peer was silent", "PING evenkeel")
		p.advance(19 * time.Second)
		p.check(p.fr.WriteWindowUpdate(0, 1))
		p.wantIdle("a sign of life")
		p.advance(19 * time.Second)
		p.check(p.fr.WritePing(true, [8]byte([]byte("evenkeel"))))
		p.events = nil
		p.wantQuiet("no Ping was asked for")
		p.advance(time.Minute)
		p.wantFrame("again", "PING evenkeel")
		p.advance(20 * time.Second)
		p.wantFailed("it is dead", http2.ErrCodeNo)
		p.wantEvent("its streams are told", "closed 1 connection lost NO_ERROR")
	})
	t.Run("Ping", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.s.Ping(p.now)
		p.s.Ping(p.now)
		p.read()
		p.advance(3 * time.Millisecond)
		p.wantFrame("once", "PING evenkeel")
		p.wantIdle("once")
		p.check(p.fr.WritePing(true, [8]byte([]byte("evenkeel"))))
		p.wantEvent("answered", "pong 3ms")
		p.s.Ping(p.now)
		p.read()
		p.advance(20 * time.Second)
		p.wantFailed("unanswered", http2.ErrCodeNo)
	})
}

// TestOutputReady: the call comes with the first frame only.
func TestOutputReady(t *testing.T) {
	p := newPeer(t, Server, nil)
	p.request(1, false)
	p.flush()
	p.ready = 0
	st := p.streams[1].st
	st.WriteHeaders(fieldsOf(":status", "200"), false)
	st.WriteData([]byte("abc"), false)
	if p.ready != 1 {
		t.Errorf("%d calls", p.ready)
	}
	out := p.s.Output()
	p.s.Wrote(p.now, 3)
	st.WriteData([]byte("abc"), false)
	if p.ready != 1 {
		t.Errorf("%d calls with output waiting", p.ready)
	}
	p.in.Write(out[:3])
	p.read()
	st.WriteData([]byte("abc"), false)
	if p.ready != 2 {
		t.Errorf("%d calls", p.ready)
	}
}

func TestStrings(t *testing.T) {
	err := &ConnectionError{Blame: Peer, Code: calm, Reason: "why"}
	if got := err.Error(); got != "h2: connection error ENHANCE_YOUR_CALM (peer): why" {
		t.Error(got)
	}
	se := &StreamError{Blame: Local, StreamID: 3, Code: calm, Reason: "why"}
	if got := se.Error(); got != "h2: stream 3 error ENHANCE_YOUR_CALM (local): why" {
		t.Error(got)
	}
	if Server.String() != "server" || Client.String() != "client" {
		t.Error("roles")
	}
	for a := range numAbuse {
		if a.String() == "" || strings.Contains(a.String(), " ") {
			t.Errorf("abuse %d is no label", a)
		}
	}
}
