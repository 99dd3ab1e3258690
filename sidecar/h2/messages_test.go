// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// section8 is a field section, and whether RFC 9113 section 8 takes it.
type section8 struct {
	rule string
	kv   []string
	ok   bool
}

func withoutField(name string) []string {
	var kv []string
	for i := 0; i < len(get); i += 2 {
		if get[i] != name {
			kv = append(kv, get[i], get[i+1])
		}
	}
	return kv
}

func with(kv ...string) []string { return append(append([]string(nil), get...), kv...) }

func TestRequests(t *testing.T) {
	for _, m := range []section8{
		{"a plain request", get, true},
		{"without :authority", withoutField(":authority"), true},
		{"8.3.1 without :method", withoutField(":method"), false},
		{"8.3.1 without :scheme", withoutField(":scheme"), false},
		{"8.3.1 without :path", withoutField(":path"), false},
		{"8.3.1 an empty :path", append(withoutField(":path"), ":path", ""), false},
		{"8.3.1 a relative :path", append(withoutField(":path"), ":path", "a/b"), false},
		{"8.3.1 :path *", append(withoutField(":path"), ":path", "*"), true},
		{"8.3 :method twice", append([]string{":method", "GET"}, get...), false},
		{"8.3 :scheme twice", append([]string{":scheme", "http"}, get...), false},
		{"8.3 :path twice", append([]string{":path", "/"}, get...), false},
		{"8.3 :authority twice", append([]string{":authority", "a"}, get...), false},
		{"8.3 a pseudo-header field behind another", append([]string{"a", "b"}, get...), false},
		{"8.3 the last pseudo-header field behind another", append(append([]string(nil), get[:6]...), "a", "b", ":authority", "s"), false},
		{"8.3 an unknown pseudo-header field", with(":test", "x"), false},
		{"8.3 :protocol, which we do not offer", with(":protocol", "websocket"), false},
		{"8.3 :status in a request", with(":status", "200"), false},
		{"8.5 CONNECT", []string{":method", "CONNECT", ":authority", "a:1"}, true},
		{"8.5 CONNECT with :path", []string{":method", "CONNECT", ":authority", "a:1", ":path", "/"}, false},
		{"8.5 CONNECT without :authority", []string{":method", "CONNECT"}, false},
		{"8.2.1 upper case", with("X-Test", "a"), false},
		{"8.2.1 an empty name", with("", "a"), false},
		{"8.2.1 a space in a name", with("a b", "a"), false},
		{"8.2.1 a colon in a name", with("a:b", "a"), false},
		{"8.2.1 a byte above 0x7f in a name", with("a\x80", "a"), false},
		{"8.2.1 DEL in a name", with("a\x7f", "a"), false},
		{"8.2.1 NUL in a value", with("a", "a\x00b"), false},
		{"8.2.1 LF in a value", with("a", "0123456789\n"), false},
		{"8.2.1 CR in a value", with("a", "\r0123456789"), false},
		{"8.2.1 CR in the middle of a long value", with("a", "0123456789\r0123456789"), false},
		{"8.2.1 a tab in a value", with("a", "a\tb"), true},
		{"8.2.1 UTF-8 in a value", with("a", "über 0123456789"), true},
		{"8.2.1 control characters that are not forbidden", with("a", "\x01\x0b\x0c\x0e\x1f\x7f\x80"), true},
		{"8.2.2 connection", with("connection", "close"), false},
		{"8.2.2 proxy-connection", with("proxy-connection", "close"), false},
		{"8.2.2 keep-alive", with("keep-alive", "1"), false},
		{"8.2.2 transfer-encoding", with("transfer-encoding", "chunked"), false},
		{"8.2.2 upgrade", with("upgrade", "h2c"), false},
		{"8.2.2 te: trailers", with("te", "trailers"), true},
		{"8.2.2 te: gzip", with("te", "gzip"), false},
		{"8.1.1 a content-length that is no number", with("content-length", "x"), false},
		{"8.1.1 a negative content-length", with("content-length", "-1"), false},
		{"8.1.1 a content-length with a plus", with("content-length", "+0"), false},
		{"8.1.1 a content-length beyond all bounds", with("content-length", strings.Repeat("9", 30)), false},
		{"8.1.1 two content-lengths that differ", with("content-length", "0", "content-length", "1"), false},
		{"8.1.1 two content-lengths that agree", with("content-length", "0", "content-length", "0"), true},
		{"8.1.1 a content-length without a body", with("content-length", "1"), false},
		{"gRFC A41: host beside :authority is for the server to drop", with("host", "other"), true},
	} {
		t.Run(m.rule, func(t *testing.T) {
			p := newPeer(t, Server, nil)
			p.headers(1, true, m.kv...)
			p.flush()
			if m.ok {
				p.wantEvent(m.rule, "opened 1 END")
			} else {
				p.wantFrame(m.rule, "RST_STREAM 1 PROTOCOL_ERROR")
				p.wantQuiet("a malformed request is not passed on")
			}
			p.wantAlive(m.rule)
			// The table is in step still.
			p.request(3, true, "x-after", "1")
			p.flush()
			if f := p.streams[3].fields[Response]; f[len(f)-1].Name != "x-after" {
				t.Fatalf("got %v", f)
			}
		})
	}
}

