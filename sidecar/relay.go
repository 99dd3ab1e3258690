// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"time"

	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/upstream"
)

// relay joins one downstream stream to one upstream stream. See doc.go for its states.
//
// Relays are pooled: one is used again in the turn after both of its streams have closed, when nothing
// on the stack can hold it any more.
type relay struct {
	s *Sidecar
	d downHalf // hears of down
	u upHalf   // hears of up

	ds   *downSession
	down *h2.Stream // nil once closed
	up   *h2.Stream // nil while there is none
	done bool       // the outcome is decided and counted

	// The request. Its strings live as long as somebody holds them.
	req       []hpack.HeaderField
	reqEnd    bool // the app has ended it
	trailers  []hpack.HeaderField
	method    string
	authority string
	head      bool
	grpc      bool
	started   time.Time
	timeoutAt int       // index of grpc-timeout in req; -1: none
	deadline  time.Time // zero: none
	reqMsgs   framing

	// Sending, and sending again.
	kept     keptBody // from its first byte, while keeping
	keeping  bool
	credited uint64 // bytes of the body given back to the app's window
	sent     uint64 // bytes of the body that left on the current attempt
	attempts int
	tried    []*balancer.Endpoint
	retired  bool // the latest refusal was a graceful GOAWAY
	rerun    bool // dispatch at the end of the turn
	lastErr  error

	// Where it goes.
	svc        *service
	ep         *endpoint // nil when t was reached without a service
	t          *target
	flies      relayLink    // in the flights of ep, or of t
	culprit    *endpoint    // whose fault it is that the RPC is where it is,
	culpritAt  *target      // or the address's
	rpc        *rpcStats    // of svc, or of t
	m          *methodStats // of the current attempt
	attempting bool
	attemptAt  time.Time

	// The response.
	committed bool // its first byte was seen: no other endpoint any more
	respBegun bool // its header section was passed on (1xx is none)
	respEnd   bool
	respMsgs  framing
	// What the app has yet to take of a response whose stream has closed, and
	// the session which it came on.
	untaken     int
	untakenFrom *h2.Session

	// Waiting.
	list       *waitList
	waits      relayLink
	ticket     upstream.Ticket
	timer      loop.Timer
	waitFor    waitReason
	routeBy    time.Time // bounds of the waits, from their begin
	endpointBy time.Time

	// Behind data that is still queued for the app.
	resetLater bool
	resetCode  h2Code
	flushing   bool
}

// begin takes a request over.
func (r *relay) begin(now time.Time, ds *downSession, st *h2.Stream, fields []hpack.HeaderField, end bool) {
	r.ds, r.down, r.started, r.reqEnd = ds, st, now, end
	r.rpc = &r.s.unrouted
	r.keeping, r.timeoutAt = true, -1
	ds.relays++
	r.s.relays++
	st.SetHandler(&r.d)
	r.req = append(r.req[:0], fields...)
	for i := range r.req {
		f := &r.req[i]
		switch f.Name {
		case ":method":
			r.head = f.Value == "HEAD"
		case ":path":
			r.method = f.Value
		case ":authority":
			r.authority = f.Value
		case "host":
			if r.authority == "" {
				r.authority = f.Value
			}
		case "content-type":
			r.grpc = isGRPC(f.Value)
		case "grpc-timeout":
			if d, ok := parseTimeout(f.Value); ok {
				r.timeoutAt, r.deadline = i, now.Add(d)
			}
		}
	}
	r.dispatch(now)
}

// connect opens the upstream stream, or queues for it.
func (r *relay) connect(now time.Time, t *target, ep *endpoint) error {
	r.t, r.ep, r.attemptAt = t, ep, now
	if ep == nil {
		t.flights.push(r)
		t.picked++
		t.lastUse = now
		t.mark()
	} else {
		ep.flights.push(r)
		if ep.draining {
			ep.mark()
		}
	}
	st, err := t.pool.Open(now, &r.u, &r.ticket, r)
	switch {
	case err != nil:
		r.blame()
		r.release(now)
		return err
	case st != nil:
		r.unwait()
		r.send(now, st)
	default:
		if r.list != nil {
			r.list.remove(r)
		}
		r.wait(waitSession, time.Time{})
	}
	return nil
}

