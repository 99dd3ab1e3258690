// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Rows of the table in doc.go that no other file has.

// get sends a request that is not gRPC.
func (p *peer) get(id uint32, extra ...string) {
	p.t.Helper()
	p.headers(id, true, append([]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "pricing.shop:50051"}, extra...)...)
}

func TestErrorsThatAreNotGRPC(t *testing.T) {
	plain := func(status string) string {
		return "HEADERS 1 :status=" + status + " content-type=text/plain; charset=utf-8"
	}
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	for name, tc := range map[string]struct {
		does   func(srv *peer)
		status string
		text   string
	}{
		"a rule broken": {func(srv *peer) {
			srv.headers(1, false, ":status", "200", "Upper", "case")
			srv.want("the server's fault", "RST 1 PROTOCOL_ERROR")
		}, "502", "broke HTTP/2"},
		"headers too large": {func(srv *peer) {
			big := []string{":status", "200"}
			for range 5 {
				big = append(big, "x-big", strings.Repeat("x", 15_000))
			}
			srv.hugeHeaders(1, big...)
			srv.want("the server's fault", "RST 1 ENHANCE_YOUR_CALM")
		}, "429", "larger than the sidecar takes"},
		"the connection lost": {func(srv *peer) { srv.conn.Close() }, "503", "lost the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			r := newRig(t).serve(f.addr)
			app := r.app()
			app.get(1)
			srv := f.accept()
			srv.want("passed on", "HEADERS 1 end :method=GET…")
			tc.does(srv)
			app.want("as HTTP has it", plain(tc.status))
			body := app.want("with a text", "DATA 1 end…").(*http2.DataFrame)
			if !strings.Contains(string(body.Data()), tc.text) {
				t.Errorf("body %q, want %q in it", body.Data(), tc.text)
			}
			r.quiet()
		})
	}
	t.Run("the deadline passed", func(t *testing.T) {
		r.serve() // no endpoint
		app := r.app()
		app.get(1, "grpc-timeout", "30m")
		app.want("as HTTP has it", plain("504"))
		app.want("with a text", "DATA 1 end…")
		r.quiet()
	})
	t.Run("its headers too large", func(t *testing.T) {
		app := r.app()
		kv := []string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "pricing.shop:50051", "content-type", "text/plain"}
		for range 5 {
			kv = append(kv, "x-big", strings.Repeat("x", 15_000))
		}
		app.hugeHeaders(1, kv...)
		app.want("as HTTP has it", "HEADERS 1 end :status=431")
	})
}

// What belongs to a session stays on it.
func TestFramesOfTheAppsSession(t *testing.T) {
	app, srv, r := one(t, false)
	app.do(app.fr.WritePing(false, [8]byte{1, 2, 3}))
	for {
		f, err := app.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := f.(*http2.PingFrame); ok {
			if !p.IsAck() || p.Data != [8]byte{1, 2, 3} {
				t.Fatalf("PING is answered by %v", p)
			}
			break
		}
	}
	app.do(app.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingEnablePush, Val: 0}))
	app.do(app.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
	srv.silent("neither PING, SETTINGS nor GOAWAY is the server's to hear", 50*time.Millisecond)
	app.data(1, true, message(1))
	srv.want("the stream goes on", "DATA 1 end 6 bytes")
	srv.headers(1, true, grpcOK...)
	app.want("and ends well", "HEADERS 1 end…")
	r.quiet()
}

func TestGoAwayOfAnIdleServer(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	srv.headers(1, true, grpcOK...)
	app.want("answered", "HEADERS 1 end…")
	for range 3 { // once is enough, more is no harm
		srv.do(srv.fr.WriteGoAway(1, http2.ErrCodeNo, nil))
	}
	next := f.accept()
	app.request(3, true)
	next.want("the next session has new streams", "HEADERS 1 end…")
	next.headers(1, true, grpcOK...)
	app.want("nothing is noticed", "HEADERS 3 end"+grpcHeaders+" grpc-status=0")
	r.quiet()
}

