// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fault is one thing that a peer does wrong, and how far it reaches.
type fault struct {
	rule string // RFC 9113's section, and what is done
	do   func(p *testPeer)
	conn http2.ErrCode // the connection error that must follow; 0: none
	rst  string        // the frame that must be the answer; "": none
}

func (f fault) run(t *testing.T, role Role) {
	t.Run(f.rule, func(t *testing.T) {
		for _, cut := range []int{0, 1, 7} {
			p := newPeer(t, role, nil)
			p.cut = cut
			f.do(p)
			p.flush()
			if f.conn != 0 {
				p.wantFailed(f.rule, f.conn)
				continue
			}
			if f.rst != "" {
				p.wantFrame(f.rule, f.rst)
			} else {
				p.wantIdle(f.rule)
			}
			p.wantAlive(f.rule)
		}
	})
}

func raw(p *testPeer, typ http2.FrameType, flags http2.Flags, id uint32, payload string) {
	p.t.Helper()
	p.check(p.fr.WriteRawFrame(typ, flags, id, []byte(payload)))
}

func answered(p *testPeer, id uint32) {
	p.t.Helper()
	p.flush()
	p.streams[id].st.WriteHeaders(fieldsOf(":status", "200"), true)
	p.read()
	p.frames = nil
}

func reset(p *testPeer, id uint32) {
	p.t.Helper()
	p.flush()
	p.streams[id].st.Reset(http2.ErrCodeCancel)
	p.read()
	p.frames = nil
}

const (
	endHeaders = http2.FlagHeadersEndHeaders
	endStream  = http2.FlagHeadersEndStream
	protocol   = http2.ErrCodeProtocol
	frameSize  = http2.ErrCodeFrameSize
	flow       = http2.ErrCodeFlowControl
	closedCode = http2.ErrCodeStreamClosed
	calm       = http2.ErrCodeEnhanceYourCalm
	compress   = http2.ErrCodeCompression
)

