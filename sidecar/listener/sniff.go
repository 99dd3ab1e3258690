// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package listener

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/sidecar/loop"
)

// preface is what each HTTP/2 client sends first (RFC 9113, 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// sniffer waits for the first bytes of a connection.
type sniffer struct {
	l     *Listener
	conn  Conn
	timer loop.Timer
	got   []byte // an incomplete preface, in the rare case
}

// Ready implements loop.Handler.
func (s *sniffer) Ready(now time.Time, ev loop.Events) {
	if ev&(loop.Readable|loop.HungUp) == 0 {
		return
	}
	buf := s.l.cfg.Loop.Buffer()
	n := copy(buf, s.got)
	for {
		m, errno := s.conn.FD.Read(buf[n:])
		switch {
		case m > 0:
			n += m
		case errno == unix.EAGAIN:
			if n > 0 {
				s.got = append(s.got[:0], buf[:n]...)
			}
			return
		case errno != 0:
			s.abandon() // reset by the app before it said anything that matters
			return
		default:
			s.conn.Ended = true
		}
		switch {
		case !bytes.HasPrefix([]byte(preface), buf[:min(n, len(preface))]) || s.conn.Ended:
			s.decide(now, buf[:n], s.l.raw)
			return
		case n >= len(preface):
			s.decide(now, buf[:n], s.l.http2)
			return
		}
	}
}

// Expired implements loop.TimerHandler: silence. The server may be the one who speaks
// first, or the app has no CPU.
func (s *sniffer) Expired(now time.Time, _ *loop.Timer) {
	s.conn.Silent = true
	s.decide(now, s.got, s.l.raw)
}

func (s *sniffer) decide(now time.Time, first []byte, to func(time.Time, Conn)) {
	delete(s.l.undecided, s)
	s.l.cfg.Loop.StopTimer(&s.timer)
	s.conn.First = first
	to(now, s.conn)
}

func (s *sniffer) abandon() {
	delete(s.l.undecided, s)
	s.l.cfg.Loop.StopTimer(&s.timer)
	s.conn.FD.Close()
}

func (l *Listener) http2(now time.Time, c Conn) {
	l.stats.HTTP2++
	l.cfg.Handler.HTTP2(now, c)
}

func (l *Listener) raw(now time.Time, c Conn) {
	l.stats.Raw++
	l.cfg.Handler.Raw(now, c)
}
