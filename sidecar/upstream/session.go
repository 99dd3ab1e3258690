// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
)

// session is one connection of a pool. It is in p.opening, then in p.ready, then
// in neither while its last streams end.
type session struct {
	p       *Pool
	h2      *h2.Session
	conn    *loop.Conn
	dialing *loop.Dialing
	timer   loop.Timer // while opening: slow, then too late
	slow    bool
	since   time.Time // when dialling began
	place   int       // in Pools.sessions; -1: not there

	idleSince    time.Time // zero: has streams, or was just used
	probing      bool      // keepalive is tight, since the peer owes us an answer
	suspectSince time.Time // the peer has not acknowledged what we sent
}

func (p *Pool) dial(now time.Time) {
	cfg := &p.ps.cfg
	s := &session{p: p, since: now, place: -1}
	p.opening = append(p.opening, s)
	p.ps.stats.Dials++
	s.dialing = cfg.Loop.Dial(p.addr, cfg.ConnectTimeout, s)
	cfg.Loop.SetTimer(&s.timer, now.Add(cfg.SlowConnect), s)
}

// Dialed implements loop.DialHandler.
func (s *session) Dialed(now time.Time, fd *loop.FD, err error) {
	s.dialing = nil
	if err != nil {
		s.failed(now, err)
		return
	}
	cfg := &s.p.ps.cfg
	relaxKeepalive(fd.Raw())
	s.h2 = h2.New(h2.Client, &cfg.H2, s, now)
	s.conn = cfg.Loop.NewConn(fd, s.h2, s)
	s.p.ps.add(s)
}

// Expired implements loop.TimerHandler: still not established.
func (s *session) Expired(now time.Time, t *loop.Timer) {
	cfg := &s.p.ps.cfg
	if !s.slow {
		s.slow = true
		cfg.Loop.SetTimer(t, s.since.Add(cfg.ConnectTimeout), s)
		if len(s.p.ready) == 0 {
			s.p.observer.Slow(now)
		}
		return
	}
	err := fmt.Errorf("dial %s: no HTTP/2 SETTINGS in %s", s.p.addr, cfg.ConnectTimeout)
	if s.dialing != nil {
		err = fmt.Errorf("dial %s: no answer in %s", s.p.addr, cfg.ConnectTimeout)
	}
	s.failed(now, err)
	s.drop(now, err)
}

func (s *session) open(h h2.StreamHandler) *h2.Stream {
	st, err := s.h2.Open(h)
	if err != nil {
		return nil
	}
	s.idleSince = time.Time{}
	return st
}

// clogged: streams whose app does not read hold much of what the session may
// buffer. Once they hold all of it the connection's window shuts, and responses of all its
// streams stop behind theirs; new streams had better be elsewhere.
func (s *session) clogged() bool { return s.h2.Held() > s.p.ps.cfg.clogged }

// SettingsReceived implements h2.SessionHandler. Only now is the session used: a
// connect alone does not tell that an HTTP/2 server is there, and how many
// streams it takes.
func (s *session) SettingsReceived() {
	p, now := s.p, s.p.ps.cfg.Loop.Now()
	i := slices.Index(p.opening, s)
	if i < 0 {
		p.serve(now) // capacity may have changed
		return
	}
	p.opening = slices.Delete(p.opening, i, i+1)
	p.ps.cfg.Loop.StopTimer(&s.timer)
	p.ready = append(p.ready, s)
	p.ps.stats.SessionsOpened++
	s.idleSince = now
	p.failures, p.lastErr = 0, nil
	// A server that takes connections and drops them at once is not dialled
	// in a tight circle.
	p.nextDial = now.Add(p.ps.cfg.BackoffMin)
	if len(p.ready) == 1 {
		p.observer.Connected(now)
	}
	p.serve(now)
}

// CapacityFreed implements h2.SessionHandler.
func (s *session) CapacityFreed() {
	if s.p.queue.n > 0 {
		s.p.serve(s.p.ps.cfg.Loop.Now())
	}
}

