// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"evenkeel.dev/sidecar/listener"
	"evenkeel.dev/sidecar/loop"
)

// An app that has connected and says nothing for a second waits for a server that
// speaks first. Or it has no CPU: a throttled container, a JVM that starts. Then what
// it will say is HTTP/2, and as raw TCP it would be pinned to one server for as long as its
// connection lives, and cut off with it. So the connection is not decided by
// silence but by the first word of either side:
//
//	the app says HTTP/2's preface           HTTP/2
//	the server says SETTINGS, as most do    HTTP/2: the app will say its preface
//	anything else, from either              raw
//
// The server meanwhile is the one that the app meant; of HTTP/2 nothing was sent to it.

// heard is what a connection's sides have said while nobody can tell what it is.
type heard struct{ app, server []byte }

// late takes a connection that is HTTP/2, though it took its time.
func (s *Sidecar) late(now time.Time, c listener.Conn) {
	s.stats.LateHTTP2++
	s.HTTP2(now, c)
	if s.draining {
		s.downs[len(s.downs)-1].shutdown(now)
	}
}

// hear reads a side's first word.
func (a *rawSide) hear(now time.Time, ev loop.Events) {
	r := a.c
	if r.closed || ev&(loop.Readable|loop.HungUp) == 0 {
		return
	}
	word, judge := &r.heard.app, isPreface
	if a == &r.server {
		word, judge = &r.heard.server, isSettings
	}
	n, errno := a.fd.Read(r.s.loop.Buffer())
	switch {
	case n == 0 && errno == unix.EAGAIN:
		return
	case n == 0 && errno != 0:
		r.reset()
		return
	case n == 0:
		a.ended = true
		r.isRaw()
		return
	}
	*word = append(*word, r.s.loop.Buffer()[:n]...)
	switch judge(*word) {
	case yes:
		r.isHTTP2(now)
	case no:
		r.isRaw()
	case unclear:
		a.fd.Again()
	}
}

type verdict uint8

const (
	unclear verdict = iota
	yes
	no
)

// isPreface: RFC 9113, 3.4.
func isPreface(b []byte) verdict {
	switch {
	case len(b) >= len(http2.ClientPreface) && strings.HasPrefix(string(b[:len(http2.ClientPreface)]), http2.ClientPreface):
		return yes
	case len(b) < len(http2.ClientPreface) && strings.HasPrefix(http2.ClientPreface, string(b)):
		return unclear
	}
	return no
}

// isSettings looks at the header of the frame that a server's connection preface is: "a potentially
// empty SETTINGS frame ... that MUST be the first frame the server sends" (RFC
// 9113, 3.4), whose length is a multiple of 6 and at most 16,384.
func isSettings(b []byte) verdict {
	like := [...]func(i int) bool{
		func(i int) bool { return b[i] == 0 }, // length
		func(i int) bool { return b[i] <= 0x40 },
		func(i int) bool { return (int(b[i-1])<<8|int(b[i]))%6 == 0 },
		func(i int) bool { return b[i] == byte(http2.FrameSettings) },
		func(i int) bool { return b[i] == 0 }, // flags
		func(i int) bool { return b[i] == 0 }, // stream
		func(i int) bool { return b[i] == 0 },
		func(i int) bool { return b[i] == 0 },
		func(i int) bool { return b[i] == 0 },
	}
	for i := range min(len(b), len(like)) {
		if !like[i](i) {
			return no
		}
	}
	if len(b) < len(like) {
		return unclear
	}
	return yes
}

// isHTTP2 gives the app's side away, and the server's up.
func (r *rawConn) isHTTP2(now time.Time) {
	first, s := r.heard.app, r.s
	r.closed = true
	if r.dialing != nil {
		r.dialing.Cancel()
	}
	if r.server.fd != nil {
		r.server.fd.Close()
	}
	s.late(now, listener.Conn{FD: r.app.fd, Peer: r.peer, Orig: r.orig, First: first})
	delete(s.raws, r)
}

// isRaw passes on what was heard, and relays from then on.
func (r *rawConn) isRaw() {
	h := r.heard
	r.heard = nil
	r.begin(h.app)
	if r.server.fd == nil {
		return // Dialed goes on
	}
	r.s.stats.RawBytesDown += uint64(len(h.server))
	r.server.write(nil)
	r.app.write(slices.Clip(h.server))
	if !r.closed {
		r.app.fd.Again()
		r.server.fd.Again()
	}
}