func TestResponses(t *testing.T) {
	for _, m := range []section8{
		{"a plain response", []string{":status", "200", "a", "b"}, true},
		{"8.3.2 no :status", []string{"a", "b"}, false},
		{"8.3.2 an empty section", nil, false},
		{"8.3.2 :status twice", []string{":status", "200", ":status", "200"}, false},
		{"8.3.2 :status of two digits", []string{":status", "20"}, false},
		{"8.3.2 :status of four digits", []string{":status", "2000"}, false},
		{"8.3.2 :status that is no number", []string{":status", "2x0"}, false},
		{"8.3.2 :status below 100", []string{":status", "099"}, false},
		{"8.3.2 a request's pseudo-header field", []string{":status", "200", ":path", "/"}, false},
		{"8.3 :status behind a field", []string{"a", "b", ":status", "200"}, false},
		{"8.6 status 101", []string{":status", "101"}, false},
		{"8.2.2 connection", []string{":status", "200", "connection", "close"}, false},
		{"8.2.1 upper case", []string{":status", "200", "X", "close"}, false},
		{"status 999", []string{":status", "999"}, true},
		{"8.1.1 content-length without a body", []string{":status", "200", "content-length", "5"}, false},
		{"8.1.1 content-length of a 304", []string{":status", "304", "content-length", "5"}, true},
	} {
		t.Run(m.rule, func(t *testing.T) {
			p := newPeer(t, Client, nil)
			p.open(true)
			p.headers(1, true, m.kv...)
			if m.ok {
				p.wantEvent(m.rule, "headers 1 response END")
				p.wantEvent(m.rule, "closed 1 complete NO_ERROR")
			} else {
				p.wantFrame(m.rule, "RST_STREAM 1 PROTOCOL_ERROR")
				p.wantEvent(m.rule, "closed 1 reset locally PROTOCOL_ERROR")
				var se *StreamError
				if !errors.As(p.streams[1].end.Cause, &se) || se.Blame != Peer || se.Reason == "" {
					t.Fatalf("cause %v, want the peer's fault", p.streams[1].end.Cause)
				}
			}
			p.wantAlive(m.rule)
		})
	}
	t.Run("8.1.1 content-length of a response to HEAD", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		ts := p.newStream(nil)
		st, err := p.s.Open(ts)
		p.check(err)
		p.streams[1] = ts
		st.WriteHeaders(fieldsOf(":method", "HEAD", ":scheme", "http", ":path", "/"), true)
		p.headers(1, true, ":status", "200", "content-length", "77")
		p.wantEvent("its body is not sent", "headers 1 response END")
	})
	t.Run("8.1 informational responses", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.headers(1, false, ":status", "103", "link", "x")
		p.wantEvent("first", "headers 1 informational")
		p.headers(1, false, ":status", "100")
		p.wantEvent("second", "headers 1 informational")
		p.headers(1, false, ":status", "200")
		p.wantEvent("final", "headers 1 response")
		p.headers(1, true)
		p.wantEvent("trailers may be empty", "headers 1 trailers END")
	})
	t.Run("informational responses without end", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		for range maxInformational + 1 {
			p.headers(1, false, ":status", "103")
		}
		p.wantFrame("bounded", "RST_STREAM 1 ENHANCE_YOUR_CALM")
	})
}

