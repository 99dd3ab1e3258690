// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
)

// fieldBlock is a field block whose END_HEADERS is still to come.
type fieldBlock struct {
	open    bool
	id      uint32
	end     bool  // END_STREAM
	verdict error // found in the HEADERS frame; counts once the block is decoded
	buf     []byte
	frames  int
	started time.Duration
}

func (s *Session) handleHeaders(f frameHeader, p []byte) error {
	if f.id == 0 {
		return connError(http2.ErrCodeProtocol, "HEADERS on stream 0")
	}
	p, err := unpad(f, p)
	if err != nil {
		return err
	}
	var verdict error
	if f.has(http2.FlagHeadersPriority) {
		if len(p) < 5 {
			return connError(http2.ErrCodeFrameSize, "HEADERS is too short for its priority fields")
		}
		if binary.BigEndian.Uint32(p)&maxStreamID == f.id {
			verdict = streamError(f.id, http2.ErrCodeProtocol, "a stream depends on itself")
		}
		p = p[5:]
	}
	end := f.has(http2.FlagHeadersEndStream)
	if f.has(http2.FlagHeadersEndHeaders) {
		return s.receiveSection(f.id, p, end, verdict)
	}
	b := &s.recv.block
	*b = fieldBlock{open: true, id: f.id, end: end, verdict: verdict, buf: b.buf[:0], started: s.now}
	return s.keepFragment(p)
}

func (s *Session) handleContinuation(f frameHeader, p []byte) error {
	b := &s.recv.block
	b.frames++
	if b.frames > s.cfg.MaxContinuations {
		s.stats.HeaderFloods++
		return connError(http2.ErrCodeEnhanceYourCalm, "too many CONTINUATION frames")
	}
	if err := s.keepFragment(p); err != nil {
		return err
	}
	if !f.has(http2.FlagContinuationEndHeaders) {
		return nil
	}
	b.open = false
	err := s.receiveSection(b.id, b.buf, b.end, b.verdict)
	if cap(b.buf) > keepPartial {
		b.buf = nil
	}
	return err
}

func (s *Session) keepFragment(p []byte) error {
	b := &s.recv.block
	if len(b.buf)+len(p) > s.cfg.MaxHeaderBlock {
		s.stats.HeaderFloods++
		return connError(http2.ErrCodeEnhanceYourCalm, "field block is longer than the limit")
	}
	b.buf = append(b.buf, p...)
	return nil
}

// receiveSection decodes a whole field block, which must happen whatever becomes
// of it ("field blocks MUST be processed", RFC 9113 section 4.3), and passes it on.
func (s *Session) receiveSection(id uint32, block []byte, end bool, verdict error) error {
	if len(block) > s.cfg.MaxHeaderBlock {
		s.stats.HeaderFloods++
		return connError(http2.ErrCodeEnhanceYourCalm, "field block is longer than the limit")
	}
	sec, err := s.dec.decode(block)
	if err != nil {
		return connError(http2.ErrCodeCompression, err.Error())
	}
	st := s.streams.get(id)
	if st == nil {
		return s.receiveOnUnknown(id, sec, end, verdict)
	}
	switch {
	case verdict != nil:
		return verdict
	case st.recvEnd:
		return streamError(id, http2.ErrCodeStreamClosed, "HEADERS after END_STREAM")
	case st.ignoreRecv:
		if end {
			st.recvEnd = true
			s.maybeComplete(st)
		}
		return nil
	case sec.bad != "":
		return streamError(id, http2.ErrCodeProtocol, sec.bad)
	case sec.tooLarge:
		s.stats.HeadersTooLarge++
		return &StreamError{
			Blame: Peer, StreamID: id, Code: http2.ErrCodeEnhanceYourCalm,
			Reason: ErrHeadersTooLarge.Error(), cause: ErrHeadersTooLarge,
		}
	case s.role == Client && !st.gotHeaders:
		return s.receiveResponse(st, sec, end)
	}
	return s.receiveTrailers(st, sec, end)
}

