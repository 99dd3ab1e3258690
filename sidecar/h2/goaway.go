// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
)

// Shutdown sends GOAWAY and lets the open streams end; Finished tells when they
// have. With NO_ERROR a Server takes the graceful way of RFC 9113 section 6.8:
// first a GOAWAY that refuses nothing, and the real one a round trip later, so
// that no request which is on its way is lost.
func (s *Session) Shutdown(now time.Time, code http2.ErrCode, debug string) {
	if s.err != nil {
		return
	}
	s.clock(now)
	if s.role == Client {
		if !s.finalGoAway {
			s.writeGoAway(0, code, debug)
		}
		s.draining, s.finalGoAway = true, true
		return
	}
	if s.finalGoAway {
		return
	}
	if code == http2.ErrCodeNo && !s.draining {
		s.draining = true
		s.writeGoAway(maxStreamID, code, debug)
		s.writePing(0, pingDrain)
		s.timers.drain = s.now + s.cfg.DrainDelay
		return
	}
	if code != http2.ErrCodeNo {
		s.draining = true
		s.sendFinalGoAway(code, debug)
	}
}

// sendFinalGoAway refuses what comes after the last stream seen.
func (s *Session) sendFinalGoAway(code http2.ErrCode, debug string) {
	if s.finalGoAway {
		return
	}
	s.finalGoAway = true
	s.timers.drain = 0
	s.goAwayLimit = s.lastPeerID
	s.writeGoAway(s.lastPeerID, code, debug)
}

// beyondGoAway reports whether our GOAWAY has declined the stream (Server).
func (s *Session) beyondGoAway(id uint32) bool { return s.role == Server && id > s.goAwayLimit }

func (s *Session) handleGoAway(f frameHeader, p []byte) error {
	if f.id != 0 {
		return connError(http2.ErrCodeProtocol, "GOAWAY on a stream")
	}
	if len(p) < 8 {
		return connError(http2.ErrCodeFrameSize, "GOAWAY is shorter than 8 bytes")
	}
	if err := s.spendOn(AbuseSettings); err != nil {
		return err
	}
	last := binary.BigEndian.Uint32(p) & maxStreamID
	code := http2.ErrCode(binary.BigEndian.Uint32(p[4:]))
	if s.role == Client {
		s.draining = true
		s.declined(last, code)
	}
	if s.err == nil {
		s.h.GoAwayReceived(last, code, p[8:])
	}
	return nil
}

// declined closes the streams that the peer's GOAWAY says it did not and will
// not process. A later GOAWAY may lower last, never raise it ("MUST NOT increase
// the value", RFC 9113 section 6.8): then these are closed already.
func (s *Session) declined(last uint32, code http2.ErrCode) {
	if last >= s.goAwayLimit && s.unsent.first == nil {
		return
	}
	s.goAwayLimit = min(last, s.goAwayLimit)
	end := StreamEnd{Kind: Unprocessed, Code: code, Cause: ErrDraining}
	for st := s.unsent.first; st != nil; st = s.unsent.first {
		s.closeStream(st, end)
	}
	for _, st := range s.streams.all(func(st *Stream) bool { return st.id > last }) {
		s.gone.add(st.id)
		end := end
		if st.replied {
			// The peer answered what it says it will not process: a replay
			// might run the request twice.
			end.Kind = ConnectionLost
		}
		s.closeStream(st, end)
	}
}
