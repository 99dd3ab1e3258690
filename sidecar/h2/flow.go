// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// giveBack returns n received bytes to the connection's window, in batches.
func (s *Session) giveBack(n int32) {
	s.connOwed += n
	s.updateConnWindow()
}

// updateConnWindow announces what is owed once it is worth a frame, unless too
// much is held. What a sender may still send plus what is owed is always
// ConnWindow, so a sender that is blocked is owed all of it.
func (s *Session) updateConnWindow() {
	if s.connOwed < s.cfg.ConnWindow/2 || s.holdsTooMuch() || s.err != nil {
		return
	}
	s.writeWindowUpdate(0, uint32(s.connOwed))
	s.recvWindow += s.connOwed
	s.connOwed = 0
}

// holdsTooMuch reports whether the session's relays hold more than its share: its
// own bound, or, when all sessions of the pool together hold too much, a little
// that leaves every session able to go on.
func (s *Session) holdsTooMuch() bool {
	return s.held >= s.cfg.SessionBuffer || s.held >= shareWhenFull && s.pool.held >= s.pool.maxHeld()
}

const shareWhenFull = 64 << 10

// hold counts n bytes (or, below 0, gives them up) that relays hold of the session.
func (s *Session) hold(n int32) {
	s.held += int64(n)
	s.pool.held += int64(n)
}

// Keep counts bytes as held that came on a stream which has closed since: the
// message is complete, but its other side has yet to take them. Release undoes it.
func (s *Session) Keep(n int) { s.hold(int32(n)) }

// Release gives back what Keep counted; also after the session's end.
func (s *Session) Release(n int) {
	s.hold(int32(-n))
	if s.connOwed > 0 {
		s.updateConnWindow()
	}
}

// Consumed gives n delivered bytes back to the stream's window, once they went
// out on the other side.
func (st *Stream) Consumed(n int) {
	if st.closed || n <= 0 {
		return
	}
	s := st.s
	m := int32(min(n, int(st.held)))
	st.held -= m
	s.hold(-m)
	st.giveBack(m)
	if s.connOwed > 0 {
		s.updateConnWindow()
	}
}

// giveBack returns n bytes to the stream's window, in batches. A peer that has
// sent END_STREAM needs no window.
func (st *Stream) giveBack(n int32) {
	if st.recvEnd {
		return
	}
	st.owed += n
	s := st.s
	if st.owed < max(s.recvInitial/2, 1) || s.err != nil {
		return
	}
	s.writeWindowUpdate(st.id, uint32(st.owed))
	st.recvWindow += st.owed
	st.owed = 0
}

func (s *Session) handleWindowUpdate(f frameHeader, p []byte) error {
	if len(p) != 4 {
		return connError(http2.ErrCodeFrameSize, "WINDOW_UPDATE is not 4 bytes long")
	}
	if f.id != 0 && s.idle(f.id) {
		return connError(http2.ErrCodeProtocol, "WINDOW_UPDATE on a stream that was never opened")
	}
	if err := s.spendOn(AbuseWindowUpdate); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(p) & maxWindow
	if f.id == 0 {
		if n == 0 {
			return connError(http2.ErrCodeProtocol, "WINDOW_UPDATE of 0 on the connection")
		}
		if int64(s.sendWindow)+int64(n) > maxWindow {
			return connError(http2.ErrCodeFlowControl, "the connection's window overflows")
		}
		s.sendWindow += int32(n)
		return nil
	}
	st := s.streams.get(f.id)
	if st == nil {
		return nil // "MUST NOT treat this as an error" (RFC 9113 section 6.9)
	}
	if n == 0 {
		return streamError(f.id, http2.ErrCodeProtocol, "WINDOW_UPDATE of 0")
	}
	if int64(st.sendWindow)+int64(n) > maxWindow {
		return streamError(f.id, http2.ErrCodeFlowControl, "the stream's window overflows")
	}
	st.sendWindow += int32(n)
	s.markReady(st)
	return nil
}
