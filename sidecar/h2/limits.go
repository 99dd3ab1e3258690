// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"fmt"
	"time"

	"golang.org/x/net/http2"
)

// Abuse is a kind of cheap frame that makes us work.
type Abuse uint8

const (
	// AbuseReset: streams that the peer opened and reset at once
	// (CVE-2023-44487), or made us reset by breaking a rule (CVE-2025-8671).
	AbuseReset Abuse = iota
	// AbuseSettings: SETTINGS frames (CVE-2019-9515).
	AbuseSettings
	// AbusePing: PING frames (CVE-2019-9512).
	AbusePing
	// AbuseEmptyData: DATA frames with neither data nor END_STREAM (CVE-2019-9518).
	AbuseEmptyData
	// AbuseWindowUpdate: WINDOW_UPDATE frames (CVE-2019-9517 uses them).
	AbuseWindowUpdate
	// AbuseIgnored: PRIORITY, unknown frames, and frames on closed streams.
	AbuseIgnored

	numAbuse
)

func (a Abuse) String() string {
	return [...]string{"reset", "settings", "ping", "empty_data", "window_update", "ignored"}[a]
}

// Limit is a token bucket: Burst at once, PerSecond in the long run. On top of
// both, work that an abuser would not do earns tokens; see Limits.
type Limit struct {
	Burst     int32 // 0: the kind's default. Negative: none at all.
	PerSecond int32 // 0: the kind's default. Negative: none in the long run.
}

// Limits bounds each kind of abuse. Beyond it: ENHANCE_YOUR_CALM. None counts
// against honest use, however much: each kind is paid by the work it belongs to.
type Limits struct {
	// Reset: 10,000, 1,000/s. Only streams that the peer resets within 10 ms
	// and before any response count; each other stream that ends earns one.
	Reset Limit
	// Settings: 100, 10/s.
	Settings Limit
	// Ping: 1,000, 100/s. DATA of either direction earns one per frame, as
	// gRPC libraries measure bandwidth by a PING per round trip with data.
	Ping Limit
	// EmptyData: 1,000, 100/s. DATA with data earns one.
	EmptyData Limit
	// WindowUpdate: 10,000, 1,000/s. A DATA frame sent earns ten, a stream two.
	WindowUpdate Limit
	// Ignored: 10,000, 1,000/s. A request earns ten, a stream that we
	// reset four.
	Ignored Limit
}

func (l Limits) withDefaults() Limits {
	def := func(l *Limit, burst, perSecond int32) {
		setDefault(&l.Burst, burst)
		setDefault(&l.PerSecond, perSecond)
		l.Burst, l.PerSecond = max(l.Burst, 0), max(l.PerSecond, 0)
	}
	def(&l.Reset, 10000, 1000)
	def(&l.Settings, 100, 10)
	def(&l.Ping, 1000, 100)
	def(&l.EmptyData, 1000, 100)
	def(&l.WindowUpdate, 10000, 1000)
	def(&l.Ignored, 10000, 1000)
	return l
}

// rapidReset is the age below which a stream that the peer resets counts as
// abuse. Deadlines and user cancellations are longer; a reset that comes in the
// same segment as its request is not.
const rapidReset = 10 * time.Millisecond

// bucket is one Limit in use.
type bucket struct {
	Limit
	tokens int32
	at     time.Duration // when it was last refilled by time
}

func (b *bucket) earn(n int32) { b.tokens = min(b.tokens+n, b.Burst) }

// take takes a token, if there is one. Time's share is added only when it is
// needed, so that the common case is a decrement.
func (b *bucket) take(now time.Duration) bool {
	if b.tokens <= 0 {
		n := int64(now-b.at) * int64(b.PerSecond) / int64(time.Second)
		if n <= 0 {
			return false
		}
		b.at = now
		b.tokens = int32(min(n, int64(b.Burst)))
	}
	b.tokens--
	return b.tokens >= 0
}

func (s *Session) initLimits() {
	l := &s.cfg.Limits
	for i, lim := range [numAbuse]Limit{l.Reset, l.Settings, l.Ping, l.EmptyData, l.WindowUpdate, l.Ignored} {
		s.limits[i] = bucket{Limit: lim, tokens: lim.Burst}
	}
}

// spendOn counts one frame of the kind; an error says that it was one too many.
func (s *Session) spendOn(a Abuse) error {
	if s.limits[a].take(s.now) {
		return nil
	}
	s.stats.Abuse[a]++
	return &ConnectionError{
		Blame: Peer, Code: http2.ErrCodeEnhanceYourCalm,
		Reason: fmt.Sprintf("too many frames of kind %s", a),
	}
}

// rapid reports whether a reset of the stream by the peer counts as abuse.
func (s *Session) rapid(st *Stream) bool {
	if s.now-st.opened < rapidReset && st.headersAt == 0 {
		return true
	}
	s.limits[AbuseReset].earn(1)
	return false
}

func (s *Session) earnByStream() { s.limits[AbuseReset].earn(1) }

func (s *Session) earnByRequest() {
	s.limits[AbuseWindowUpdate].earn(2)
	s.limits[AbuseIgnored].earn(10)
}

// earnByReset: a response's sections, and the peer's own reset, may cross ours.
func (s *Session) earnByReset() { s.limits[AbuseIgnored].earn(4) }

func (s *Session) earnByData() {
	s.limits[AbuseEmptyData].earn(1)
	s.limits[AbusePing].earn(1)
}

func (s *Session) earnByDataSent() {
	s.limits[AbuseWindowUpdate].earn(10)
	s.limits[AbusePing].earn(1)
}

// Stats counts what happened, for metrics.
type Stats struct {
	StreamsOpened    uint64
	StreamsClosed    [ConnectionLost + 1]uint64 // by EndKind
	StreamsRefused   uint64                     // beyond MaxConcurrentStreams
	ResetsReceived   uint64
	ResetsSent       uint64
	ConnectionErrors uint64 // ours, for a fault of the peer's or a timeout
	BytesReceived    uint64
	BytesSent        uint64

	// Bounds that peers ran into.
	Abuse           [numAbuse]uint64 // by Abuse
	HeaderFloods    uint64           // MaxHeaderBlock or MaxContinuations
	HeadersTooLarge uint64           // MaxHeaderListSize
	OutputOverflows uint64           // ControlLimit: peers that do not read
	Timeouts        uint64           // preface, SETTINGS, header block, keepalive
}
