// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// timers holds deadlines, as time since the session's epoch; 0: none.
type timers struct {
	preface  time.Duration // the peer's preface and SETTINGS must be here
	settings time.Duration // our SETTINGS must be acknowledged
	acked    bool          // they are
	drain    time.Duration // the second step of a graceful GOAWAY

	woke   bool          // the first stream was opened, at a time that the next call tells
	active time.Duration // when that was

	pinged   time.Duration // when the PING that is unanswered was sent, + 1 ns
	pingUser bool          // it was Session.Ping's
}

// The opaque data of our PINGs.
const (
	pingProbe uint64 = 0x6576656e6b65656c // "evenkeel"
	pingDrain uint64 = 0x6576656e64726169 // "evendrai"
)

func (t *timers) start(c *Config) {
	t.preface = max(c.PrefaceTimeout, 0)
	t.settings = max(c.SettingsTimeout, 0)
}

// NextDeadline returns when Tick is due; zero: no need.
func (s *Session) NextDeadline() time.Time {
	if s.err != nil {
		return time.Time{}
	}
	next := time.Duration(0)
	soonest := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	soonest(s.timers.preface)
	soonest(s.timers.settings)
	soonest(s.timers.drain)
	soonest(s.headerDeadline())
	soonest(s.keepaliveDeadline())
	if next == 0 {
		return time.Time{}
	}
	return s.epoch.Add(next)
}

// Tick does what is due. Its error is as Receive's.
func (s *Session) Tick(now time.Time) error {
	if s.err != nil {
		return s.err
	}
	s.enter(now)
	due := func(d time.Duration) bool { return d > 0 && s.now >= d }
	switch {
	case due(s.timers.preface):
		s.timeout(http2.ErrCodeSettingsTimeout, "the peer's preface did not come in time")
	case due(s.timers.settings):
		s.timeout(http2.ErrCodeSettingsTimeout, "SETTINGS were not acknowledged in time")
	case due(s.headerDeadline()):
		s.timeout(http2.ErrCodeEnhanceYourCalm, "a field block was not ended in time")
	case due(s.keepaliveDeadline()):
		if s.timers.pinged > 0 {
			s.timeout(http2.ErrCodeNo, "the peer did not answer PING in time")
			break
		}
		s.sendProbe(false)
	}
	if due(s.timers.drain) && s.err == nil {
		s.sendFinalGoAway(http2.ErrCodeNo, "")
	}
	return s.err
}

func (s *Session) timeout(code http2.ErrCode, reason string) {
	s.stats.Timeouts++
	s.fail(&ConnectionError{Blame: Local, Code: code, Reason: reason})
}

func (s *Session) headerDeadline() time.Duration {
	if !s.recv.block.open || s.cfg.HeaderTimeout < 0 {
		return 0
	}
	return s.recv.block.started + s.cfg.HeaderTimeout
}

// keepaliveDeadline is when the peer is to be probed, or given up.
func (s *Session) keepaliveDeadline() time.Duration {
	if s.timers.pinged > 0 {
		// Anything that arrives is a sign of life.
		return max(s.timers.pinged-1, s.recv.last) + s.cfg.KeepaliveTimeout
	}
	if s.cfg.KeepaliveInterval <= 0 || s.OpenStreams() == 0 || !s.established {
		return 0
	}
	return max(s.recv.last, s.timers.active) + s.cfg.KeepaliveInterval
}

// Ping asks for a sign of life; SessionHandler.PongReceived tells the answer. It
// does nothing while an answer is awaited.
func (s *Session) Ping(now time.Time) {
	if s.err != nil {
		return
	}
	s.clock(now)
	s.sendProbe(true)
}

func (s *Session) sendProbe(user bool) {
	s.timers.pingUser = s.timers.pingUser || user
	if s.timers.pinged > 0 {
		return
	}
	s.timers.pinged = s.now + 1
	s.writePing(0, pingProbe)
}

func (s *Session) handlePong(data uint64) error {
	switch {
	case data == pingProbe && s.timers.pinged > 0:
		rtt := s.now + 1 - s.timers.pinged
		user := s.timers.pingUser
		s.timers.pinged, s.timers.pingUser = 0, false
		if user {
			s.h.PongReceived(rtt)
		}
	case data == pingDrain && s.draining:
		if s.timers.drain > 0 {
			s.sendFinalGoAway(http2.ErrCodeNo, "")
		}
	default:
		return s.spendOn(AbusePing)
	}
	return nil
}