func TestBodies(t *testing.T) {
	for _, m := range []struct {
		rule   string
		length string
		frames []int
		ok     bool
	}{
		{"no content-length", "", []int{1, 2, 3}, true},
		{"as long as said", "6", []int{1, 2, 3}, true},
		{"shorter", "7", []int{1, 2, 3}, false},
		{"longer", "5", []int{1, 2, 3}, false},
		{"longer at once", "1", []int{4}, false},
		{"longer before the end", "1", []int{2, 5}, false},
		{"none, as said", "0", []int{0}, true},
		{"shorter, ended by an empty frame", "7", []int{1, 2, 0}, false},
		{"longer by padded DATA", "5", []int{1, 5, 1}, false},
		{"ended by padding alone", "1", []int{1, 0}, true},
		{"shorter, ended by padding alone", "2", []int{1, 0}, false},
		{"some, though none was said", "0", []int{1}, false},
	} {
		for _, cut := range []int{0, 1} {
			t.Run(fmt.Sprint(m.rule, cut), func(t *testing.T) {
				p := newPeer(t, Server, nil)
				p.cut = cut
				kv := []string(nil)
				if m.length != "" {
					kv = []string{"content-length", m.length}
				}
				p.request(1, false, kv...)
				p.flush()
				for i, n := range m.frames {
					if i%2 == 1 {
						p.check(p.fr.WriteDataPadded(1, i == len(m.frames)-1, make([]byte, n), make([]byte, 9)))
					} else {
						p.data(1, i == len(m.frames)-1, n)
					}
					p.flush()
				}
				if m.ok {
					p.wantIdle(m.rule)
					if ts := p.streams[1]; !ts.ended || ts.closed != 0 {
						t.Fatal("the body did not end")
					}
				} else {
					p.wantFrame(m.rule, "RST_STREAM 1 PROTOCOL_ERROR")
					if ts := p.streams[1]; ts.ended || ts.closed != 1 {
						t.Fatal("a malformed body was passed on as whole")
					}
				}
				p.wantAlive(m.rule)
				wantWindowsWhole(t, p)
			})
		}
	}
	t.Run("a stream that is reset while its DATA comes in", func(t *testing.T) {
		for _, padding := range []int{0, 50} {
			p := newPeer(t, Server, nil)
			p.request(1, false)
			p.flush()
			if padding > 0 {
				p.check(p.fr.WriteDataPadded(1, true, make([]byte, 1000), make([]byte, padding)))
			} else {
				p.data(1, true, 1000)
			}
			frame := bytes.Clone(p.out.Bytes())
			p.out.Reset()
			p.out.Write(frame[:500])
			p.flush()
			if n := len(p.streams[1].body); n < 400 {
				t.Fatalf("%d bytes came: DATA waits for its whole frame", n)
			}
			p.streams[1].st.Reset(http2.ErrCodeCancel)
			p.out.Write(frame[500:])
			p.request(5, true)
			p.wantFrame("the reset", "RST_STREAM 1 CANCEL")
			p.wantAlive("its rest is dropped")
			if p.streams[5] == nil || p.streams[1].closed != 1 || p.streams[1].ended {
				t.Error("the frames behind it are lost")
			}
			wantWindowsWhole(t, p)
		}
	})
	t.Run("trailers end a body that is too short", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		p.open(true)
		p.headers(1, false, ":status", "200", "content-length", "5")
		p.data(1, false, 4)
		p.headers(1, true, "grpc-status", "0")
		p.wantFrame("malformed", "RST_STREAM 1 PROTOCOL_ERROR")
	})
}