// StreamReady implements upstream.Waiter.
func (r *relay) StreamReady(now time.Time, st *h2.Stream) {
	r.unwait()
	r.send(now, st)
}

// StreamRefused implements upstream.Waiter: nothing was sent.
func (r *relay) StreamRefused(now time.Time, err error) {
	r.unwait()
	r.blame()
	r.release(now)
	r.unreachable(now, err)
}

// send writes what there is of the request.
func (r *relay) send(now time.Time, st *h2.Stream) {
	r.up = st
	r.attempts++
	r.attemptAt = now
	if r.ep != nil {
		r.ep.flights.began(r)
		if r.ep.draining {
			r.ep.mark()
		}
	} else {
		r.t.flights.began(r)
	}
	r.sent = 0
	r.attempting = true
	if r.grpc {
		r.m = r.rpc.method(r.method)
		r.m.started++
	}
	if r.timeoutAt >= 0 && !now.Equal(r.started) {
		// What is left of it: time spent here is time spent.
		r.req[r.timeoutAt].Value = formatTimeout(r.deadline.Sub(now))
	}
	end := r.reqEnd && r.trailers == nil
	st.WriteHeaders(r.req, end && r.kept.n == 0)
	// Any of these calls may find the session dead, and close the stream.
	if r.kept.n > 0 && r.up == st {
		r.sendKept(st, end)
	}
	if r.trailers != nil && r.up == st {
		st.WriteHeaders(r.trailers, true)
	}
	r.trim()
}

// account has the RPC counted under a service, or an address.
func (r *relay) account(to *rpcStats) {
	if r.rpc != to {
		r.rpc, r.m = to, nil
	}
}

// release gives back the endpoint.
func (r *relay) release(now time.Time) {
	switch {
	case r.ep != nil:
		r.ep.be.Done(now)
		r.ep.flights.remove(r)
		if r.ep.draining {
			r.ep.landed()
		}
	case r.t != nil:
		r.t.flights.remove(r)
		r.t.mark()
	}
	r.ep, r.t = nil, nil
}

// keepUntaken has the closed upstream stream's bytes count as held until the app takes them.
func (r *relay) keepUntaken(up *h2.Stream) {
	if r.down == nil || r.down.Queued() == 0 {
		return
	}
	r.untaken, r.untakenFrom = r.down.Queued(), up.Session()
	r.untakenFrom.Keep(r.untaken)
}

// taken: the app took n bytes.
func (r *relay) taken(n int) {
	if n = min(n, r.untaken); n > 0 {
		r.untaken -= n
		r.untakenFrom.Release(n)
	}
}

// free recycles the relay once both sides have closed.
func (r *relay) free() {
	if r.down != nil || r.up != nil || r.flushing || r.ds == nil {
		return
	}
	r.unwait()
	r.forget()
	r.ds.relays--
	r.s.relays--
	r.ds = nil
	r.s.recycler.put(r)
}

// recycler gives relays to new streams in the turn after they were freed.
type recycler struct {
	s     *Sidecar
	spent []*relay
	ready []*relay
}

// Bounds of what an idle relay keeps, and of how many idle ones are kept.
const (
	keepRelays = 1024
)

func (p *recycler) put(r *relay) {
	if len(p.spent) == 0 {
		p.s.loop.Dirty(p)
	}
	p.spent = append(p.spent, r)
}

// Flush implements loop.Flusher: the end of the turn.
func (p *recycler) Flush(time.Time) {
	for i, r := range p.spent {
		p.spent[i] = nil
		if len(p.ready) < keepRelays {
			r.reset()
			p.ready = append(p.ready, r)
		}
	}
	p.spent = p.spent[:0]
}

func (p *recycler) get() *relay {
	if n := len(p.ready); n > 0 {
		r := p.ready[n-1]
		p.ready[n-1] = nil
		p.ready = p.ready[:n-1]
		return r
	}
	r := &relay{s: p.s}
	r.d.r, r.u.r = r, r
	return r
}

// reset brings the relay back to its zero value, but for what is worth keeping.
func (r *relay) reset() {
	s, req, kept, tried := r.s, r.req, r.kept, r.tried
	clear(req)
	clear(tried)
	*r = relay{s: s, req: req[:0], kept: kept, tried: tried[:0]}
	r.d.r, r.u.r = r, r
}
