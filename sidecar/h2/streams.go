// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Open makes a stream (Client only). It takes a slot of the peer's limit at
// once, and its id with WriteHeaders, as ids must rise in wire order.
func (s *Session) Open(h StreamHandler) (*Stream, error) {
	if s.role != Client || s.Draining() {
		return nil, ErrDraining
	}
	if s.nextID+2*uint32(s.reserved) > maxStreamID {
		// "A client that is unable to establish a new stream identifier can
		// establish a new connection" (RFC 9113 section 5.1.1).
		s.draining = true
		return nil, ErrDraining
	}
	if s.Capacity() <= 0 {
		s.wantedSlot = true
		return nil, ErrNoCapacity
	}
	s.timers.woke = s.timers.woke || s.OpenStreams() == 0
	st := s.newStream(0)
	st.h = h
	s.reserved++
	s.unsent.push(st)
	s.stats.StreamsOpened++
	return st, nil
}

// Capacity returns how many more streams Open will make now.
func (s *Session) Capacity() int {
	if s.role != Client || s.Draining() {
		return 0
	}
	if s.out.len() > s.cfg.OutputLimit+s.cfg.ControlLimit/2 {
		return 0 // the peer does not read: header sections would pile up
	}
	limit := s.cfg.AssumedMaxStreams
	if s.established {
		limit = s.peer.maxStreams
	}
	return int(min(int64(limit)-int64(s.OpenStreams()), maxStreamID))
}

// tellCapacity tells a caller whose Open failed that it would not any more.
func (s *Session) tellCapacity() {
	if s.wantedSlot && s.Capacity() > 0 {
		s.wantedSlot = false
		s.h.CapacityFreed()
	}
}

// assignID makes an opened stream a real one, just before its HEADERS.
func (s *Session) assignID(st *Stream, fields []hpack.HeaderField) {
	s.unsent.remove(st)
	s.reserved--
	st.id = s.nextID
	s.nextID += 2
	s.streams.put(st)
	s.earnByRequest()
	for _, f := range fields {
		if f.Name == ":method" {
			st.headRequest = f.Value == "HEAD"
			break
		}
	}
}

func (s *Session) newStream(id uint32) *Stream {
	st := s.pool.getStream()
	st.s = s
	st.id = id
	st.recvWindow = s.recvInitial
	st.sendWindow = s.peer.initialWindow
	st.bodyLeft = -1
	st.opened = s.now
	return st
}

// resetStream answers a fault of the peer's on a stream, which may be nil: one
// that was refused or is closed.
func (s *Session) resetStream(st *Stream, se *StreamError) {
	s.writeRST(se.StreamID, se.Code)
	s.gone.add(se.StreamID)
	if st != nil {
		s.closeStream(st, StreamEnd{Kind: ResetLocally, Code: se.Code, Cause: se})
	}
}

// closeStream forgets the stream and tells its handler.
func (s *Session) closeStream(st *Stream, end StreamEnd) {
	if st.closed {
		return
	}
	st.closed = true
	if st.id == 0 {
		s.reserved--
		s.unsent.remove(st)
	} else {
		s.streams.remove(st.id)
	}
	if st.ready {
		st.ready = false
		s.ready.remove(st)
	}
	if s.recv.data.st == st {
		s.recv.data.st = nil
	}
	st.queue.free(s.pool)
	st.trail = false
	s.hold(-st.held)
	s.stats.StreamsClosed[end.Kind]++
	if st.h != nil {
		st.h.Closed(st, end)
	}
	st.next, s.dead = s.dead, st
	if s.err == nil {
		s.updateConnWindow()
		s.tellCapacity()
	}
}

// closeAll ends each stream: the session is over.
func (s *Session) closeAll(cause error) {
	code := http2.ErrCodeInternal
	if ce, ok := errors.AsType[*ConnectionError](cause); ok {
		code = ce.Code
	}
	for st := s.unsent.first; st != nil; st = s.unsent.first {
		s.closeStream(st, StreamEnd{Kind: Unprocessed, Code: code, Cause: cause})
	}
	for _, st := range s.streams.all(func(*Stream) bool { return true }) {
		kind := ConnectionLost
		if s.role == Client && st.headersAt > s.out.taken {
			kind = Unprocessed // the peer cannot have seen a whole request
		}
		s.closeStream(st, StreamEnd{Kind: kind, Code: code, Cause: cause})
	}
}

// streamList is a doubly linked list through Stream.next and prev.
type streamList struct{ first, last *Stream }

func (l *streamList) push(st *Stream) {
	st.prev, st.next = l.last, nil
	if l.last != nil {
		l.last.next = st
	} else {
		l.first = st
	}
	l.last = st
}

func (l *streamList) remove(st *Stream) {
	if st.prev != nil {
		st.prev.next = st.next
	} else {
		l.first = st.next
	}
	if st.next != nil {
		st.next.prev = st.prev
	} else {
		l.last = st.prev
	}
	st.next, st.prev = nil, nil
}

// resetRing remembers the streams that were reset here last.
type resetRing struct {
	ids       [64]uint32
	n         int
	forgotten uint32 // the highest id that fell out
}

func (r *resetRing) add(id uint32) {
	i := r.n % len(r.ids)
	r.forgotten = max(r.forgotten, r.ids[i])
	r.ids[i] = id
	r.n++
}

// has reports whether the stream was reset here, or, if that is not known any
// more, whether it may have been.
func (r *resetRing) has(id uint32) bool {
	if id <= r.forgotten {
		return true
	}
	for _, v := range r.ids {
		if v == id {
			return true
		}
	}
	return false
}