func TestRefusedAfterAResponseHasBegun(t *testing.T) {
	app, srv, r := one(t, true)
	srv.response(1)
	app.want("headers", "HEADERS 1"+grpcHeaders)
	srv.do(srv.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
	app.want("no replay: it was seen", "RST 1 REFUSED_STREAM")
	r.quiet()
	if n := r.snapshot().Replays; n != 0 {
		t.Errorf("%d replays", n)
	}
}

// Each side may shut and open the windows of the streams that are open.
func TestWindowsChangeWhileStreamsAreOpen(t *testing.T) {
	window := func(n uint32) http2.Setting {
		return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n}
	}
	for name, tc := range map[string]struct {
		from func(app, srv *peer) (sender, receiver *peer)
	}{
		"the server's": {func(app, srv *peer) (*peer, *peer) { return app, srv }},
		"the app's":    {func(app, srv *peer) (*peer, *peer) { return srv, app }},
	} {
		t.Run(name, func(t *testing.T) {
			app, srv, r := one(t, false)
			srv.response(1)
			app.want("headers", "HEADERS 1"+grpcHeaders)
			from, to := tc.from(app, srv)
			to.do(to.fr.WriteSettings(window(1000)))
			to.ackOfSettings()
			body := message(3000 - 5)
			from.data(1, false, body[:2500])
			to.wantUncredited("as much as the window has", 1000)
			to.do(to.fr.WriteSettings(window(0))) // the stream's is −1000 by now
			to.ackOfSettings()
			from.data(1, true, body[2500:])
			to.do(to.fr.WriteWindowUpdate(1, 1000)) // zero
			to.silent("negative windows are made whole first", 50*time.Millisecond)
			to.do(to.fr.WriteWindowUpdate(1, 10))
			to.wantUncredited("ten bytes", 10)
			to.do(to.fr.WriteSettings(window(65535)))
			to.wantBody("the rest", 1990, true)
			app.do(app.fr.WriteRSTStream(1, http2.ErrCodeCancel))
			r.quiet()
		})
	}
}

// ackOfSettings reads up to the acknowledgement of what was sent last. Those of the
// first SETTINGS come before.
func (p *peer) ackOfSettings() {
	p.t.Helper()
	p.do(p.fr.WritePing(false, [8]byte{7}))
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			p.t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if f.IsAck() {
				return
			}
		case *http2.SettingsFrame, *http2.WindowUpdateFrame:
		default:
			p.t.Fatalf("got %s before the acknowledgement", describe(f))
		}
	}
}

// wantUncredited reads n bytes of DATA and gives no window back.
func (p *peer) wantUncredited(why string, n int) {
	p.t.Helper()
	for n > 0 {
		f, ok := p.next().(*http2.DataFrame)
		if !ok || f.StreamEnded() {
			p.t.Fatalf("%s: not DATA that goes on", why)
		}
		n -= len(f.Data())
	}
	if n < 0 {
		p.t.Fatalf("%s: %d bytes too many", why, -n)
	}
}

func TestFrameAndTableSizesChangeWhileStreamsAreOpen(t *testing.T) {
	app, srv, r := one(t, false)
	srv.do(srv.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 32 << 10}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	srv.ackOfSettings()
	srv.do(srv.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16 << 10}))
	srv.ackOfSettings()
	srv.fr.SetMaxReadFrameSize(16 << 10)
	for range 3 {
		app.data(1, false, make([]byte, 16<<10))
	}
	srv.wantBody("in frames of the size that is allowed now", 48<<10, false)
	srv.fr.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
	for id := uint32(3); id < 9; id += 2 {
		app.request(id, true, "x-repeated", "a value that a table would have")
		srv.want("without a table", fmt.Sprintf("HEADERS %d end…x-repeated=a value that a table would have", id))
		srv.headers(id, true, grpcOK...)
		app.want("answered", fmt.Sprintf("HEADERS %d end…", id))
	}
	app.do(app.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	r.quiet()
}

// A block may come in pieces of any size.
func TestContinuationsOfOneByte(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	pieces := func(p *peer, end bool, kv ...string) {
		t.Helper()
		p.hbuf.Reset()
		p.encode(kv)
		b := p.hbuf.Bytes()
		p.do(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:1], EndStream: end}))
		for i := 1; i < len(b); i++ {
			p.do(p.fr.WriteContinuation(1, i == len(b)-1, b[i:i+1]))
		}
	}
	pieces(app, true, requestFields...)
	srv := f.accept()
	srv.want("whole", "HEADERS 1 end :method=POST :scheme=http :path=/a.B/C :authority=pricing.shop:50051 content-type=application/grpc te=trailers")
	pieces(srv, true, append(grpcOK, "x-more", "y")...)
	app.want("whole", "HEADERS 1 end"+grpcHeaders+" grpc-status=0 x-more=y")
	r.quiet()
}

