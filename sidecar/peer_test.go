// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer speaks HTTP/2 frames on a socket, with x/net's Framer as a judge that was
// not written here. As a server it accepts from one sidecar; as a client it dials it.
type peer struct {
	t    testing.TB
	conn net.Conn
	fr   *http2.Framer
	henc *hpack.Encoder
	hbuf bytes.Buffer
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	p := &peer{t: t, conn: conn, fr: http2.NewFramer(conn, conn)}
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.fr.AllowIllegalWrites = true
	p.henc = hpack.NewEncoder(&p.hbuf)
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return p
}

// fakeServer is a listening peer.
type fakeServer struct {
	t        testing.TB
	lis      net.Listener
	addr     string
	settings []http2.Setting
}

func newFakeServer(t testing.TB, settings ...http2.Setting) *fakeServer {
	lis := listen(t)
	t.Cleanup(func() { lis.Close() })
	return &fakeServer{t: t, lis: lis, addr: lis.Addr().String(), settings: settings}
}

// accept takes the sidecar's next session, up to the exchange of SETTINGS.
func (f *fakeServer) accept() *peer {
	f.t.Helper()
	_ = f.lis.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second))
	conn, err := f.lis.Accept()
	if err != nil {
		f.t.Fatalf("no session from the sidecar: %v", err)
	}
	p := newPeer(f.t, conn)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != http2.ClientPreface {
		f.t.Fatalf("preface %q, %v", preface, err)
	}
	p.do(p.fr.WriteSettings(f.settings...))
	p.do(p.fr.WriteSettingsAck())
	return p
}

// app dials the sidecar as an HTTP/2 client.
func (r *rig) app() *peer {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	p := newPeer(r.t, conn)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	p.do(p.fr.WriteSettings())
	p.do(p.fr.WriteSettingsAck())
	return p
}

func (p *peer) headers(id uint32, end bool, kv ...string) {
	p.t.Helper()
	p.hbuf.Reset()
	p.encode(kv)
	err := p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.hbuf.Bytes(), EndStream: end, EndHeaders: true})
	if err != nil {
		p.t.Fatalf("write headers: %v", err)
	}
}

// do fails the test when a frame could not be written.
func (p *peer) do(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Errorf("write a frame: %v", err)
	}
}

func (p *peer) encode(kv []string) {
	for i := 0; i < len(kv); i += 2 {
		_ = p.henc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
	}
}

// request sends the headers of a gRPC request; extra fields follow.
func (p *peer) request(id uint32, end bool, extra ...string) {
	p.t.Helper()
	p.headers(id, end, append([]string{
		":method", "POST", ":scheme", "http", ":path", "/grpc.testing.TestService/UnaryCall",
		":authority", "pricing.shop:50051", "content-type", "application/grpc", "te", "trailers",
	}, extra...)...)
}

func (p *peer) response(id uint32) {
	p.t.Helper()
	p.headers(id, false, ":status", "200", "content-type", "application/grpc")
}

func (p *peer) trailers(id uint32, status string) {
	p.t.Helper()
	p.headers(id, true, "grpc-status", status)
}

func (p *peer) data(id uint32, end bool, b []byte) {
	p.t.Helper()
	if err := p.fr.WriteData(id, end, b); err != nil {
		p.t.Fatalf("write data: %v", err)
	}
}

// message is a gRPC message of n bytes.
func message(n int) []byte {
	b := make([]byte, 5+n)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	for i := range n {
		b[5+i] = byte('a' + i%26)
	}
	return b
}

// next reads the next frame that is about a stream or is a GOAWAY.
func (p *peer) next() http2.Frame {
	p.t.Helper()
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			p.t.Fatalf("read a frame: %v", err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame, *http2.WindowUpdateFrame:
			continue
		case *http2.PingFrame:
			if !f.IsAck() {
				p.do(p.fr.WritePing(true, f.Data))
			}
			continue
		}
		return f
	}
}

// want reads the next frame and holds its description against want, in which
// a "…" stands for any text. why says which rule is at stake.
func (p *peer) want(why, want string) http2.Frame {
	p.t.Helper()
	f := p.next()
	if got := describe(f); !matches(got, want) {
		p.t.Fatalf("%s:\n got %s\nwant %s", why, got, want)
	}
	return f
}

func matches(got, want string) bool {
	parts := strings.Split(want, "…")
	for i, part := range parts {
		switch {
		case i == 0 && !strings.HasPrefix(got, part), i == len(parts)-1 && !strings.HasSuffix(got, part):
			return false
		}
		at := strings.Index(got, part)
		if at < 0 {
			return false
		}
		got = got[at:]
		if i < len(parts)-1 {
			got = got[len(part):]
		}
	}
	return true
}

// describe is a frame as text: "HEADERS 1 end :status=200 grpc-status=14".
func describe(f http2.Frame) string {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		s := fmt.Sprintf("HEADERS %d", f.StreamID)
		if f.StreamEnded() {
			s += " end"
		}
		for _, h := range f.Fields {
			s += " " + h.Name + "=" + h.Value
		}
		return s
	case *http2.DataFrame:
		s := fmt.Sprintf("DATA %d", f.StreamID)
		if f.StreamEnded() {
			s += " end"
		}
		return s + fmt.Sprintf(" %d bytes", len(f.Data()))
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("RST %d %s", f.StreamID, f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %s", f.LastStreamID, f.ErrCode)
	}
	return f.Header().String()
}

// wantBody reads DATA until n bytes have come, whatever the frames.
func (p *peer) wantBody(why string, n int, end bool) {
	p.t.Helper()
	for {
		f, ok := p.next().(*http2.DataFrame)
		if !ok {
			p.t.Fatalf("%s: not DATA", why)
		}
		if n -= len(f.Data()); n < 0 {
			p.t.Fatalf("%s: %d bytes too many", why, -n)
		}
		p.credit(f.StreamID, len(f.Data()))
		if f.StreamEnded() {
			if n > 0 || !end {
				p.t.Fatalf("%s: ended with %d bytes missing", why, n)
			}
			return
		}
		if n == 0 && !end {
			return
		}
	}
}

func (p *peer) credit(id uint32, n int) {
	if n > 0 {
		p.do(p.fr.WriteWindowUpdate(0, uint32(n)))
		p.do(p.fr.WriteWindowUpdate(id, uint32(n)))
	}
}

// silent checks that no frame about a stream comes for a while.
func (p *peer) silent(why string, d time.Duration) {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(d))
	defer func() { _ = p.conn.SetReadDeadline(time.Now().Add(20 * time.Second)) }()
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			return
		}
		switch f.(type) {
		case *http2.SettingsFrame, *http2.WindowUpdateFrame, *http2.PingFrame:
		default:
			p.t.Fatalf("%s: got %s", why, describe(f))
		}
	}
}
