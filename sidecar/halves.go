// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/h2"
)

type h2Code = http2.ErrCode

// downHalf hears of the downstream stream: the request.
type downHalf struct{ r *relay }

// HeadersReceived implements h2.StreamHandler: the request's trailers.
func (d *downHalf) HeadersReceived(_ *h2.Stream, _ h2.HeadersKind, fields []hpack.HeaderField, _ bool) {
	r := d.r
	r.reqEnd = true
	if r.keeping {
		r.trailers = slices.Clone(fields)
	}
	if r.up != nil {
		r.up.WriteHeaders(fields, true)
	}
}

// DataReceived implements h2.StreamHandler.
func (d *downHalf) DataReceived(st *h2.Stream, p []byte, end bool) {
	r := d.r
	r.reqEnd = end
	if r.grpc {
		r.reqMsgs.feed(p)
	}
	switch {
	case r.up != nil:
		r.keep(p)
		r.up.WriteData(p, end)
	case r.done:
		st.Consumed(len(p)) // nobody wants it any more
	default:
		r.hold(p)
	}
}

// DataSent implements h2.StreamHandler: response bytes are on their way to the app.
func (d *downHalf) DataSent(st *h2.Stream, n int) {
	r := d.r
	if r.up != nil {
		r.up.Consumed(n)
	} else {
		r.taken(n)
	}
	if r.resetLater && st.Queued() == 0 {
		r.flushLater()
	}
}

// Closed implements h2.StreamHandler.
func (d *downHalf) Closed(_ *h2.Stream, end h2.StreamEnd) {
	r := d.r
	now := r.s.loop.Now()
	r.down = nil
	r.taken(r.untaken)
	r.unwait()
	if !r.done {
		// Also when the app's connection has gone: it wants the answer no more.
		r.finish(now, codeCancelled)
	}
	if r.up != nil {
		// When both directions are through, up is just about to close by itself.
		if !r.respEnd || !r.up.SendClosed() || r.up.Queued() > 0 {
			// The response is complete, or not wanted: either way the server
			// need not go on.
			r.up.Reset(http2.ErrCodeCancel)
		}
	} else if r.t != nil {
		r.release(now) // waited for a session
	}
	r.free()
}

// upHalf hears of the upstream stream: the response.
type upHalf struct{ r *relay }

// HeadersReceived implements h2.StreamHandler.
func (u *upHalf) HeadersReceived(st *h2.Stream, kind h2.HeadersKind, fields []hpack.HeaderField, end bool) {
	r := u.r
	r.commit()
	r.respBegun = r.respBegun || kind != h2.Informational
	r.respEnd = end
	if end {
		r.responded(fields)
	}
	if r.down != nil {
		r.down.WriteHeaders(fields, end)
	}
}

// DataReceived implements h2.StreamHandler.
func (u *upHalf) DataReceived(st *h2.Stream, p []byte, end bool) {
	r := u.r
	if r.grpc {
		r.respMsgs.feed(p)
	}
	r.respEnd = end
	if end {
		r.responded(nil)
	}
	if r.down != nil {
		r.down.WriteData(p, end)
	} else {
		st.Consumed(len(p))
	}
}

// DataSent implements h2.StreamHandler: request bytes are on their way to the
// server. Those sent again were given back to the app's window before.
func (u *upHalf) DataSent(_ *h2.Stream, n int) {
	r := u.r
	r.sent += uint64(n)
	if r.sent > r.credited {
		if r.down != nil {
			r.down.Consumed(int(r.sent - r.credited))
		}
		r.credited = r.sent
	}
}

// responded: the server has ended its response.
func (r *relay) responded(last []hpack.HeaderField) {
	c, ok := statusIn(last)
	if !ok && !r.grpc {
		c = codeOK
	}
	r.finish(r.s.loop.Now(), c)
}

// Closed implements h2.StreamHandler. It is the one place that decides what the
// end of the upstream stream means for the app.
func (u *upHalf) Closed(st *h2.Stream, end h2.StreamEnd) {
	r := u.r
	now := r.s.loop.Now()
	r.up = nil
	switch {
	case r.respEnd:
		// Whatever came behind the whole response does not make it less whole.
		r.release(now)
		if r.down != nil && !r.down.RecvClosed() {
			// RFC 9113, 8.1: a server may answer before it has read all and then
			// "request that the client abort transmission of a request without
			// error by sending a RST_STREAM with an error code of NO_ERROR".
			r.resetDown(http2.ErrCodeNo)
		}
	case r.down == nil:
		r.release(now)
	case end.Kind == h2.Unprocessed && r.again(now, end):
	case end.Kind == h2.ResetByPeer:
		// The same code: the app's library makes of it what it would make of
		// the server's own.
		r.finish(now, codeOfReset(end.Code))
		r.release(now)
		r.resetDown(end.Code)
	default:
		c, msg := r.explain(end)
		r.attemptEnded(now, c)
		r.blame()
		r.release(now)
		r.fail(now, c, msg)
	}
	r.keepUntaken(st)
	r.free()
}

// explain says what the app is told about an end that is not the server's own word.
func (r *relay) explain(end h2.StreamEnd) (code, string) {
	where := r.where()
	switch {
	case end.Kind == h2.Unprocessed:
		return codeUnavailable, "evenkeel: " + where + " did not process the request (" + reason(end) + "), and " + r.whyNotAgain()
	case errors.Is(end.Cause, h2.ErrHeadersTooLarge):
		return codeResourceExhausted, "evenkeel: the response headers of " + where + " are larger than the sidecar takes"
	case end.Kind == h2.ResetLocally:
		return codeInternal, "evenkeel: " + where + " broke HTTP/2: " + reason(end)
	}
	return codeUnavailable, "evenkeel: lost the connection to " + where + ": " + reason(end) // Complete is respEnd
}

func reason(end h2.StreamEnd) string {
	if end.Cause != nil {
		return end.Cause.Error()
	}
	return end.Code.String()
}

// codeOfReset is what a gRPC client makes of RST_STREAM, for the metrics:
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#errors
func codeOfReset(c http2.ErrCode) code {
	switch c {
	case http2.ErrCodeCancel:
		return codeCancelled
	case http2.ErrCodeRefusedStream:
		return codeUnavailable
	case http2.ErrCodeEnhanceYourCalm:
		return codeResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return code(7) // PERMISSION_DENIED
	}
	return codeInternal
}

// resetDown ends the downstream stream by RST_STREAM, behind what is queued for it.
func (r *relay) resetDown(c http2.ErrCode) {
	if r.down == nil {
		return
	}
	if r.down.Queued() == 0 {
		r.down.Reset(c)
		return
	}
	r.resetLater, r.resetCode = true, c
}

// flushLater has Flush called at the end of the turn.
func (r *relay) flushLater() {
	if !r.flushing {
		r.flushing = true
		r.s.loop.Dirty(r)
	}
}

// Flush implements loop.Flusher: what must not be done from within a session's call.
func (r *relay) Flush(now time.Time) {
	r.flushing = false
	if r.resetLater && r.down != nil && r.down.Queued() == 0 {
		r.resetLater = false
		r.down.Reset(r.resetCode)
	}
	if r.rerun {
		r.rerun = false
		if r.down != nil {
			r.dispatch(now)
		}
	}
	r.free()
}
