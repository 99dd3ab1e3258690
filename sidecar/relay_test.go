// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

const grpcHeaders = " :status=200 content-type=application/grpc"

// one is a Sidecar between one fake app and one fake server, with a request on stream 1.
func one(t *testing.T, end bool) (app, srv *peer, r *rig) {
	t.Helper()
	f := newFakeServer(t)
	r = newRig(t).serve(f.addr)
	app = r.app()
	app.request(1, end)
	srv = f.accept()
	want := "HEADERS 1 :method=POST…"
	if end {
		want = "HEADERS 1 end :method=POST…"
	}
	srv.want("the request is passed on", want)
	return app, srv, r
}

func TestRequestIsPassedOnAsItIs(t *testing.T) {
	f := newFakeServer(t)
	app := newRig(t).serve(f.addr).app()
	app.request(1, false, "grpc-timeout", "20S", "x-many", "1", "x-many", "2", "user-agent", "ua")
	srv := f.accept()
	srv.want("nothing added, nothing lost, order kept", "HEADERS 1 :method=POST :scheme=http :path=/grpc.testing.TestService/UnaryCall"+
		" :authority=pricing.shop:50051 content-type=application/grpc te=trailers grpc-timeout=…u x-many=1 x-many=2 user-agent=ua")
	app.data(1, false, message(3))
	srv.want("a message", "DATA 1 8 bytes")
	app.data(1, true, nil)
	srv.want("half-close alone", "DATA 1 end 0 bytes")
	srv.response(1)
	app.want("headers before any message", "HEADERS 1"+grpcHeaders)
	srv.data(1, false, message(4))
	app.want("a message", "DATA 1 9 bytes")
	srv.trailers(1, "0")
	app.want("trailers", "HEADERS 1 end grpc-status=0")
}

func TestResponsesOfEachShape(t *testing.T) {
	t.Run("trailers-only", func(t *testing.T) {
		app, srv, _ := one(t, true)
		srv.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "no")
		app.want("one section, ended", "HEADERS 1 end"+grpcHeaders+" grpc-status=5 grpc-message=no")
	})
	t.Run("1xx", func(t *testing.T) {
		app, srv, _ := one(t, true)
		srv.headers(1, false, ":status", "103", "link", "x")
		app.want("informational", "HEADERS 1 :status=103 link=x")
		srv.response(1)
		app.want("final", "HEADERS 1"+grpcHeaders)
		srv.trailers(1, "0")
		app.want("trailers", "HEADERS 1 end grpc-status=0")
	})
	t.Run("DATA with END_STREAM, no trailers", func(t *testing.T) {
		app, srv, _ := one(t, true)
		srv.headers(1, false, ":status", "200")
		srv.data(1, true, []byte("hello"))
		app.want("headers", "HEADERS 1 :status=200")
		app.want("body", "DATA 1 end 5 bytes")
	})
	t.Run("response before the request ends", func(t *testing.T) {
		app, srv, r := one(t, false)
		srv.response(1)
		srv.trailers(1, "0")
		app.want("headers", "HEADERS 1"+grpcHeaders)
		app.want("trailers", "HEADERS 1 end grpc-status=0")
		app.data(1, true, message(1))
		srv.want("the request still goes on", "DATA 1 end 6 bytes")
		r.quiet()
	})
	t.Run("request trailers", func(t *testing.T) {
		app, srv, r := one(t, false)
		app.data(1, false, message(1))
		app.headers(1, true, "x-checksum", "7")
		srv.want("body", "DATA 1 6 bytes")
		srv.want("trailers", "HEADERS 1 end x-checksum=7")
		srv.headers(1, true, ":status", "200", "grpc-status", "0")
		app.want("response", "HEADERS 1 end…")
		r.quiet()
	})
}

// codesOfRST are all that RFC 9113, 7 defines, and one that it does not.
var codesOfRST = []http2.ErrCode{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 0x77}