// wantWindowsWhole: whatever was received is given back, or owed.
func wantWindowsWhole(t *testing.T, p *testPeer) {
	t.Helper()
	s := p.s
	if got := s.recvWindow + s.connOwed; got != s.cfg.ConnWindow {
		t.Errorf("the connection's window leaks: %d of %d", got, s.cfg.ConnWindow)
	}
	held := int64(0)
	for _, st := range s.streams.all(func(*Stream) bool { return true }) {
		held += int64(st.held)
		if got := st.recvWindow + st.owed + st.held; !st.recvEnd && !st.ignoreRecv && got != s.recvInitial {
			t.Errorf("stream %d's window leaks: %d of %d", st.id, got, s.recvInitial)
		}
	}
	if held != s.held {
		t.Errorf("the session counts %d held bytes, its streams %d", s.held, held)
	}
}

// TestPaddedValue: white space around a value is not passed on, and does not put
// the tables out of step.
func TestPaddedValue(t *testing.T) {
	p := newPeer(t, Client, nil)
	for i := range 3 {
		id := uint32(2*i + 1)
		p.open(true)
		p.headers(id, false, ":status", "200")
		p.headers(id, true, "grpc-status", "2", "grpc-message", " what: ", "x-tab", "\t")
		p.flush()
		f := p.streams[id].fields[Trailers]
		if f[1].Value != "what:" || f[2].Value != "" {
			t.Fatalf("got %q", f)
		}
	}
}

func TestHeadersTooLarge(t *testing.T) {
	big := []string{"a", strings.Repeat("x", 500), "b", strings.Repeat("y", 600), "c", strings.Repeat("z", 5000)}
	cfg := &Config{MaxHeaderListSize: 1000}
	t.Run("a request is answered", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onLarge = func(ts *testStream) {
			ts.st.WriteHeaders(fieldsOf(":status", "200", "grpc-status", "8"), true)
		}
		p.request(1, false, big...)
		p.wantEvent("told apart", "too large 1")
		p.wantFrame("the relay's answer", "HEADERS 1 :status=200 grpc-status=8 END")
		p.wantFrame("the rest is not wanted", "RST_STREAM 1 NO_ERROR")
		p.wantEvent("no fault of ours", "closed 1 complete NO_ERROR")
		p.data(1, true, 100)
		p.wantAlive("DATA that crosses")
		wantWindowsWhole(t, p)
		p.request(3, true, "d", "e", "b", strings.Repeat("y", 600))
		p.wantEvent("the table is in step", "opened 3 END")
		if st := p.s.Stats(); st.HeadersTooLarge != 1 {
			t.Errorf("counted %d", st.HeadersTooLarge)
		}
	})
	t.Run("its trailers", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		var late *testStream
		p.onLarge = func(ts *testStream) {
			late = ts
			ts.st.WriteData(make([]byte, 70000), true) // more than the window: it stays open
		}
		p.request(1, false, big...)
		p.data(1, false, 10)
		p.headers(1, true, "a", "b")
		p.flush()
		p.frames = nil
		if late.closed != 0 || !late.st.RecvClosed() {
			t.Fatal("closed with an answer that waits")
		}
		p.check(p.fr.WriteWindowUpdate(1, 10000))
		p.check(p.fr.WriteWindowUpdate(0, 10000))
		p.wantFrame("the rest of the answer", "DATA 1 4465 END")
		p.wantEvent("told", "too large 1")
		p.wantEvent("ended", "closed 1 complete NO_ERROR")
	})
	t.Run("trailers that are too large", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.request(1, false)
		p.headers(1, true, big...)
		p.wantFrame("reset", "RST_STREAM 1 ENHANCE_YOUR_CALM")
	})
	t.Run("a request that has ended", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.onLarge = func(ts *testStream) { ts.st.WriteHeaders(fieldsOf(":status", "431"), true) }
		p.request(1, true, big...)
		p.wantFrame("the relay's answer", "HEADERS 1 :status=431 END")
		p.wantIdle("nothing to stop")
		p.wantEvent("told", "too large 1")
		p.wantEvent("ended", "closed 1 complete NO_ERROR")
	})
	t.Run("nobody answers", func(t *testing.T) {
		p := newPeer(t, Server, cfg)
		p.request(1, true, big...)
		p.wantFrame("reset", "RST_STREAM 1 ENHANCE_YOUR_CALM")
	})
	t.Run("a response", func(t *testing.T) {
		p := newPeer(t, Client, cfg)
		p.open(true)
		p.headers(1, false, append([]string{":status", "200"}, big...)...)
		p.wantFrame("reset", "RST_STREAM 1 ENHANCE_YOUR_CALM")
		if end := p.streams[1].end; !errors.Is(end.Cause, ErrHeadersTooLarge) {
			t.Errorf("cause %v", end.Cause)
		}
		p.wantAlive("the connection goes on")
	})
	t.Run("a block that is longer than can be decoded", func(t *testing.T) {
		p := newPeer(t, Server, &Config{MaxHeaderListSize: 1000, MaxHeaderBlock: 3000})
		p.request(1, true, "a", strings.Repeat("x", 6000))
		p.wantFailed("HPACK's state would be lost", calm)
	})
}

