// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// SessionHandler hears what happens to a Session. It is called synchronously,
// in wire order, from within the Session's methods, and may call any method of
// the Session or its Streams except Receive, Wrote and Tick. Slices that are
// passed to it are reused: they hold during the call only (strings stay).
type SessionHandler interface {
	// StreamOpened: the peer opened a stream (Server only). The handler must
	// call st.SetHandler or st.Reset before it returns; else the stream is
	// refused.
	StreamOpened(st *Stream, fields []hpack.HeaderField, end bool)
	// HeadersTooLarge: as StreamOpened, but the request's fields went beyond
	// Config.MaxHeaderListSize; fields are those that fit (pseudo-header fields
	// come first). The request is not usable: answer it by WriteHeaders with
	// end, or Reset. The rest of the request is dropped; if the handler does
	// neither the stream is reset.
	HeadersTooLarge(st *Stream, fields []hpack.HeaderField)
	// SettingsReceived: the first one makes the session Established; later
	// ones may have changed Capacity.
	SettingsReceived()
	// GoAwayReceived: the peer opens (or accepts) no new streams. Streams above
	// last were Closed as Unprocessed before. May be called more than once.
	GoAwayReceived(last uint32, code http2.ErrCode, debug []byte)
	// CapacityFreed: Open, which would have failed, may succeed (Client only).
	CapacityFreed()
	// PongReceived: the answer to Session.Ping.
	PongReceived(rtt time.Duration)
	// OutputReady: Output went from empty to non-empty. It is not called by
	// New nor from within Wrote, whose callers look at Output themselves.
	OutputReady()
}

// Session is one HTTP/2 connection, without the connection: bytes and the time
// go in, events and bytes come out. It has one owner; no method may be called
// concurrently with another of the same Session, of a Stream of it, or of a
// Session that shares its Pool or Stats.
type Session struct {
	role  Role
	cfg   Config
	h     SessionHandler
	pool  *Pool
	stats *Stats

	epoch time.Time     // when New was called
	now   time.Duration // since epoch, as of the last call that brought a time

	// err is set once, when the session is over; nothing is parsed afterwards.
	err error

	recv    receiver
	dec     fieldDecoder
	enc     fieldEncoder
	out     output
	timers  timers
	limits  [numAbuse]bucket
	streams streamTable
	ready   streamList // with data queued and a window to send it
	unsent  streamList // opened here, without an id yet (Client)
	gone    resetRing  // streams we reset: frames for them may still be on their way
	dead    *Stream    // closed, to be pooled when no handler can hold them any more

	lastPeerID  uint32    // highest stream id the peer opened (Server)
	skipped     [2]uint32 // the last gap in the ids that the peer used: above the first, below the second
	nextID      uint32    // next id to use (Client)
	reserved    int       // streams opened here that have no id yet (Client)
	goAwayLimit uint32    // ids above it are not processed (Server: our GOAWAY; Client: the peer's)
	draining    bool      // GOAWAY sent or seen: no more streams are opened
	finalGoAway bool      // our GOAWAY with the real last id is out
	wantedSlot  bool      // Open failed for want of a slot

	peer        peerSettings
	established bool

	// Flow control. What we may still receive, and what we may send.
	recvWindow  int32
	recvInitial int32 // new streams' receive window: 65535 until our SETTINGS are acknowledged
	connOwed    int32 // received and not yet given back to the connection's window
	held        int64 // delivered and not yet Consumed
	sendWindow  int32
}

// New makes a Session and queues its preface. The caller writes Output once it can.
func New(role Role, cfg *Config, h SessionHandler, now time.Time) *Session {
	s := &Session{role: role, cfg: cfg.withDefaults(), h: h, epoch: now}
	s.pool, s.stats = s.cfg.Pool, s.cfg.Stats
	s.peer = defaultPeerSettings()
	s.nextID = 1
	s.goAwayLimit = maxStreamID
	s.recvWindow = initialWindow
	s.recvInitial = initialWindow
	s.sendWindow = initialWindow
	s.dec.init(s.pool, s.cfg.MaxHeaderListSize)
	s.dec.allow(uint32(s.cfg.DecoderTableSize), false)
	s.enc.init(s.cfg.EncoderTableSize)
	s.initLimits()
	s.out.notified = true // the caller looks by itself after New
	s.start()
	return s
}

// clock takes the time that the caller brought.
func (s *Session) clock(now time.Time) {
	if d := now.Sub(s.epoch); d > s.now {
		s.now = d
	}
	if s.timers.woke {
		s.timers.woke, s.timers.active = false, s.now
	}
}

// enter begins a call that no handler makes: nothing on the stack can hold a
// stream that is dead, so these are pooled.
func (s *Session) enter(now time.Time) {
	s.clock(now)
	for st := s.dead; st != nil; {
		next := st.next
		s.pool.putStream(st)
		st = next
	}
	s.dead = nil
}

// Established reports whether the peer's SETTINGS were received.
func (s *Session) Established() bool { return s.established }

// Draining reports whether the session opens (Client) or accepts (Server) no more streams.
func (s *Session) Draining() bool { return s.draining || s.err != nil }

// OpenStreams returns how many streams are not yet Closed.
func (s *Session) OpenStreams() int { return s.streams.len() + s.reserved }

// Finished reports whether nothing is left to do but to close the transport:
// the session drains or failed, no stream is open and the output is written.
func (s *Session) Finished() bool {
	if !s.Draining() || s.OpenStreams() > 0 || s.out.len() > 0 {
		return false
	}
	return s.err != nil || s.role == Client || s.finalGoAway
}

// Err returns what ended the session, nil while it lives.
func (s *Session) Err() error { return s.err }

// Stats returns what happened so far on all sessions that share the Stats.
func (s *Session) Stats() Stats { return *s.stats }

// Held returns the bytes that were delivered to stream handlers and not yet Consumed.
func (s *Session) Held() int64 { return s.held }

// Abort tells each stream that the transport is gone. Nothing is sent.
func (s *Session) Abort(cause error) {
	if s.err != nil {
		return
	}
	if cause == nil {
		cause = ErrDraining
	}
	s.err = cause
	s.closeAll(cause)
	s.out.drop(s.pool)
}