func TestResetByTheServer(t *testing.T) {
	for _, c := range codesOfRST {
		t.Run("before headers/"+c.String(), func(t *testing.T) {
			app, srv, r := one(t, true)
			srv.do(srv.fr.WriteRSTStream(1, c))
			app.want("the same code", "RST 1 "+c.String())
			r.quiet()
		})
		t.Run("after headers/"+c.String(), func(t *testing.T) {
			app, srv, r := one(t, true)
			srv.response(1)
			srv.data(1, false, message(2))
			srv.do(srv.fr.WriteRSTStream(1, c))
			app.want("headers", "HEADERS 1"+grpcHeaders)
			app.want("the message before the reset", "DATA 1 7 bytes")
			app.want("the same code", "RST 1 "+c.String())
			r.quiet()
		})
		t.Run("after trailers/"+c.String(), func(t *testing.T) {
			app, srv, r := one(t, false)
			srv.response(1)
			srv.trailers(1, "0")
			srv.do(srv.fr.WriteRSTStream(1, c))
			app.want("headers", "HEADERS 1"+grpcHeaders)
			app.want("trailers", "HEADERS 1 end grpc-status=0")
			// RFC 9113, 8.1: the client "MUST NOT discard responses as a result
			// of receiving such a RST_STREAM".
			app.want("the request is not wanted any more", "RST 1 NO_ERROR")
			r.quiet()
			if e := r.snapshot().Services[0].Endpoints[0]; e.RPCs["OK"] != 1 {
				t.Errorf("counted as %v", e.RPCs)
			}
		})
	}
}

// The app reads slowly: what the server sent before its reset still arrives.
func TestResetWaitsForQueuedData(t *testing.T) {
	app, srv, r := one(t, true)
	srv.response(1)
	const n = 100_000 // beyond the app's window of 65,535
	body := message(n - 5)
	for b := body; len(b) > 0; {
		m := min(len(b), 16384)
		srv.data(1, false, b[:m])
		b = b[m:]
	}
	srv.do(srv.fr.WriteRSTStream(1, http2.ErrCodeInternal))
	app.want("headers", "HEADERS 1"+grpcHeaders)
	app.wantBody("all that came before the reset", n, false)
	app.want("then the reset", "RST 1 INTERNAL_ERROR")
	r.quiet()
}

func TestResetByTheApp(t *testing.T) {
	for _, c := range codesOfRST {
		t.Run(c.String(), func(t *testing.T) {
			app, srv, r := one(t, false)
			app.do(app.fr.WriteRSTStream(1, c))
			srv.want("the server need not know why", "RST 1 CANCEL")
			r.quiet()
		})
	}
	t.Run("the connection goes", func(t *testing.T) {
		app, srv, r := one(t, false)
		app.conn.Close()
		srv.want("as a cancel", "RST 1 CANCEL")
		r.quiet()
	})
}

func TestConnectionLost(t *testing.T) {
	t.Run("before headers", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.conn.Close()
		app.want("trailers-only", "HEADERS 1 end"+grpcHeaders+" grpc-status=14 grpc-message=evenkeel: lost the connection to 127.0.0.1:… (shop/pricing:50051): EOF")
		r.quiet()
	})
	t.Run("between messages", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.response(1)
		srv.data(1, false, message(2))
		app.want("headers", "HEADERS 1"+grpcHeaders)
		app.want("a message", "DATA 1 7 bytes")
		srv.conn.Close()
		app.want("the reason, as trailers", "HEADERS 1 end grpc-status=14 grpc-message=evenkeel: lost the connection to…")
		r.quiet()
	})
	t.Run("within a message", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.response(1)
		srv.data(1, false, message(20)[:10])
		app.want("headers", "HEADERS 1"+grpcHeaders)
		app.want("half a message", "DATA 1 10 bytes")
		srv.conn.Close()
		app.want("nobody may take it for whole", "RST 1 INTERNAL_ERROR")
		r.quiet()
	})
	t.Run("after the response", func(t *testing.T) {
		app, srv, r := one(t, false)
		srv.response(1)
		srv.trailers(1, "0")
		app.want("headers", "HEADERS 1"+grpcHeaders)
		app.want("trailers", "HEADERS 1 end grpc-status=0")
		srv.conn.Close()
		app.want("the rest of the request is not wanted", "RST 1 NO_ERROR")
		r.quiet()
	})
	t.Run("not gRPC", func(t *testing.T) {
		f := newFakeServer(t)
		r := newRig(t).serve(f.addr)
		app := r.app()
		app.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "pricing.shop:50051")
		srv := f.accept()
		srv.want("passed on", "HEADERS 1 end :method=GET…")
		srv.conn.Close()
		app.want("plain HTTP", "HEADERS 1 :status=503 content-type=text/plain; charset=utf-8")
		body := app.want("with a text", "DATA 1 end…").(*http2.DataFrame)
		if !strings.HasPrefix(string(body.Data()), "evenkeel: lost the connection to ") {
			t.Errorf("body %q", body.Data())
		}
	})
	t.Run("HEAD", func(t *testing.T) {
		f := newFakeServer(t)
		app := newRig(t).serve(f.addr).app()
		app.headers(1, true, ":method", "HEAD", ":scheme", "http", ":path", "/", ":authority", "pricing.shop:50051")
		srv := f.accept()
		srv.want("passed on", "HEADERS 1 end :method=HEAD…")
		srv.conn.Close()
		app.want("no body to HEAD", "HEADERS 1 end :status=503…")
	})
}