func TestServerFaults(t *testing.T) {
	for _, f := range []fault{
		{"4.2 DATA longer than MAX_FRAME_SIZE", func(p *testPeer) { p.request(1, false); p.data(1, true, 16385) }, frameSize, ""},
		{"4.2 HEADERS longer than MAX_FRAME_SIZE", func(p *testPeer) {
			raw(p, http2.FrameHeaders, endHeaders, 1, strings.Repeat("x", 16385))
		}, frameSize, ""},
		{"4.2 an unknown frame longer than MAX_FRAME_SIZE", func(p *testPeer) { raw(p, 0x42, 0, 0, strings.Repeat("x", 16385)) }, frameSize, ""},
		{"4.3 a field block that does not decode", func(p *testPeer) { raw(p, http2.FrameHeaders, endHeaders, 1, "\xff\xff\xff\xff\xff\xff") }, compress, ""},
		{"4.3 a field block that ends inside a field", func(p *testPeer) { raw(p, http2.FrameHeaders, endHeaders, 1, "\x82\x40\x05ab") }, compress, ""},
		{"4.3 a block interrupted by PRIORITY", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
			p.check(p.fr.WritePriority(1, http2.PriorityParam{}))
		}, protocol, ""},
		{"4.3 a block interrupted by an unknown frame", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
			raw(p, 0x42, 0, 0, "")
		}, protocol, ""},
		{"4.3 a block interrupted by HEADERS of another stream", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
			p.request(3, true)
		}, protocol, ""},
		{"4.3 a block continued on another stream", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
			p.check(p.fr.WriteContinuation(3, true, nil))
		}, protocol, ""},
		{"5.1 idle: DATA", func(p *testPeer) { p.data(1, true, 4) }, protocol, ""},
		{"5.1 idle: RST_STREAM", func(p *testPeer) { p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel)) }, protocol, ""},
		{"5.1 idle: WINDOW_UPDATE", func(p *testPeer) { p.check(p.fr.WriteWindowUpdate(1, 1)) }, protocol, ""},
		{"5.1 idle: CONTINUATION", func(p *testPeer) { p.check(p.fr.WriteContinuation(1, true, p.block(get...))) }, protocol, ""},
		{"5.1 idle: PRIORITY", func(p *testPeer) { p.check(p.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3})) }, 0, ""},
		{"5.1 half-closed: DATA", func(p *testPeer) { p.request(1, true); p.data(1, true, 4) }, 0, "RST_STREAM 1 STREAM_CLOSED"},
		{"5.1 half-closed: HEADERS", func(p *testPeer) { p.request(1, true); p.request(1, true) }, 0, "RST_STREAM 1 STREAM_CLOSED"},
		{"5.1 half-closed: CONTINUATION", func(p *testPeer) {
			p.request(1, true)
			p.check(p.fr.WriteContinuation(1, true, p.block(get...)))
		}, protocol, ""},
		{"5.1 half-closed: WINDOW_UPDATE", func(p *testPeer) { p.request(1, true); p.check(p.fr.WriteWindowUpdate(1, 1)) }, 0, ""},
		{"5.1 half-closed: PRIORITY", func(p *testPeer) { p.request(1, true); p.check(p.fr.WritePriority(1, http2.PriorityParam{})) }, 0, ""},
		{"5.1 closed by RST_STREAM: DATA", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
			p.data(1, true, 4)
		}, 0, "RST_STREAM 1 STREAM_CLOSED"},
		{"5.1 closed by RST_STREAM: HEADERS", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
			p.request(1, true)
		}, closedCode, ""},
		{"5.1 closed: DATA", func(p *testPeer) { p.request(1, true); answered(p, 1); p.data(1, true, 4) }, 0, "RST_STREAM 1 STREAM_CLOSED"},
		{"5.1 closed: HEADERS", func(p *testPeer) { p.request(1, true); answered(p, 1); p.request(1, true) }, closedCode, ""},
		{"5.1 closed: WINDOW_UPDATE and RST_STREAM may be late", func(p *testPeer) {
			p.request(1, true)
			answered(p, 1)
			p.check(p.fr.WriteWindowUpdate(1, 10))
			p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		}, 0, ""},
		{"5.1 reset here: DATA that crosses", func(p *testPeer) { p.request(1, false); reset(p, 1); p.data(1, true, 4) }, 0, ""},
		{"5.1 reset here: trailers that cross", func(p *testPeer) { p.request(1, false); reset(p, 1); p.headers(1, true, "a", "b") }, 0, ""},
		{"5.1 reset here: RST_STREAM that crosses", func(p *testPeer) {
			p.request(1, false)
			reset(p, 1)
			p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		}, 0, ""},
		{"5.1.1 an even id", func(p *testPeer) { p.request(2, true) }, protocol, ""},
		{"5.1.1 an id below the last", func(p *testPeer) { p.request(5, true); p.request(3, true) }, protocol, ""},
		{"5.3.1 HEADERS that depends on itself", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, EndHeaders: true, EndStream: true,
				BlockFragment: p.block(get...), Priority: http2.PriorityParam{StreamDep: 1, Weight: 1},
			}))
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"5.3.1 trailers that depend on themselves", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, EndHeaders: true, EndStream: true,
				BlockFragment: p.block("a", "b"), Priority: http2.PriorityParam{StreamDep: 1, Weight: 1},
			}))
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"5.3.1 PRIORITY that depends on itself", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WritePriority(1, http2.PriorityParam{StreamDep: 1}))
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"5.3.1 PRIORITY on an idle stream that depends on itself", func(p *testPeer) {
			p.check(p.fr.WritePriority(1, http2.PriorityParam{StreamDep: 1}))
		}, protocol, ""},
		{"5.5 an unknown frame", func(p *testPeer) { raw(p, 0x42, 0xff, 7, "something") }, 0, ""},
		{"5.5 unknown flags", func(p *testPeer) { raw(p, http2.FramePing, 0x16, 0, "12345678") }, 0, "PING ACK 3132333435363738"},
		{"6.1 DATA on stream 0", func(p *testPeer) { p.data(0, true, 4) }, protocol, ""},
		{"6.1 padding as long as the frame", func(p *testPeer) {
			p.request(1, false)
			raw(p, http2.FrameData, http2.FlagDataPadded, 1, "\x05abcde")
			raw(p, http2.FrameData, http2.FlagDataPadded, 1, "\x05abcd")
		}, protocol, ""},
		{"6.1 padding without its length", func(p *testPeer) { p.request(1, false); raw(p, http2.FrameData, http2.FlagDataPadded, 1, "") }, frameSize, ""},
		{"6.2 HEADERS on stream 0", func(p *testPeer) { p.request(0, true) }, protocol, ""},
		{"6.2 padding as long as the frame", func(p *testPeer) {
			raw(p, http2.FrameHeaders, endHeaders|http2.FlagHeadersPadded, 1, "\x04\x82\x86\x84")
		}, protocol, ""},
		{"6.2 padding without its length", func(p *testPeer) { raw(p, http2.FrameHeaders, endHeaders|http2.FlagHeadersPadded, 1, "") }, frameSize, ""},
		{"6.2 too short for a priority", func(p *testPeer) { raw(p, http2.FrameHeaders, endHeaders|http2.FlagHeadersPriority, 1, "\x82") }, frameSize, ""},
		{"6.3 PRIORITY on stream 0", func(p *testPeer) { raw(p, http2.FramePriority, 0, 0, "\x00\x00\x00\x03\x05") }, protocol, ""},
		{"6.3 PRIORITY of 4 bytes", func(p *testPeer) { p.request(1, false); raw(p, http2.FramePriority, 0, 1, "\x00\x00\x00\x03") }, 0, "RST_STREAM 1 FRAME_SIZE_ERROR"},
		{"6.4 RST_STREAM on stream 0", func(p *testPeer) { raw(p, http2.FrameRSTStream, 0, 0, "\x00\x00\x00\x08") }, protocol, ""},
		{"6.4 RST_STREAM of 3 bytes", func(p *testPeer) { p.request(1, false); raw(p, http2.FrameRSTStream, 0, 1, "\x00\x00\x08") }, frameSize, ""},
		{"6.5 SETTINGS on a stream", func(p *testPeer) { raw(p, http2.FrameSettings, 0, 1, "") }, protocol, ""},
		{"6.5 SETTINGS of 5 bytes", func(p *testPeer) { raw(p, http2.FrameSettings, 0, 0, "\x00\x03\x00\x00\x00") }, frameSize, ""},
		{"6.5 SETTINGS ACK with a payload", func(p *testPeer) { raw(p, http2.FrameSettings, 1, 0, "\x00\x03\x00\x00\x00\x01") }, frameSize, ""},
		{"6.5 SETTINGS ACK that nothing asked for", func(p *testPeer) { p.check(p.fr.WriteSettingsAck()) }, protocol, ""},
		{"6.5.2 ENABLE_PUSH 2", func(p *testPeer) { p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2})) }, protocol, ""},
		{"6.5.2 INITIAL_WINDOW_SIZE 2^31", func(p *testPeer) {
			p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
		}, flow, ""},
		{"6.5.2 MAX_FRAME_SIZE 16383", func(p *testPeer) {
			p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16383}))
		}, protocol, ""},
		{"6.5.2 MAX_FRAME_SIZE 2^24", func(p *testPeer) {
			p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 24}))
		}, protocol, ""},
		{"6.5.2 an unknown setting", func(p *testPeer) { p.check(p.fr.WriteSettings(http2.Setting{ID: 0xff, Val: 1})) }, 0, "SETTINGS ACK"},
		{"6.6 PUSH_PROMISE", func(p *testPeer) { raw(p, http2.FramePushPromise, endHeaders, 1, "\x00\x00\x00\x02\x82") }, protocol, ""},
		{"6.7 PING on a stream", func(p *testPeer) { raw(p, http2.FramePing, 0, 1, "12345678") }, protocol, ""},
		{"6.7 PING of 7 bytes", func(p *testPeer) { raw(p, http2.FramePing, 0, 0, "1234567") }, frameSize, ""},
		{"6.7 PING ACK that nothing asked for", func(p *testPeer) { raw(p, http2.FramePing, 1, 0, "12345678") }, 0, ""},
		{"6.8 GOAWAY on a stream", func(p *testPeer) { raw(p, http2.FrameGoAway, 0, 1, "\x00\x00\x00\x00\x00\x00\x00\x00") }, protocol, ""},
		{"6.8 GOAWAY of 7 bytes", func(p *testPeer) { raw(p, http2.FrameGoAway, 0, 0, "\x00\x00\x00\x00\x00\x00\x00") }, frameSize, ""},
		{"6.9 WINDOW_UPDATE of 3 bytes", func(p *testPeer) { raw(p, http2.FrameWindowUpdate, 0, 0, "\x00\x00\x01") }, frameSize, ""},
		{"6.9 WINDOW_UPDATE of 0 on the connection", func(p *testPeer) { p.check(p.fr.WriteWindowUpdate(0, 0)) }, protocol, ""},
		{"6.9 WINDOW_UPDATE of 0 on a stream", func(p *testPeer) { p.request(1, false); p.check(p.fr.WriteWindowUpdate(1, 0)) }, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"6.9.1 the connection's window overflows", func(p *testPeer) { p.check(p.fr.WriteWindowUpdate(0, 1<<31-1)) }, flow, ""},
		{"6.9.1 a stream's window overflows", func(p *testPeer) { p.request(1, false); p.check(p.fr.WriteWindowUpdate(1, 1<<31-1)) }, 0, "RST_STREAM 1 FLOW_CONTROL_ERROR"},
		{"6.9.2 a SETTINGS overflows a stream's window", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WriteWindowUpdate(1, 1<<31-1-initialWindow))
			p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: initialWindow + 1}))
		}, flow, ""},
		{"6.10 CONTINUATION without a block", func(p *testPeer) {
			p.request(1, false)
			p.check(p.fr.WriteContinuation(1, true, p.block("a", "b")))
		}, protocol, ""},
		{"6.10 CONTINUATION after END_HEADERS", func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
			p.check(p.fr.WriteContinuation(1, true, nil))
			p.check(p.fr.WriteContinuation(1, true, p.block("a", "b")))
		}, protocol, ""},
	} {
		f.run(t, Server)
	}
}

