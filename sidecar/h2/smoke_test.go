// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

type nopSession struct{ SessionHandler }

func (nopSession) SettingsReceived()                            {}
func (nopSession) GoAwayReceived(uint32, http2.ErrCode, []byte) {}
func (nopSession) CapacityFreed()                               {}
func (nopSession) PongReceived(time.Duration)                   {}
func (nopSession) OutputReady()                                 {}

type echoSession struct{ nopSession }

func (echoSession) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	st.SetHandler(echoStream{})
	st.WriteHeaders([]hpack.HeaderField{{Name: ":status", Value: "200"}}, end)
}
func (echoSession) HeadersTooLarge(st *Stream, f []hpack.HeaderField) {}

type echoStream struct{}

func (echoStream) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {
	st.WriteHeaders([]hpack.HeaderField{{Name: "grpc-status", Value: "0"}}, true)
}
func (echoStream) DataReceived(st *Stream, p []byte, end bool) { st.WriteData(p, end) }
func (echoStream) DataSent(st *Stream, n int)                  { st.Consumed(n) }
func (echoStream) Closed(st *Stream, end StreamEnd)            {}

type recStream struct {
	t    *testing.T
	data []byte
	end  *StreamEnd
}

func (r *recStream) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {}
func (r *recStream) DataReceived(st *Stream, p []byte, end bool) {
	r.data = append(r.data, p...)
	st.Consumed(len(p))
}
func (r *recStream) DataSent(st *Stream, n int)       {}
func (r *recStream) Closed(st *Stream, end StreamEnd) { r.end = &end }

func TestSmoke(t *testing.T) {
	now := time.Unix(1, 0)
	srv := New(Server, nil, echoSession{}, now)
	cl := New(Client, nil, nopSession{}, now)
	move := func() {
		for {
			a, b := cl.Output(), srv.Output()
			if len(a) > 0 {
				if err := srv.Receive(now, a); err != nil {
					t.Fatal(err)
				}
				cl.Wrote(now, len(a))
				continue
			}
			if len(b) > 0 {
				if err := cl.Receive(now, b); err != nil {
					t.Fatal(err)
				}
				srv.Wrote(now, len(b))
				continue
			}
			return
		}
	}
	move()
	r := &recStream{t: t}
	st, err := cl.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	st.WriteHeaders([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/x"}, {Name: ":authority", Value: "a"}}, false)
	st.WriteData(make([]byte, 3<<20), true)
	move()
	if r.end == nil || r.end.Kind != Complete || len(r.data) != 3<<20 {
		t.Fatalf("end %+v, %d bytes", r.end, len(r.data))
	}
}