// TestCancelled: what each RST_STREAM means, by when it comes.
func TestResets(t *testing.T) {
	codes := []http2.ErrCode{
		http2.ErrCodeNo, http2.ErrCodeProtocol, http2.ErrCodeInternal, http2.ErrCodeFlowControl,
		http2.ErrCodeSettingsTimeout, http2.ErrCodeStreamClosed, http2.ErrCodeFrameSize, http2.ErrCodeRefusedStream,
		http2.ErrCodeCancel, http2.ErrCodeCompression, http2.ErrCodeConnect, http2.ErrCodeEnhanceYourCalm,
		http2.ErrCodeInadequateSecurity, http2.ErrCodeHTTP11Required, 0xabc,
	}
	for _, code := range codes {
		for _, when := range []string{"before headers", "after 1xx", "after headers", "after data", "after trailers", "after trailers-only"} {
			t.Run(code.String()+" "+when, func(t *testing.T) {
				p := newPeer(t, Client, nil)
				p.open(false) // the request goes on
				switch when {
				case "after 1xx":
					p.headers(1, false, ":status", "103")
				case "after headers":
					p.headers(1, false, ":status", "200")
				case "after data":
					p.headers(1, false, ":status", "200")
					p.data(1, false, 1)
				case "after trailers":
					p.headers(1, false, ":status", "200")
					p.headers(1, true, "grpc-status", "0")
				case "after trailers-only":
					p.headers(1, true, ":status", "200", "grpc-status", "0")
				}
				p.check(p.fr.WriteRSTStream(1, code))
				p.flush()
				want := ResetByPeer
				switch {
				case code == http2.ErrCodeRefusedStream && when == "before headers":
					want = Unprocessed
				case code == http2.ErrCodeNo && strings.HasPrefix(when, "after trailers"):
					want = Complete
				}
				if end := p.streams[1].end; end.Kind != want || end.Code != code {
					t.Fatalf("got %s %s, want %s", end.Kind, end.Code, want)
				}
				p.wantAlive("a reset stream")
			})
		}
	}
	t.Run("a server's Reset", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, false)
		p.flush()
		p.streams[1].st.Reset(http2.ErrCodeInternal)
		p.wantFrame("sent", "RST_STREAM 1 INTERNAL_ERROR")
		if end := p.streams[1].end; end.Kind != ResetLocally || end.Cause != nil {
			t.Errorf("end %v", end)
		}
		p.request(3, false)
		p.flush()
		st := p.streams[3].st
		st.WriteHeaders(fieldsOf(":status", "200", "grpc-status", "0"), true)
		if st.RecvClosed() || !st.SendClosed() {
			t.Error("half-closed")
		}
		st.Reset(http2.ErrCodeNo)
		p.wantFrame("the answer", "HEADERS 3 :status=200 grpc-status=0 END")
		p.wantFrame("stop", "RST_STREAM 3 NO_ERROR")
		if end := p.streams[3].end; end.Kind != Complete {
			t.Errorf("end %v", end)
		}
		st.Reset(http2.ErrCodeCancel)
		st.WriteHeaders(fieldsOf("a", "b"), true)
		st.WriteData([]byte("x"), true)
		st.Consumed(1)
		p.wantIdle("a dead stream is silent")
	})
	t.Run("no handler", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.onOpen = func(ts *testStream, _ []hpack.HeaderField, _ bool) { ts.st.SetHandler(nil) }
		p.request(1, true)
		p.wantFrame("refused", "RST_STREAM 1 REFUSED_STREAM")
		delete(p.streams, 1)
	})
}