func TestClientFaults(t *testing.T) {
	for _, f := range []fault{
		{"5.1 idle: HEADERS", func(p *testPeer) { p.headers(1, true, ":status", "200") }, protocol, ""},
		{"5.1 idle: DATA", func(p *testPeer) { p.data(1, true, 1) }, protocol, ""},
		{"5.1 idle: WINDOW_UPDATE", func(p *testPeer) { p.check(p.fr.WriteWindowUpdate(1, 1)) }, protocol, ""},
		{"5.1 idle: RST_STREAM", func(p *testPeer) { p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel)) }, protocol, ""},
		{"5.1 an id that only a server's push has", func(p *testPeer) { p.headers(2, true, ":status", "200") }, protocol, ""},
		{"6.5.2 ENABLE_PUSH 1 of a server", func(p *testPeer) { p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1})) }, protocol, ""},
		{"6.5.2 ENABLE_PUSH 0 of a server", func(p *testPeer) { p.check(p.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})) }, 0, "SETTINGS ACK"},
		{"6.6 PUSH_PROMISE", func(p *testPeer) {
			p.open(true)
			raw(p, http2.FramePushPromise, endHeaders, 1, "\x00\x00\x00\x02\x82")
		}, protocol, ""},
		{"8.1 DATA before HEADERS", func(p *testPeer) { p.open(true); p.data(1, true, 1) }, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"8.1 DATA after END_STREAM", func(p *testPeer) {
			p.open(false)
			p.headers(1, true, ":status", "200")
			p.data(1, true, 1)
		}, 0, "RST_STREAM 1 STREAM_CLOSED"},
		{"8.1 DATA after 1xx", func(p *testPeer) {
			p.open(true)
			p.headers(1, false, ":status", "103")
			p.data(1, true, 1)
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"8.1 1xx with END_STREAM", func(p *testPeer) { p.open(true); p.headers(1, true, ":status", "100") }, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"8.1 a second final response", func(p *testPeer) {
			p.open(true)
			p.headers(1, false, ":status", "200")
			p.headers(1, false, ":status", "200")
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"8.1 trailers with a pseudo-header field", func(p *testPeer) {
			p.open(true)
			p.headers(1, false, ":status", "200")
			p.headers(1, true, ":status", "200")
		}, 0, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"5.1 closed: a response that crosses our reset", func(p *testPeer) {
			p.open(true)
			reset(p, 1)
			p.headers(1, false, ":status", "200")
			p.data(1, false, 10)
			p.headers(1, true, "grpc-status", "0")
		}, 0, ""},
		{"5.1 closed: HEADERS", func(p *testPeer) {
			p.open(true)
			p.headers(1, true, ":status", "200")
			p.headers(1, true, "grpc-status", "0")
		}, 0, "RST_STREAM 1 STREAM_CLOSED"},
	} {
		f.run(t, Client)
	}
}

