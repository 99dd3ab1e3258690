// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Peers that vanish without a FIN are found by TCP, not by HTTP/2 PING: gRPC
// servers end connections that ping more often than each 5 minutes
// (too_many_pings), and TCP's probes are answered by the kernel even when the server is busy.
//
// Two cases. The peer owes data (a stream is open, all was acknowledged): SO_KEEPALIVE
// with 3 s idle, 2 s interval and 2 probes, so 7 s. We sent and it does not
// acknowledge: probes are not sent then, so TCP_INFO is looked at each second. TCP_USER_TIMEOUT
// would be simpler, but it also ends a connection whose peer is well and
// answers zero-window probes, only reads slowly (tcp_probe_timer in net/ipv4/tcp_timer.c).
const (
	tightIdle, tightInterval, tightCount = 3, 2, 2
	// A session without streams may notice late; it only must not stay for ever.
	relaxedIdle, relaxedInterval, relaxedCount = 60, 15, 3
)

func relaxKeepalive(fd int) { setKeepalive(fd, relaxedIdle, relaxedInterval, relaxedCount) }

// setKeepalive cannot fail on a TCP socket but for a bug here, which a test would find.
func setKeepalive(fd, idle, interval, count int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, interval)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count)
	// Last: it restarts the timer with what was set before.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, idle)
}

// check is the sweep's visit: is the session idle, is its peer alive?
func (s *session) check(now time.Time) {
	if s.h2.OpenStreams() == 0 {
		if s.probing {
			s.probing = false
			relaxKeepalive(s.conn.FD().Raw())
		}
		s.suspectSince = time.Time{}
		s.checkIdle(now)
		return
	}
	s.idleSince = time.Time{}
	if !s.probing {
		s.probing = true
		setKeepalive(s.conn.FD().Raw(), tightIdle, tightInterval, tightCount)
	}
	s.checkAlive(now)
}

func (s *session) checkIdle(now time.Time) {
	p := s.p
	if !slices.Contains(p.ready, s) {
		return // opening, which has a timer, or leaving
	}
	if s.idleSince.IsZero() {
		s.idleSince = now
		return
	}
	limit := p.ps.cfg.IdleTimeout
	if p.warm {
		if len(p.ready) == 1 {
			return
		}
		limit = p.ps.cfg.ExtraIdle
	}
	if now.Sub(s.idleSince) < limit {
		return
	}
	s.retire(now)
	s.leave(now, nil)
}

// checkAlive looks whether what we sent is acknowledged. The silence is counted from
// when it was first seen to be owed: after an idle hour the last acknowledgement is an hour old.
func (s *session) checkAlive(now time.Time) {
	info, err := unix.GetsockoptTCPInfo(s.conn.FD().Raw(), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return // the connection is ending; reading tells
	}
	const fresh = 2000 // ms
	if info.Unacked == 0 || info.Last_ack_recv < fresh {
		s.suspectSince = time.Time{}
		return
	}
	if s.suspectSince.IsZero() {
		s.suspectSince = now
		return
	}
	if silent := now.Sub(s.suspectSince); silent >= s.p.ps.cfg.PeerSilence {
		s.p.ps.stats.DeadPeers++
		s.conn.Close(now, fmt.Errorf("server %s has acknowledged nothing for %s", s.p.addr, silent.Round(time.Second)))
	}
}
