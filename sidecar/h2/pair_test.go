// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

type field = hpack.HeaderField

// pair is a client and a server session, joined by a transport that carries any
// number of bytes at a time.
type pair struct {
	t              *testing.T
	rnd            *rand.Rand
	now            time.Time
	client, server *Session
	exchanges      []*exchange
}

// exchange is one request with a body and its response.
type exchange struct {
	w                    *pair
	reqLen, respLen      int
	serverGot, clientGot int
	reqLeft, respLeft    int
	clientEnd            bool
	up, down             *Stream
}

type pairSession struct{ w *pair }

func (h pairSession) StreamOpened(st *Stream, f []hpack.HeaderField, end bool) {
	x := h.w.exchanges[(st.ID()-1)/2]
	x.down = st
	st.SetHandler((*serverSide)(x))
	st.WriteHeaders(fieldsOf(":status", "200"), false)
	x.writeResponse()
}
func (h pairSession) HeadersTooLarge(st *Stream, f []hpack.HeaderField) { panic("too large") }
func (h pairSession) SettingsReceived()                                 {}
func (h pairSession) GoAwayReceived(uint32, http2.ErrCode, []byte)      {}
func (h pairSession) CapacityFreed()                                    {}
func (h pairSession) PongReceived(time.Duration)                        {}
func (h pairSession) OutputReady()                                      {}

type serverSide exchange

func (x *serverSide) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {}
func (x *serverSide) DataReceived(st *Stream, p []byte, end bool) {
	x.serverGot += len(p)
	st.Consumed(len(p))
}
func (x *serverSide) DataSent(st *Stream, n int) {}
func (x *serverSide) Closed(st *Stream, end StreamEnd) {
	if end.Kind != Complete {
		x.w.t.Errorf("server: %v", end)
	}
	x.down = nil
}

type clientSide exchange

func (x *clientSide) HeadersReceived(st *Stream, k HeadersKind, f []hpack.HeaderField, end bool) {}
func (x *clientSide) DataReceived(st *Stream, p []byte, end bool) {
	x.clientGot += len(p)
	st.Consumed(len(p))
}
func (x *clientSide) DataSent(st *Stream, n int) {}
func (x *clientSide) Closed(st *Stream, end StreamEnd) {
	if end.Kind != Complete {
		x.w.t.Errorf("client: %v", end)
	}
	x.clientEnd = true
	x.up = nil
}

func newPair(t *testing.T, rnd *rand.Rand) *pair {
	w := &pair{t: t, rnd: rnd, now: time.Unix(1e9, 0)}
	pool := &Pool{}
	config := func() *Config {
		return &Config{
			StreamWindow: 1 + rnd.Int32N(100000), ConnWindow: rnd.Int32N(300000), SessionBuffer: 1 + rnd.Int64N(100000),
			OutputLimit: 1 + rnd.IntN(50000), DecoderTableSize: rnd.IntN(5000) - 1, Pool: pool,
		}
	}
	w.client = New(Client, config(), pairSession{w}, w.now)
	w.server = New(Server, config(), pairSession{w}, w.now)
	return w
}

func (w *pair) openRandom() {
	x := &exchange{w: w, reqLen: w.rnd.IntN(150000), respLen: w.rnd.IntN(150000)}
	x.reqLeft, x.respLeft = x.reqLen, x.respLen
	st, err := w.client.Open((*clientSide)(x))
	if err != nil {
		w.t.Fatal(err)
	}
	x.up = st
	w.exchanges = append(w.exchanges, x)
	st.WriteHeaders(fieldsOf(with("x-n", string(rune('a'+w.rnd.IntN(26))))...), false)
}

func (x *exchange) writeRequest() {
	if x.up == nil || x.reqLeft < 0 || x.up.Queued() > 0 {
		return
	}
	n := min(x.reqLeft, x.w.rnd.IntN(40000))
	x.reqLeft -= n
	end := x.reqLeft == 0
	if end {
		x.reqLeft = -1
	}
	x.up.WriteData(make([]byte, n), end)
}

func (x *exchange) writeResponse() {
	if x.down == nil || x.respLeft < 0 || x.down.Queued() > 0 {
		return
	}
	n := min(x.respLeft, x.w.rnd.IntN(40000))
	x.respLeft -= n
	x.down.WriteData(make([]byte, n), false)
	if x.respLeft == 0 && x.down != nil {
		x.respLeft = -1
		x.down.WriteHeaders(fieldsOf("grpc-status", "0"), true)
	}
}

// step carries some bytes either way.
func (w *pair) step() {
	for _, x := range w.exchanges {
		x.writeRequest()
		x.writeResponse()
	}
	w.carry(w.client, w.server)
	w.carry(w.server, w.client)
}

func (w *pair) carry(from, to *Session) bool {
	out := from.Output()
	if out == nil {
		return false
	}
	n := 1 + w.rnd.IntN(len(out))
	b := append([]byte(nil), out[:n]...)
	from.Wrote(w.now, n)
	if err := to.Receive(w.now, b); err != nil {
		w.t.Fatal(err)
	}
	return true
}

// settle goes on until nothing moves any more.
func (w *pair) settle() {
	for range 100000 {
		open := false
		for _, x := range w.exchanges {
			open = open || x.up != nil || x.down != nil
		}
		if !open && w.client.Output() == nil && w.server.Output() == nil {
			return
		}
		w.step()
	}
	w.t.Error("it does not settle")
}