// GoAwayReceived implements h2.SessionHandler. The replacement is dialled
// before the next RPC needs it.
func (s *session) GoAwayReceived(_ uint32, code http2.ErrCode, debug []byte) {
	p := s.p
	p.ps.stats.GoAways++
	if code != http2.ErrCodeNo {
		p.ps.cfg.Logger.Warn("server sent GOAWAY with an error", "endpoint", p.addr.String(),
			"code", code.String(), "debug", string(debug[:min(len(debug), 128)]))
	}
	s.leave(p.ps.cfg.Loop.Now(), fmt.Errorf("%s: GOAWAY %s before SETTINGS", p.addr, code))
}

// OutputReady implements h2.SessionHandler.
func (s *session) OutputReady() {
	if s.conn != nil { // New's own output is written by NewConn
		s.conn.MarkDirty()
	}
}

// PongReceived implements h2.SessionHandler; no pings are sent.
func (s *session) PongReceived(time.Duration) {}

// StreamOpened implements h2.SessionHandler: a Client's peer opens none.
func (s *session) StreamOpened(st *h2.Stream, _ []hpack.HeaderField, _ bool) {
	st.Reset(http2.ErrCodeRefusedStream)
}

// HeadersTooLarge implements h2.SessionHandler; see StreamOpened.
func (s *session) HeadersTooLarge(st *h2.Stream, _ []hpack.HeaderField) {
	st.Reset(http2.ErrCodeRefusedStream)
}

// ConnEnded implements loop.Owner.
func (s *session) ConnEnded(now time.Time, cause error) {
	p := s.p
	if s.place >= 0 {
		p.ps.remove(s)
		s.place = -1
	}
	p.ps.stats.SessionsEnd++
	if !errors.Is(cause, loop.ErrFinished) {
		p.ps.cfg.Logger.Debug("session to server ended", "endpoint", p.addr.String(), "cause", cause)
	}
	s.leave(now, fmt.Errorf("%s: connection ended before HTTP/2 SETTINGS: %w", p.addr, cause))
}

// leave takes the session out of the pool's lists: no new streams. err is for one that never took any.
func (s *session) leave(now time.Time, err error) {
	p := s.p
	if i := slices.Index(p.ready, s); i >= 0 {
		p.ready = slices.Delete(p.ready, i, i+1)
		if len(p.ready) == 0 {
			p.observer.Disconnected(now)
		}
		p.grow(now)
		return
	}
	if slices.Contains(p.opening, s) {
		s.failed(now, err)
	}
}

// failed: no session came of it.
func (s *session) failed(now time.Time, err error) {
	p := s.p
	i := slices.Index(p.opening, s)
	if i < 0 {
		return
	}
	p.opening = slices.Delete(p.opening, i, i+1)
	p.ps.cfg.Loop.StopTimer(&s.timer)
	p.ps.stats.DialFailures++
	p.failures++
	p.lastErr = err
	p.nextDial = now.Add(p.backoff())
	if len(p.ready) > 0 {
		p.grow(now) // one more was wanted; the queue still has the others
		return
	}
	if p.failures == 1 {
		p.ps.cfg.Logger.Warn("cannot connect to server", "endpoint", p.addr.String(), "error", err)
	}
	p.observer.Failing(now, p.nextDial, err)
	p.failQueue(now, err)
	p.grow(now)
}

// drop ends whatever transport there is.
func (s *session) drop(now time.Time, cause error) {
	if s.dialing != nil {
		s.dialing.Cancel()
		s.dialing = nil
	}
	if s.conn != nil {
		s.conn.Close(now, cause)
	}
}

// abandon ends a session that is not established, without blame.
func (s *session) abandon(now time.Time) {
	p := s.p
	if i := slices.Index(p.opening, s); i >= 0 {
		p.opening = slices.Delete(p.opening, i, i+1)
	}
	p.ps.cfg.Loop.StopTimer(&s.timer)
	s.drop(now, ErrClosed)
}

// retire sends GOAWAY and lets the streams end; the connection then closes.
func (s *session) retire(now time.Time) {
	s.h2.Shutdown(now, http2.ErrCodeNo, "")
	s.conn.MarkDirty()
}