func TestServerThatBreaksTheRules(t *testing.T) {
	t.Run("of a stream", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.headers(1, false, ":status", "200", "Upper", "case")
		srv.want("the server's fault", "RST 1 PROTOCOL_ERROR")
		app.want("is not echoed as the app's", "HEADERS 1 end"+grpcHeaders+" grpc-status=13 grpc-message=evenkeel: 127.0.0.1:… broke HTTP/2: …")
		r.quiet()
	})
	t.Run("of the connection", func(t *testing.T) {
		app, srv, r := one(t, true)
		srv.data(77, false, []byte("?"))
		srv.want("the server's fault", "GOAWAY 0 PROTOCOL_ERROR")
		app.want("is not echoed as the app's", "HEADERS 1 end"+grpcHeaders+" grpc-status=14…")
		r.quiet()
	})
	t.Run("headers too large", func(t *testing.T) {
		app, srv, r := one(t, true)
		var big []string
		for range 5 {
			big = append(big, "x-big", strings.Repeat("x", 15_000))
		}
		srv.hugeHeaders(1, append([]string{":status", "200"}, big...)...)
		app.want("as gRPC has it", "HEADERS 1 end"+grpcHeaders+" grpc-status=8 grpc-message=evenkeel: the response headers of…")
		r.quiet()
	})
}

// hugeHeaders sends a section in CONTINUATIONs.
func (p *peer) hugeHeaders(id uint32, kv ...string) {
	p.t.Helper()
	p.hbuf.Reset()
	p.encode(kv)
	b := append([]byte(nil), p.hbuf.Bytes()...)
	n := min(len(b), 16384)
	p.do(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:n], EndHeaders: n == len(b)}))
	for b = b[n:]; len(b) > 0; b = b[n:] {
		n = min(len(b), 16384)
		p.do(p.fr.WriteContinuation(id, n == len(b), b[:n]))
	}
}

func TestRequestHeadersTooLarge(t *testing.T) {
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	kv := []string{
		":method", "POST", ":scheme", "http", ":path", "/a/b", ":authority", "pricing.shop:50051",
		"content-type", "application/grpc",
	}
	for range 5 {
		kv = append(kv, "x-big", strings.Repeat("x", 15_000))
	}
	app.hugeHeaders(1, kv...)
	app.want("as gRPC has it", "HEADERS 1 end"+grpcHeaders+" grpc-status=8 grpc-message=evenkeel: the request's headers are larger than the sidecar takes")
	app.want("the rest is not wanted", "RST 1 NO_ERROR")
	app.request(3, true)
	srv := f.accept()
	srv.want("the connection goes on", "HEADERS 1 end :method=POST…")
	srv.headers(1, true, ":status", "200", "grpc-status", "0")
	app.want("the response", "HEADERS 3 end…")
	r.quiet()
}

func TestUnknownFramesAndPriorityAreHarmless(t *testing.T) {
	app, srv, r := one(t, false)
	app.do(app.fr.WriteRawFrame(0xbe, 0, 1, []byte("grease")))
	app.do(app.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 9}))
	app.data(1, true, message(1))
	srv.want("only the DATA", "DATA 1 end 6 bytes")
	srv.do(srv.fr.WriteRawFrame(0xbe, 0, 1, []byte("grease")))
	srv.headers(1, true, ":status", "200", "grpc-status", "0")
	app.want("only the response", "HEADERS 1 end…")
	r.quiet()
}

func TestPaddingIsNotPassedOnButCredited(t *testing.T) {
	app, srv, r := one(t, false)
	pad := make([]byte, 255)
	done := make(chan struct{})
	go func() { // its WINDOW_UPDATEs must not fill the socket
		defer close(done)
		for {
			if _, err := app.fr.ReadFrame(); err != nil {
				return
			}
		}
	}()
	// Far more padding than a window: without credit for it this would stall.
	for range 1000 {
		if err := app.fr.WriteDataPadded(1, false, []byte("x"), pad); err != nil {
			t.Fatal(err)
		}
	}
	app.data(1, true, nil)
	srv.wantBody("the bytes without padding", 1000, true)
	app.do(app.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	r.quiet()
	app.conn.Close()
	<-done
}
