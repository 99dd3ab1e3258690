// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import "golang.org/x/net/http2"

// beginData accounts for a DATA frame by its header alone, so that a peer which
// breaks a window is caught before its bytes are taken.
func (s *Session) beginData(f frameHeader) error {
	if f.id == 0 || s.idle(f.id) {
		return connError(http2.ErrCodeProtocol, "DATA on a stream that was never opened")
	}
	n := int32(f.length)
	if n > s.recvWindow {
		return connError(http2.ErrCodeFlowControl, "DATA beyond the connection's window")
	}
	s.recvWindow -= n
	end := f.has(http2.FlagDataEndStream)
	if n == 0 && !end {
		if err := s.spendOn(AbuseEmptyData); err != nil {
			return err
		}
	}
	st := s.streams.get(f.id)
	if err := s.checkData(st, f); err != nil || st == nil || st.ignoreRecv {
		// "the endpoint ... MUST ensure that the frames ... are still counted
		// toward the connection flow-control window" (RFC 9113 section 5.1).
		s.recv.skip = f.length
		s.giveBack(n)
		return err
	}
	st.recvWindow -= n
	d := &s.recv.data
	*d = dataFrame{st: st, left: f.length, end: end, open: true}
	if f.has(http2.FlagDataPadded) {
		if n == 0 {
			return connError(http2.ErrCodeFrameSize, "padded frame without a pad length")
		}
		d.padded = true
		return nil
	}
	if n == 0 {
		return s.deliver(nil)
	}
	if n > emptyData {
		s.earnByData()
	}
	return s.checkBody(st, d)
}

// checkData says whether a DATA frame may come on the stream.
func (s *Session) checkData(st *Stream, f frameHeader) error {
	switch {
	case st == nil:
		return s.onClosed(f.id, "DATA")
	case st.recvEnd:
		return streamError(f.id, http2.ErrCodeStreamClosed, "DATA after END_STREAM")
	case s.role == Client && !st.gotHeaders:
		return streamError(f.id, http2.ErrCodeProtocol, "DATA before the response's headers")
	case int32(f.length) > st.recvWindow:
		return streamError(f.id, http2.ErrCodeFlowControl, "DATA beyond the stream's window")
	}
	return nil
}

// checkBody holds the body against content-length, as soon as the frame's data
// length is known: bytes too many are never passed on.
func (s *Session) checkBody(st *Stream, d *dataFrame) error {
	if st.bodyLeft < 0 {
		return nil
	}
	// RFC 9113 section 8.1.1: "A request or response is also malformed if the
	// value of a content-length header field does not equal the sum of the
	// DATA frame payload lengths that form the content"
	if left := st.bodyLeft - int64(d.left); left < 0 || d.end && left > 0 {
		s.recv.skip = d.left + d.pad
		s.giveBack(int32(d.left))
		*d = dataFrame{}
		return streamError(st.id, http2.ErrCodeProtocol, "the body is not as long as content-length says")
	}
	st.bodyLeft -= int64(d.left)
	return nil
}

// receiveData delivers what b has of the open DATA frame.
func (s *Session) receiveData(b []byte) []byte {
	d := &s.recv.data
	if d.padded {
		pad := int(b[0])
		b = b[1:]
		if pad >= d.left {
			s.settle(connError(http2.ErrCodeProtocol, "padding is as long as the frame"))
			return nil
		}
		d.padded = false
		d.pad = pad
		d.left -= 1 + pad
		s.giveBack(int32(1 + pad))
		if d.left > emptyData {
			s.earnByData()
		}
		if d.st != nil {
			d.st.giveBack(int32(1 + pad))
			if err := s.checkBody(d.st, d); err != nil {
				s.settle(err)
				return b
			}
		}
		if d.left == 0 && !d.end {
			d.open = false
			s.recv.skip = d.pad
			if err := s.spendOn(AbuseEmptyData); err != nil {
				s.settle(err)
			}
			return b
		}
	}
	n := min(d.left, len(b))
	if err := s.deliver(b[:n]); err != nil {
		s.settle(err)
	}
	return b[n:]
}

// emptyData: frames of no more data than this earn no trust.
const emptyData = 0

// deliver hands p, a piece of the open DATA frame, to the stream.
func (s *Session) deliver(p []byte) error {
	d := &s.recv.data
	st := d.st
	d.left -= len(p)
	last := d.left == 0
	end := last && d.end
	if last {
		d.open = false
		s.recv.skip = d.pad
	}
	n := int32(len(p))
	if st == nil { // it was closed while its frame came in
		s.giveBack(n)
		return nil
	}
	if n == 0 && !end {
		return nil
	}
	if end {
		if st.bodyLeft > 0 {
			return streamError(st.id, http2.ErrCodeProtocol, "the body is shorter than content-length says")
		}
		st.recvEnd = true
	}
	// Before the handler: it may call Consumed at once.
	st.held += n
	s.hold(n)
	st.h.DataReceived(st, p, end)
	s.giveBack(n)
	if end {
		s.maybeComplete(st)
	}
	return nil
}

// onClosed judges a frame on a stream that is not open any more.
func (s *Session) onClosed(id uint32, what string) error {
	// "An endpoint that sends a RST_STREAM ... MUST be prepared to receive
	// additional frames that were sent by the peer prior to the arrival of
	// the RST_STREAM frame. These frames can be ignored" (RFC 9113 section 5.1)
	if s.gone.has(id) || s.beyondGoAway(id) {
		return nil
	}
	return streamError(id, http2.ErrCodeStreamClosed, what+" on a closed stream")
}
