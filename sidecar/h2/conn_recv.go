// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
)

// receiver is the state of parsing: what of a frame is still to come.
type receiver struct {
	prefaceLeft int    // bytes of the client's preface to come (Server)
	gotSettings bool   // the first frame was seen
	partial     []byte // an incomplete frame header, or frame other than DATA
	data        dataFrame
	skip        int // payload bytes to drop: padding, DATA for nobody, unknown frames
	block       fieldBlock
	last        time.Duration // when bytes last came
}

// dataFrame is a DATA frame whose payload is being delivered as it comes: a
// frame need not fit the read buffer, and is never copied.
type dataFrame struct {
	st     *Stream // nil: nobody wants it
	left   int     // data to come, without padding
	pad    int
	padded bool // the Pad Length field is to come
	end    bool
	open   bool // left or the Pad Length field is to come
}

// Receive takes bytes that the peer sent. b is read only, and only during the
// call. An error is final: each stream was told, GOAWAY (if it is a
// *ConnectionError) is in the output; the caller writes Output and closes.
func (s *Session) Receive(now time.Time, b []byte) error {
	if s.err != nil {
		return s.err
	}
	s.enter(now)
	s.recv.last = s.now
	s.stats.BytesReceived += uint64(len(b))
	s.receive(b)
	if s.err == nil {
		s.pump()
	}
	if s.err == nil && s.out.len() > s.cfg.OutputLimit+s.cfg.ControlLimit {
		s.stats.OutputOverflows++
		s.fail(connError(http2.ErrCodeEnhanceYourCalm, "peer does not read the answers that it asks for"))
	}
	return s.err
}

func (s *Session) receive(b []byte) {
	r := &s.recv
	if r.prefaceLeft > 0 {
		b = s.receivePreface(b)
	}
	for s.err == nil && len(b) > 0 {
		switch {
		case r.data.open:
			b = s.receiveData(b)
		case r.skip > 0:
			n := min(r.skip, len(b))
			r.skip -= n
			b = b[n:]
		case len(r.partial) > 0:
			b = s.receivePartial(b)
		default:
			b = s.receiveFrame(b)
		}
	}
}

func (s *Session) receivePreface(b []byte) []byte {
	r := &s.recv
	want := http2.ClientPreface[len(http2.ClientPreface)-r.prefaceLeft:]
	n := min(len(want), len(b))
	if string(b[:n]) != want[:n] {
		s.settle(connError(http2.ErrCodeProtocol, "the client's preface is not HTTP/2's"))
		return nil
	}
	r.prefaceLeft -= n
	return b[n:]
}

// receiveFrame handles the frame at the start of b, or keeps what there is of it.
func (s *Session) receiveFrame(b []byte) []byte {
	r := &s.recv
	if len(b) < frameHeaderLen {
		r.partial = append(r.partial, b...)
		return nil
	}
	f := parseFrameHeader(b)
	if err := s.checkFrame(f); err != nil {
		s.settle(err)
		return nil
	}
	switch {
	case f.typ == http2.FrameData:
		if err := s.beginData(f); err != nil {
			s.settle(err)
		}
		return b[frameHeaderLen:]
	case f.typ > http2.FrameContinuation:
		s.ignoreFrame()
		r.skip = f.length
		return b[frameHeaderLen:]
	}
	whole := frameHeaderLen + f.length
	if len(b) < whole {
		r.partial = append(r.partial, b...)
		return nil
	}
	if err := s.handleFrame(f, b[frameHeaderLen:whole]); err != nil {
		s.settle(err)
	}
	return b[whole:]
}

// receivePartial completes a frame which began in an earlier call.
func (s *Session) receivePartial(b []byte) []byte {
	r := &s.recv
	need := frameHeaderLen
	if len(r.partial) >= frameHeaderLen {
		need += parseFrameHeader(r.partial).length
	}
	n := min(need-len(r.partial), len(b))
	r.partial = append(r.partial, b[:n]...)
	b = b[n:]
	if len(r.partial) < need {
		return b
	}
	frame := r.partial
	r.partial = r.partial[:0]
	// A whole header: either this is all, or receiveFrame puts it back.
	if rest := s.receiveFrame(frame); len(rest) > 0 {
		panic("h2: more bytes were kept than the frame needs")
	}
	if len(r.partial) == 0 && cap(r.partial) > keepPartial {
		r.partial = nil
	}
	return b
}

// keepPartial is the largest buffer for partial frames that an idle session keeps.
const keepPartial = 1 << 10