// receiveOnUnknown: a new request, or a section of a stream that is closed.
func (s *Session) receiveOnUnknown(id uint32, sec *section, end bool, verdict error) error {
	if s.role == Client {
		if s.idle(id) {
			return connError(http2.ErrCodeProtocol, "HEADERS on a stream that was never opened")
		}
		if err := s.spendOn(AbuseIgnored); err != nil {
			return err
		}
		return s.onClosed(id, "HEADERS")
	}
	if id%2 == 0 {
		return connError(http2.ErrCodeProtocol, "HEADERS on a stream that a client must not open")
	}
	if id <= s.lastPeerID {
		if s.gone.has(id) || s.beyondGoAway(id) {
			return s.spendOn(AbuseIgnored)
		}
		if id > s.skipped[0] && id < s.skipped[1] {
			// "An endpoint that receives an unexpected stream identifier MUST
			// respond with a connection error" (RFC 9113 section 5.1.1)
			return connError(http2.ErrCodeProtocol, "HEADERS with an id below the last one")
		}
		return connError(http2.ErrCodeStreamClosed, "HEADERS on a closed stream")
	}
	if id > s.lastPeerID+2 {
		s.skipped = [2]uint32{s.lastPeerID, id}
	}
	s.lastPeerID = id
	return s.receiveRequest(id, sec, end, verdict)
}

func (s *Session) receiveRequest(id uint32, sec *section, end bool, verdict error) error {
	s.earnByRequest()
	if s.beyondGoAway(id) {
		// The client will see it in our GOAWAY, and may retry elsewhere.
		return s.spendOn(AbuseIgnored)
	}
	if verdict != nil {
		return verdict
	}
	if uint32(s.streams.len()) >= s.cfg.MaxConcurrentStreams {
		// RFC 9113 section 5.1.2: PROTOCOL_ERROR or REFUSED_STREAM, of which
		// the latter "enables automatic retry".
		s.stats.StreamsRefused++
		return streamError(id, http2.ErrCodeRefusedStream, "more streams than SETTINGS_MAX_CONCURRENT_STREAMS")
	}
	if !sec.tooLarge {
		sec.checkRequest()
	}
	if sec.bad != "" {
		return streamError(id, http2.ErrCodeProtocol, sec.bad)
	}
	st := s.newStream(id)
	st.gotHeaders = true
	st.recvEnd = end
	st.headRequest = sec.head
	s.streams.put(st)
	s.stats.StreamsOpened++
	if sec.tooLarge {
		s.stats.HeadersTooLarge++
		st.ignoreRecv = true
		s.h.HeadersTooLarge(st, sec.fields)
		if !st.closed && !st.ended {
			st.Reset(http2.ErrCodeEnhanceYourCalm)
		}
		return nil
	}
	if err := st.expectBody(sec, end); err != nil {
		return err
	}
	s.h.StreamOpened(st, sec.fields, end)
	if st.h == nil && !st.closed {
		st.Reset(http2.ErrCodeRefusedStream)
	}
	return nil
}

func (s *Session) receiveResponse(st *Stream, sec *section, end bool) error {
	sec.checkResponse()
	if sec.bad != "" {
		return streamError(st.id, http2.ErrCodeProtocol, sec.bad)
	}
	st.replied = true
	if sec.status < 200 {
		// "A HEADERS frame with the END_STREAM flag set that carries an
		// informational status code is malformed" (RFC 9113 section 8.1)
		if end {
			return streamError(st.id, http2.ErrCodeProtocol, "an informational response with END_STREAM")
		}
		if st.informational++; st.informational > maxInformational {
			return streamError(st.id, http2.ErrCodeEnhanceYourCalm, "too many informational responses")
		}
		st.h.HeadersReceived(st, Informational, sec.fields, false)
		return nil
	}
	st.gotHeaders = true
	st.recvEnd = end
	if st.headRequest || sec.status == 304 || sec.status == 204 {
		// RFC 9113 section 8.1.1: these may have a content-length, though no content.
		sec.contentLength = -1
	}
	if err := st.expectBody(sec, end); err != nil {
		return err
	}
	st.h.HeadersReceived(st, Response, sec.fields, end)
	if end {
		s.maybeComplete(st)
	}
	return nil
}

// maxInformational bounds the 1xx responses of one request.
const maxInformational = 32

func (s *Session) receiveTrailers(st *Stream, sec *section, end bool) error {
	if !end {
		// RFC 9113 section 8.1: trailers end the stream.
		return streamError(st.id, http2.ErrCodeProtocol, "a second header section without END_STREAM")
	}
	if sec.seen != 0 {
		return streamError(st.id, http2.ErrCodeProtocol, "pseudo-header field in trailers")
	}
	if st.bodyLeft > 0 {
		return streamError(st.id, http2.ErrCodeProtocol, "the body is shorter than content-length says")
	}
	st.recvEnd = true
	st.h.HeadersReceived(st, Trailers, sec.fields, true)
	s.maybeComplete(st)
	return nil
}

// expectBody notes what content-length promises.
func (st *Stream) expectBody(sec *section, end bool) error {
	st.bodyLeft = sec.contentLength
	if end && st.bodyLeft > 0 {
		return streamError(st.id, http2.ErrCodeProtocol, "content-length without a body")
	}
	return nil
}