// Each fault of a server is kept to what it concerns.
func TestFaultsOfAServer(t *testing.T) {
	for name, tc := range map[string]struct {
		does    func(srv *peer)
		srv     string // what the server sees
		app     string // what the app sees on stream 1
		another bool   // stream 3, on the same session, is not harmed
	}{
		"a stream's window overflows": {
			func(p *peer) { p.do(p.fr.WriteWindowUpdate(1, 1<<31-1)) },
			"RST 1 FLOW_CONTROL_ERROR", "grpc-status=13…", true,
		},
		"the connection's window overflows": {
			func(p *peer) { p.do(p.fr.WriteWindowUpdate(0, 1<<31-1)) },
			"GOAWAY 0 FLOW_CONTROL_ERROR", "grpc-status=14…", false,
		},
		"WINDOW_UPDATE of 0": {
			func(p *peer) { p.do(p.fr.WriteWindowUpdate(1, 0)) },
			"RST 1 PROTOCOL_ERROR", "grpc-status=13…", true,
		},
		"DATA before HEADERS": {
			func(p *peer) { p.data(1, false, []byte("x")) },
			"RST 1 PROTOCOL_ERROR", "grpc-status=13…", true,
		},
		"DATA on an idle stream": {
			func(p *peer) { p.data(9, false, []byte("x")) },
			"GOAWAY 0 PROTOCOL_ERROR", "grpc-status=14…", false,
		},
		"SETTINGS that cannot be": {
			func(p *peer) { p.do(p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})) },
			"GOAWAY 0 PROTOCOL_ERROR", "grpc-status=14…", false,
		},
		"a frame that is too large": {
			func(p *peer) { p.do(p.fr.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 17<<10))) },
			"GOAWAY 0 FRAME_SIZE_ERROR", "grpc-status=14…", false,
		},
		"a block that does not decode": {
			func(p *peer) {
				p.do(p.fr.WriteRawFrame(http2.FrameHeaders, 4, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))
			},
			"GOAWAY 0 COMPRESSION_ERROR", "grpc-status=14…", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			app, srv, r := one(t, true)
			app.request(3, true)
			srv.want("another", "HEADERS 3 end…")
			tc.does(srv)
			srv.want("its fault", tc.srv)
			if tc.another {
				app.want("the stream's end", "HEADERS 1 end"+grpcHeaders+" "+tc.app)
				srv.headers(3, true, grpcOK...)
				app.want("the other goes on", "HEADERS 3 end"+grpcHeaders+" grpc-status=0")
			} else {
				for range 2 {
					if got := describe(app.next()); !matches(got, "HEADERS 1 end"+grpcHeaders+" "+tc.app) && !matches(got, "HEADERS 3 end"+grpcHeaders+" "+tc.app) {
						t.Errorf("got %s, want both to end with %s", got, tc.app)
					}
				}
			}
			app.do(app.fr.WritePing(false, [8]byte{}))
			app.ackOfSettings() // the app's session knows of none of it
			r.quiet()
		})
	}
	t.Run("DATA on a stream that has ended", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.headers(1, true, grpcOK...)
		app.want("the response", "HEADERS 1 end…")
		srv.data(1, false, []byte("late"))
		srv.want("its fault", "…STREAM_CLOSED")
		app.silent("is nothing to the app", 20*time.Millisecond)
		r.quiet()
	})
}

// And each of an app: the server sees a cancel at most, other apps nothing.
func TestFaultsOfAnApp(t *testing.T) {
	for name, tc := range map[string]struct {
		does func(app *peer)
		app  string
		srv  string
	}{
		"a stream's window overflows": {
			func(p *peer) { p.do(p.fr.WriteWindowUpdate(1, 1<<31-1)) },
			"RST 1 FLOW_CONTROL_ERROR", "RST 1 CANCEL",
		},
		"the connection's window overflows": {
			func(p *peer) { p.do(p.fr.WriteWindowUpdate(0, 1<<31-1)) },
			"GOAWAY 1 FLOW_CONTROL_ERROR", "RST 1 CANCEL",
		},
		"a body that is not as long as said": {
			func(p *peer) {
				p.headers(3, false, append(requestFields, "content-length", "1")...)
				p.data(3, true, []byte("xx"))
			},
			"RST 3 PROTOCOL_ERROR", "HEADERS 3…",
		},
		"DATA on an idle stream": {
			func(p *peer) { p.data(9, false, []byte("x")) },
			"GOAWAY 1 PROTOCOL_ERROR", "RST 1 CANCEL",
		},
		"an even id": {
			func(p *peer) { p.request(2, true) },
			"GOAWAY 1 PROTOCOL_ERROR", "RST 1 CANCEL",
		},
		"a block that does not decode": {
			func(p *peer) {
				p.do(p.fr.WriteRawFrame(http2.FrameHeaders, 4, 3, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))
			},
			"GOAWAY 1 COMPRESSION_ERROR", "RST 1 CANCEL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			app, srv, r := one(t, false)
			tc.does(app)
			app.want("its fault", tc.app)
			srv.want("a cancel at most", tc.srv)
			app.conn.Close()
			other := r.app()
			other.request(1, true)
			for {
				got := describe(srv.next())
				if matches(got, "HEADERS … end :method=POST…te=trailers") {
					break
				}
				if !matches(got, "RST … CANCEL") {
					t.Fatalf("the server sees %s", got)
				}
			}
			other.do(other.fr.WriteRSTStream(1, http2.ErrCodeCancel))
			r.quiet()
		})
	}
	t.Run("DATA on a stream that has ended", func(t *testing.T) {
		app, srv, r := one(t, true)
		app.data(1, false, []byte("late"))
		app.want("its fault", "…STREAM_CLOSED")
		srv.want("a cancel", "RST 1 CANCEL")
		r.quiet()
	})
}
