// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// fail answers the app in the server's place, as far as there still is something to answer:
//
//	nothing of the response was passed on   gRPC: trailers-only; else 503 with a text
//	messages were, the last one whole       gRPC: trailers, so that the reason arrives
//	a message was in half; not gRPC         RST_STREAM: nobody may take it for complete
func (r *relay) fail(now time.Time, c code, msg string) {
	if r.done {
		return
	}
	r.finish(now, c)
	r.s.stats.Errors[c]++
	if c == codeUnavailable {
		r.blamed()
	}
	if r.down == nil {
		return
	}
	switch {
	case !r.respBegun && r.grpc:
		r.down.WriteHeaders(trailersOnly(c, msg), true)
	case !r.respBegun:
		r.writeError(c, msg)
	case r.grpc && r.respMsgs.whole():
		r.down.WriteHeaders(trailers(c, msg), true)
	default:
		r.resetDown(http2.ErrCodeInternal)
		return
	}
	if r.down != nil && !r.down.RecvClosed() {
		r.resetDown(http2.ErrCodeNo) // the rest of the request is not wanted
	}
}

// writeError answers a request that is not gRPC.
func (r *relay) writeError(c code, msg string) {
	fields := []hpack.HeaderField{
		{Name: ":status", Value: c.httpStatus()},
		{Name: "content-type", Value: "text/plain; charset=utf-8"},
	}
	r.down.WriteHeaders(fields, r.head)
	if !r.head && r.down != nil {
		r.down.WriteData([]byte(msg+"\n"), true)
	}
}

// finish decides the outcome of the call, once.
func (r *relay) finish(now time.Time, c code) {
	if r.done {
		return
	}
	r.done = true
	r.attemptEnded(now, c)
	r.forget()
	if r.grpc {
		if r.m == nil {
			r.m = r.rpc.method(r.method)
		}
		r.m.of(c).call.observe(now.Sub(r.started).Seconds(), latencyBounds[:])
	}
}

// attemptEnded counts one attempt on one endpoint.
func (r *relay) attemptEnded(now time.Time, c code) {
	if !r.attempting {
		return
	}
	r.attempting = false
	if r.ep != nil {
		r.ep.rpcs[c]++
	} else {
		r.t.rpcs[c]++
	}
	if !r.grpc {
		return
	}
	s := r.m.of(c)
	s.duration.observe(now.Sub(r.attemptAt).Seconds(), latencyBounds[:])
	s.sent.observe(float64(r.reqMsgs.bytes), sizeBounds[:])
	s.received.observe(float64(r.respMsgs.bytes), sizeBounds[:])
}

// where names the endpoint in errors.
func (r *relay) where() string {
	switch {
	case r.t == nil:
		return "the server"
	case r.ep == nil:
		return r.t.addr.String()
	}
	if pod := r.ep.be.Spec().Pod; pod != "" {
		return r.t.addr.String() + " (pod " + pod + " of " + r.ep.svc.name + ")"
	}
	return r.t.addr.String() + " (" + r.ep.svc.name + ")"
}