// checkFrame applies the rules that need no payload.
func (s *Session) checkFrame(f frameHeader) error {
	r := &s.recv
	if !r.gotSettings {
		// "This sequence MUST be followed by a SETTINGS frame" (RFC 9113
		// section 3.4), of both sides.
		if f.typ != http2.FrameSettings || f.has(http2.FlagSettingsAck) {
			return connError(http2.ErrCodeProtocol, "the first frame is not SETTINGS")
		}
	}
	if f.length > int(s.cfg.MaxFrameSize) {
		return connError(http2.ErrCodeFrameSize, "frame is longer than SETTINGS_MAX_FRAME_SIZE")
	}
	if r.block.open {
		// "Any number of CONTINUATION frames can be sent, as long as the
		// preceding frame is on the same stream" (RFC 9113 section 6.10).
		if f.typ != http2.FrameContinuation || f.id != r.block.id {
			return connError(http2.ErrCodeProtocol, "a field block was interrupted by another frame")
		}
	} else if f.typ == http2.FrameContinuation {
		return connError(http2.ErrCodeProtocol, "CONTINUATION without a field block")
	}
	return nil
}

func (s *Session) handleFrame(f frameHeader, p []byte) error {
	switch f.typ {
	case http2.FrameHeaders:
		return s.handleHeaders(f, p)
	case http2.FrameContinuation:
		return s.handleContinuation(f, p)
	case http2.FrameWindowUpdate:
		return s.handleWindowUpdate(f, p)
	case http2.FrameRSTStream:
		return s.handleRST(f, p)
	case http2.FrameSettings:
		return s.handleSettings(f, p)
	case http2.FramePing:
		return s.handlePing(f, p)
	case http2.FrameGoAway:
		return s.handleGoAway(f, p)
	case http2.FramePriority:
		return s.handlePriority(f, p)
	default: // PUSH_PROMISE
		// A client cannot push (RFC 9113 section 8.4), and to a server we say
		// SETTINGS_ENABLE_PUSH = 0.
		return connError(http2.ErrCodeProtocol, "PUSH_PROMISE, though push is disabled")
	}
}

// idle reports whether the stream was never opened.
func (s *Session) idle(id uint32) bool {
	if s.role == Server {
		return id%2 == 0 || id > s.lastPeerID
	}
	return id%2 == 0 || id >= s.nextID
}

func (s *Session) handleRST(f frameHeader, p []byte) error {
	if len(p) != 4 {
		return connError(http2.ErrCodeFrameSize, "RST_STREAM is not 4 bytes long")
	}
	if f.id == 0 || s.idle(f.id) {
		return connError(http2.ErrCodeProtocol, "RST_STREAM for a stream that was never opened")
	}
	st := s.streams.get(f.id)
	if st == nil {
		return s.spendOn(AbuseIgnored)
	}
	s.stats.ResetsReceived++
	code := http2.ErrCode(binary.BigEndian.Uint32(p))
	end := StreamEnd{Kind: ResetByPeer, Code: code}
	switch {
	case s.role == Client && code == http2.ErrCodeRefusedStream && !st.replied:
		// RFC 9113 section 8.7: "any request that was sent on the reset stream
		// can be safely retried."
		end.Kind = Unprocessed
	case s.role == Client && code == http2.ErrCodeNo && st.recvEnd:
		end.Kind = Complete
	case s.role == Server && s.rapid(st):
		if err := s.spendOn(AbuseReset); err != nil {
			return err
		}
	}
	s.closeStream(st, end)
	return nil
}

func (s *Session) handlePing(f frameHeader, p []byte) error {
	if len(p) != 8 {
		return connError(http2.ErrCodeFrameSize, "PING is not 8 bytes long")
	}
	if f.id != 0 {
		return connError(http2.ErrCodeProtocol, "PING on a stream")
	}
	if f.has(http2.FlagPingAck) {
		return s.handlePong(binary.BigEndian.Uint64(p))
	}
	if err := s.spendOn(AbusePing); err != nil {
		return err
	}
	s.writePing(http2.FlagPingAck, binary.BigEndian.Uint64(p))
	return nil
}

// handlePriority: the frame is deprecated and of no use to us (RFC 9113 section
// 5.3.2), but still has a form.
func (s *Session) handlePriority(f frameHeader, p []byte) error {
	if f.id == 0 {
		return connError(http2.ErrCodeProtocol, "PRIORITY on stream 0")
	}
	if err := s.spendOn(AbuseIgnored); err != nil {
		return err
	}
	if len(p) != 5 {
		return s.onStream(f.id, http2.ErrCodeFrameSize, "PRIORITY is not 5 bytes long")
	}
	if binary.BigEndian.Uint32(p)&maxStreamID == f.id {
		return s.onStream(f.id, http2.ErrCodeProtocol, "a stream depends on itself")
	}
	return nil
}

// onStream makes a stream error, or a connection error where RST_STREAM must
// not be sent: on an idle stream (RFC 9113 section 5.1).
func (s *Session) onStream(id uint32, code http2.ErrCode, reason string) error {
	if s.idle(id) {
		return connError(code, reason)
	}
	return streamError(id, code, reason)
}

func (s *Session) ignoreFrame() {
	if err := s.spendOn(AbuseIgnored); err != nil {
		s.settle(err)
	}
}
