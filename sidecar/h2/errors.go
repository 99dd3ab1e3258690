// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
)

var (
	// ErrNoCapacity: the peer's SETTINGS_MAX_CONCURRENT_STREAMS is reached, or
	// it does not read. SessionHandler.CapacityFreed tells when to try again.
	ErrNoCapacity = errors.New("h2: no stream is free on this session")
	// ErrDraining: GOAWAY was seen or sent, stream ids are exhausted, or the
	// session is gone. It opens no more streams.
	ErrDraining = errors.New("h2: the session opens no more streams")
	// ErrHeadersTooLarge is the Cause of a stream that was reset because a
	// field section went beyond Config.MaxHeaderListSize.
	ErrHeadersTooLarge = errors.New("h2: header list is longer than the limit")
)

// Blame says whose fault an error is. A relay must not echo one peer's fault to
// the other as if it were its own.
type Blame uint8

const (
	// Peer: the peer broke the protocol, or a bound.
	Peer Blame = iota
	// Local: we ended it, by decision or since the peer was silent.
	Local
)

func (b Blame) String() string {
	if b == Local {
		return "local"
	}
	return "peer"
}

// ConnectionError ends the connection and each of its streams.
type ConnectionError struct {
	Blame  Blame
	Code   http2.ErrCode // what our GOAWAY says
	Reason string
}

func (e *ConnectionError) Error() string {
	return fmt.Sprintf("h2: connection error %s (%s): %s", e.Code, e.Blame, e.Reason)
}

// StreamError ends one stream; the connection goes on.
type StreamError struct {
	Blame    Blame
	StreamID uint32
	Code     http2.ErrCode // what our RST_STREAM says
	Reason   string

	// cause, when set, is what errors.Is may match.
	cause error
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("h2: stream %d error %s (%s): %s", e.StreamID, e.Code, e.Blame, e.Reason)
}

func (e *StreamError) Unwrap() error { return e.cause }

// connError makes the error of a peer which broke a rule of the connection.
func connError(code http2.ErrCode, reason string) error {
	return &ConnectionError{Blame: Peer, Code: code, Reason: reason}
}

// streamError makes the error of a peer which broke a rule of one stream.
func streamError(id uint32, code http2.ErrCode, reason string) error {
	return &StreamError{Blame: Peer, StreamID: id, Code: code, Reason: reason}
}

// settle is the one place which decides how far a peer's fault reaches: a
// StreamError ends its stream, everything else the connection.
func (s *Session) settle(err error) {
	if se, ok := errors.AsType[*StreamError](err); ok {
		// A peer that makes us reset streams is as costly as one that resets
		// them itself (CVE-2025-8671), so both draw on the same bound.
		if lim := s.spendOn(AbuseReset); lim != nil {
			s.fail(lim)
			return
		}
		s.resetStream(s.streams.get(se.StreamID), se)
		return
	}
	s.fail(err)
}

// fail ends the session: GOAWAY is queued and each stream told. The first cause stays.
func (s *Session) fail(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	if ce, ok := errors.AsType[*ConnectionError](err); ok {
		s.stats.ConnectionErrors++
		s.writeGoAway(s.lastPeerID, ce.Code, ce.Reason)
	}
	s.closeAll(err)
}
