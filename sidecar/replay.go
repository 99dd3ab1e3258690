// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"fmt"
	"time"

	"golang.org/x/net/http2"

	"evenkeel.dev/sidecar/h2"
)

// Replay is gRFC A6's transparent retry: a request that provably no server
// application has seen is sent to another endpoint, and the app does not notice. A6 has
// two cases. What never left the client may be tried again without bound; here
// that is a session which could not be made, and never an attempt. What "left the
// client's library" but "has not been seen by the server application logic" is retried once in A6,
// as it doubles the load of a server that refuses; here it goes to a different
// endpoint each time, so none is asked twice, and ReplayAttempts bounds it.

// keep notes a piece of the request that is also being sent.
func (r *relay) keep(p []byte) {
	if !r.keeping {
		return
	}
	s := r.s
	// A message's length is known from its first bytes: one that will be too
	// large is not copied until it is.
	size := r.kept.n + len(p) + int(r.reqMsgs.left)
	if size > s.cfg.ReplayBytes || s.keptBytes+len(p) > s.cfg.ReplayBudget {
		r.forget()
		s.stats.ReplayGivenUp++
		return
	}
	r.hold(p)
}

// hold keeps a piece of a request that is not being sent yet. It needs no bound of
// its own: these bytes are not given back to the app's windows.
func (r *relay) hold(p []byte) {
	r.kept.append(&r.s.bodies, p)
	r.s.keptBytes += len(p)
}

// sendKept writes what is kept to a new upstream stream.
func (r *relay) sendKept(st *h2.Stream, end bool) {
	last := len(r.kept.chunks)
	st.WriteData(r.kept.head, end && last == 0)
	for i := 0; i < last && r.up == st; i++ {
		c := r.kept.chunks[i]
		st.WriteData(c.b[:c.n], end && i == last-1)
	}
}

// trim ends the keeping of a request that became too large while it waited.
func (r *relay) trim() {
	cfg := &r.s.cfg
	if r.keeping && r.kept.n > 0 && (r.kept.n > cfg.ReplayBytes || r.s.keptBytes > cfg.ReplayBudget) {
		r.forget()
		r.s.stats.ReplayGivenUp++
	}
}

// forget ends the keeping.
func (r *relay) forget() {
	r.keeping = false
	r.s.keptBytes -= r.kept.n
	r.kept.free(&r.s.bodies)
	r.trailers = nil
}

// commit: a byte of the response was seen, so the request was.
func (r *relay) commit() {
	if !r.committed {
		r.committed = true
		r.forget()
	}
}

// again sends an unprocessed request elsewhere, at the end of the turn.
func (r *relay) again(now time.Time, end h2.StreamEnd) bool {
	if r.committed || !r.keeping || r.attempts >= r.s.cfg.ReplayAttempts {
		return false
	}
	// REFUSED_STREAM is the endpoint's word. A GOAWAY, or a connection that was
	// lost before the request was on it, is about the connection only.
	refused := end.Code == http2.ErrCodeRefusedStream
	if r.ep == nil && refused {
		return false // there is no other endpoint
	}
	r.lastErr = fmt.Errorf("%s did not process it (%s)", r.t.addr, reason(end))
	if r.ep != nil {
		r.tried = append(r.tried, r.ep.be)
	}
	r.retired = !refused
	r.attemptEnded(now, codeUnavailable)
	r.blame()
	if r.ep != nil {
		r.ep.replayed++
		r.ep.mark()
	} else {
		r.t.replayed++
		r.t.mark()
	}
	r.release(now)
	r.s.stats.Replays++
	r.rerun = true
	r.flushLater()
	return true
}

func (r *relay) whyNotAgain() string {
	switch {
	case r.committed:
		return "a part of the response had been seen"
	case !r.keeping:
		return "the request was too large to be kept for another endpoint"
	case r.attempts >= r.s.cfg.ReplayAttempts:
		return fmt.Sprintf("so did %d endpoints before", r.attempts-1)
	}
	return "there is no other endpoint"
}