func TestPreface(t *testing.T) {
	for name, b := range map[string]string{
		"HTTP/1":      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"one byte":    "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
		"a TLS hello": "\x16\x03\x01\x02\x00\x01\x00",
	} {
		for _, cut := range []int{0, 1} {
			p := newRawPeer(t, Server, nil)
			p.cut = cut
			p.frames = nil
			p.out.WriteString(b)
			p.wantFailed(name, protocol)
		}
	}
	t.Run("the first frame is not SETTINGS", func(t *testing.T) {
		p := newRawPeer(t, Server, nil)
		p.out.WriteString(http2.ClientPreface)
		p.check(p.fr.WritePing(false, [8]byte{}))
		p.wantFailed("server", protocol)
		p = newRawPeer(t, Client, nil)
		p.check(p.fr.WriteSettingsAck())
		p.wantFailed("client", protocol)
	})
	t.Run("a split preface", func(t *testing.T) {
		p := newRawPeer(t, Server, nil)
		p.cut = 1
		p.frames = nil
		p.out.WriteString(http2.ClientPreface)
		p.check(p.fr.WriteSettings())
		p.wantFrame("SETTINGS are acknowledged", "SETTINGS ACK")
		p.wantEvent("established", "settings")
		if !p.s.Established() {
			t.Error("not established")
		}
	})
	t.Run("what we say first", func(t *testing.T) {
		p := newRawPeer(t, Server, nil)
		p.wantFrame("a server's SETTINGS", "SETTINGS [INITIAL_WINDOW_SIZE = 262144] [MAX_HEADER_LIST_SIZE = 65536] [MAX_CONCURRENT_STREAMS = 1000]")
		p.wantFrame("and its connection window", "WINDOW_UPDATE 0 983041")
		p = newRawPeer(t, Client, &Config{MaxFrameSize: 1 << 20, DecoderTableSize: -1, ConnWindow: 1})
		p.wantFrame("a client's SETTINGS", "SETTINGS [INITIAL_WINDOW_SIZE = 262144] [MAX_HEADER_LIST_SIZE = 65536] [MAX_FRAME_SIZE = 1048576] [HEADER_TABLE_SIZE = 0] [ENABLE_PUSH = 0]")
		p.wantIdle("the least window needs no update")
	})
}

