// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"errors"
	"io"
	"net/netip"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/listener"
	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/router"
)

// downSession is an HTTP/2 connection of the app.
type downSession struct {
	s      *Sidecar
	h2     *h2.Session
	conn   *loop.Conn
	peer   netip.AddrPort
	orig   netip.AddrPort // not valid: the app dialled the listener
	place  int            // in Sidecar.downs
	relays int
	opened time.Time

	// The route of the last stream that was balanced: most connections only have one.
	cached          *service
	cachedTable     *router.Table
	cachedAuthority string

	service string // the last one

	streams uint64 // ever
}

// HTTP2 implements listener.Handler.
func (s *Sidecar) HTTP2(now time.Time, c listener.Conn) {
	d := &downSession{s: s, peer: c.Peer, orig: c.Orig, opened: now, place: len(s.downs)}
	s.downs = append(s.downs, d)
	d.h2 = h2.New(h2.Server, &s.h2Down, d, now)
	d.conn = s.loop.NewConn(c.FD, d.h2, d)
	d.conn.Inject(now, c.First)
}

// StreamOpened implements h2.SessionHandler.
func (d *downSession) StreamOpened(st *h2.Stream, fields []hpack.HeaderField, end bool) {
	d.streams++
	r := d.s.recycler.get()
	r.begin(d.s.loop.Now(), d, st, fields, end)
}

// HeadersTooLarge implements h2.SessionHandler.
func (d *downSession) HeadersTooLarge(st *h2.Stream, fields []hpack.HeaderField) {
	d.s.stats.HeadersTooLarge++
	for _, f := range fields {
		if f.Name == "content-type" && !isGRPC(f.Value) {
			// RFC 6585, 5: Request Header Fields Too Large.
			st.WriteHeaders([]hpack.HeaderField{{Name: ":status", Value: "431"}}, true)
			return
		}
	}
	d.s.stats.Errors[codeResourceExhausted]++
	st.WriteHeaders(trailersOnly(codeResourceExhausted, "evenkeel: the request's headers are larger than the sidecar takes"), true)
}

// OutputReady implements h2.SessionHandler.
func (d *downSession) OutputReady() {
	if d.conn != nil { // New's own output is written by NewConn
		d.conn.MarkDirty()
	}
}

// SettingsReceived implements h2.SessionHandler.
func (d *downSession) SettingsReceived() {}

// GoAwayReceived implements h2.SessionHandler: the app will close.
func (d *downSession) GoAwayReceived(uint32, http2.ErrCode, []byte) {}

// CapacityFreed implements h2.SessionHandler: a Server opens no streams.
func (d *downSession) CapacityFreed() {}

// PongReceived implements h2.SessionHandler; no pings are sent.
func (d *downSession) PongReceived(time.Duration) {}

// ConnEnded implements loop.Owner. The streams were closed before.
func (d *downSession) ConnEnded(now time.Time, cause error) {
	s := d.s
	last := len(s.downs) - 1
	s.downs[d.place] = s.downs[last]
	s.downs[d.place].place = d.place
	s.downs[last] = nil
	s.downs = s.downs[:last]
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, loop.ErrFinished) {
		s.cfg.Logger.Info("connection of the app ended", "peer", d.peer.String(), "destination", d.destination(), "cause", cause)
	}
	s.drained()
}

// destination is what the app dialled, for people.
func (d *downSession) destination() string {
	if d.orig.IsValid() {
		return d.orig.String()
	}
	return "the sidecar itself"
}

// leadsNowhere: where the app meant to connect cannot be reached. Without a sidecar its connection would have
// failed, and it would have resolved the name again. The connection to us never fails,
// so an app whose server has moved would call a dead address for ever: it is asked to connect anew.
func (d *downSession) leadsNowhere(now time.Time) {
	if d.orig.IsValid() {
		d.h2.Shutdown(now, http2.ErrCodeNo, "the destination cannot be reached")
		d.conn.MarkDirty()
	}
}

// shutdown asks the app to end its streams and not to open more.
func (d *downSession) shutdown(now time.Time) {
	d.h2.Shutdown(now, http2.ErrCodeNo, "sidecar ends")
	d.conn.MarkDirty()
}

// uncache has the next stream ask the table again: the table notes which of its
// destinations are in use, and forgets the others.
func (d *downSession) uncache() { d.cached, d.cachedTable = nil, nil }