// TestContinuation cuts a request's field block at every byte, and into bytes.
func TestContinuation(t *testing.T) {
	fields := append([]string{"x-binary-bin", "AAEC", "content-type", "application/grpc"}, "x-long", strings.Repeat("abc", 50))
	whole := newPeer(t, Server, nil).block(append(append([]string(nil), get...), fields...)...)
	check := func(t *testing.T, p *testPeer) {
		t.Helper()
		p.wantEvent("the request came", "opened 1 END")
		if got := p.streams[1].fields[Response]; len(got) != 7 || got[6].Value != strings.Repeat("abc", 50) {
			t.Fatalf("fields %v", got)
		}
		p.wantAlive("after CONTINUATION")
	}
	for cut := 0; cut <= len(whole); cut++ {
		p := newPeer(t, Server, nil)
		p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: whole[:cut], EndStream: true}))
		p.check(p.fr.WriteContinuation(1, true, whole[cut:]))
		check(t, p)
	}
	p := newPeer(t, Server, nil)
	p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true, PadLength: 100}))
	for i := range whole {
		p.check(p.fr.WriteContinuation(1, i == len(whole)-1, whole[i:i+1]))
	}
	check(t, p)
}

// TestSplitHeaders has a session send a field block that needs CONTINUATION.
func TestSplitHeaders(t *testing.T) {
	for _, n := range []int{16384, 16385, 3 * 16384, 100000} {
		p := newPeer(t, Client, nil)
		ts := p.newStream(nil)
		st, err := p.s.Open(ts)
		p.check(err)
		st.WriteHeaders(append(fieldsOf(get...), fieldsOf("x-long", strings.Repeat("v", n))...), true)
		out := bytes.Clone(p.s.Output())
		var block []byte
		frames := 0
		fr := http2.NewFramer(nil, bytes.NewReader(out))
		for len(block) == 0 || frames > 0 {
			f, err := fr.ReadFrame()
			p.check(err)
			frames++
			if f.Header().Length > 16384 {
				t.Errorf("%d: a frame of %d bytes", n, f.Header().Length)
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				if !f.StreamEnded() {
					t.Error("no END_STREAM")
				}
				block = append(block, f.HeaderBlockFragment()...)
				if f.HeadersEnded() {
					frames = 0
				}
			case *http2.ContinuationFrame:
				block = append(block, f.HeaderBlockFragment()...)
				if f.HeadersEnded() {
					frames = 0
				}
			}
		}
		fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
		p.check(err)
		if len(fields[4].Value) != n {
			t.Errorf("%d: got a value of %d bytes", n, len(fields[4].Value))
		}
	}
}

// TestStreamTable holds the table against a map.
func TestStreamTable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 5))
	var table streamTable
	model := map[uint32]*Stream{}
	var ids []uint32
	next := uint32(1)
	for i := range 200000 {
		// In waves, so that the table grows and shrinks.
		if grow := i/20000%2 == 0; len(ids) == 0 || rnd.IntN(10) < 3 || grow && rnd.IntN(10) < 6 {
			st := &Stream{id: next}
			next += 2 * uint32(1+rnd.IntN(3))
			table.put(st)
			model[st.id] = st
			ids = append(ids, st.id)
		} else {
			at := rnd.IntN(len(ids))
			table.remove(ids[at])
			delete(model, ids[at])
			ids[at] = ids[len(ids)-1]
			ids = ids[:len(ids)-1]
		}
		id := uint32(rnd.IntN(int(next)+2)) | 1
		table.remove(id + 1) // never there
		if table.get(id) != model[id] || table.len() != len(model) {
			t.Fatalf("step %d: id %d: got %v, want %v", i, id, table.get(id), model[id])
		}
	}
	if n := len(table.all(func(*Stream) bool { return true })); n != len(model) {
		t.Fatalf("all: %d of %d", n, len(model))
	}
}
