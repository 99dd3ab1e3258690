// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// output holds the bytes that wait to be written.
type output struct {
	buf      []byte
	before   int    // the size of the buffer before
	off      int    // of buf, taken by the kernel
	taken    uint64 // bytes taken since New
	notified bool   // the caller knows that there is output
}

func (o *output) len() int { return len(o.buf) - o.off }

// end is the offset, since New, behind the last byte.
func (o *output) end() uint64 { return o.taken + uint64(o.len()) }

func (o *output) drop(p *Pool) {
	p.putBuffer(o.buf)
	o.before = cap(o.buf)
	o.buf, o.off = nil, 0
}

// Output returns the bytes to write now, nil if there are none. They are valid
// until the next call of any method of the Session or its Streams.
func (s *Session) Output() []byte {
	if s.out.len() == 0 {
		return nil
	}
	return s.out.buf[s.out.off:]
}

// Wrote says that the transport took the first n bytes of Output. Stream data
// that waited may have moved into the output: look again.
func (s *Session) Wrote(now time.Time, n int) {
	s.enter(now)
	o := &s.out
	n = min(n, o.len())
	o.off += n
	o.taken += uint64(n)
	s.stats.BytesSent += uint64(n)
	switch {
	case o.off == len(o.buf):
		o.buf, o.off = o.buf[:0], 0
	case o.off >= compactAt && o.off >= o.len():
		o.buf = o.buf[:copy(o.buf, o.buf[o.off:])]
		o.off = 0
	}
	o.notified = true
	if s.err == nil {
		s.pump()
		s.tellCapacity()
	}
	if o.len() == 0 {
		o.drop(s.pool)
		o.notified = false
	}
}

// compactAt is how much of the output must be written before the rest is moved down.
const compactAt = 16 << 10

// frame begins a frame in the output; the caller appends the payload.
func (s *Session) frame(length int, typ http2.FrameType, flags http2.Flags, id uint32) {
	o := &s.out
	if o.buf == nil {
		o.buf = s.pool.getBuffer(o.before)
	}
	o.buf = appendFrameHeader(o.buf, length, typ, flags, id)
}

// wrote is called with each complete frame in the output.
func (s *Session) wrote() {
	if !s.out.notified {
		s.out.notified = true
		s.h.OutputReady()
	}
}

func (s *Session) writeWindowUpdate(id, n uint32) {
	s.frame(4, http2.FrameWindowUpdate, 0, id)
	s.out.buf = binary.BigEndian.AppendUint32(s.out.buf, n)
	s.wrote()
}

func (s *Session) writeRST(id uint32, code http2.ErrCode) {
	s.frame(4, http2.FrameRSTStream, 0, id)
	s.out.buf = binary.BigEndian.AppendUint32(s.out.buf, uint32(code))
	s.stats.ResetsSent++
	s.wrote()
}

func (s *Session) writePing(flags http2.Flags, data uint64) {
	s.frame(8, http2.FramePing, flags, 0)
	s.out.buf = binary.BigEndian.AppendUint64(s.out.buf, data)
	s.wrote()
}

func (s *Session) writeGoAway(last uint32, code http2.ErrCode, debug string) {
	s.frame(8+len(debug), http2.FrameGoAway, 0, 0)
	s.out.buf = binary.BigEndian.AppendUint32(s.out.buf, last)
	s.out.buf = binary.BigEndian.AppendUint32(s.out.buf, uint32(code))
	s.out.buf = append(s.out.buf, debug...)
	s.wrote()
}

// WriteHeaders sends a field section: a request, a response, an informational
// response, or trailers, which wait behind the stream's queued data. Field names
// must be in lower case, with pseudo-header fields first. It copies fields.
func (st *Stream) WriteHeaders(fields []hpack.HeaderField, end bool) {
	if st.ended || st.closed || st.s.err != nil {
		return
	}
	st.ended = end
	if st.queue.n > 0 {
		st.trailers = append(st.trailers[:0], fields...)
		st.trail = true
		return
	}
	st.s.sendHeaders(st, fields, end)
}

// WriteData sends p as flow control and the output limit allow, and queues a
// copy of the rest. Handler.DataSent tells as it leaves. WriteHeaders must have
// come before; a stream of Open's is closed where it did not.
func (st *Stream) WriteData(p []byte, end bool) {
	if st.ended || st.closed || st.s.err != nil {
		return
	}
	if st.id == 0 {
		st.Reset(http2.ErrCodeInternal) // there is no stream before its HEADERS
		return
	}
	st.ended = end
	s := st.s
	sent := 0
	if st.queue.n == 0 {
		sent = s.sendDirect(st, p, end)
	}
	if sent < len(p) {
		st.queue.append(s.pool, p[sent:])
		s.markReady(st)
	}
	if sent > 0 && st.h != nil {
		st.h.DataSent(st, sent)
	}
	if st.sendEnd {
		s.sentEnd(st)
	}
}

// sendDirect puts what may go of p into the output and returns how much it was.
func (s *Session) sendDirect(st *Stream, p []byte, end bool) (sent int) {
	if len(p) == 0 {
		if end {
			s.writeDataFrame(st, 0, end)
			s.wrote()
		}
		return 0
	}
	for sent < len(p) && s.out.len() < s.cfg.OutputLimit {
		n := min(len(p)-sent, s.sendable(st))
		if n <= 0 {
			break
		}
		s.writeDataFrame(st, n, end && sent+n == len(p))
		s.out.buf = append(s.out.buf, p[sent:sent+n]...)
		s.wrote()
		sent += n
	}
	return sent
}

// sendable returns how long the stream's next DATA frame may be.
func (s *Session) sendable(st *Stream) int {
	return int(min(st.sendWindow, s.sendWindow, int32(s.peer.maxFrameSize)))
}

// writeDataFrame writes the header of a DATA frame and takes n off the windows.
func (s *Session) writeDataFrame(st *Stream, n int, end bool) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
		st.sendEnd = true
	}
	s.frame(n, http2.FrameData, flags, st.id)
	st.sendWindow -= int32(n)
	s.sendWindow -= int32(n)
	s.earnByDataSent()
}

// pump moves queued data into the output: the streams take turns, a frame each,
// until the output or the connection's window is full.
func (s *Session) pump() {
	for s.sendWindow > 0 && s.out.len() < s.cfg.OutputLimit {
		st := s.ready.first
		if st == nil {
			return
		}
		s.ready.remove(st)
		st.ready = false
		n := min(st.queue.n, s.sendable(st))
		if n <= 0 {
			continue // until WINDOW_UPDATE or SETTINGS bring its window back
		}
		last := n == st.queue.n
		s.writeDataFrame(st, n, last && st.ended && !st.trail)
		s.out.buf = st.queue.moveTo(s.out.buf, n, s.pool)
		s.wrote()
		if last && st.trail {
			st.trail = false
			s.sendHeadersFrames(st, st.trailers, true)
			clear(st.trailers)
		}
		s.markReady(st)
		if st.h != nil {
			st.h.DataSent(st, n)
		}
		if st.sendEnd {
			s.sentEnd(st)
		}
	}
}

// markReady lists a stream that has data and a window to send it.
func (s *Session) markReady(st *Stream) {
	if st.ready || st.closed || st.queue.n == 0 || st.sendWindow <= 0 {
		return
	}
	st.ready = true
	s.ready.push(st)
}

// sentEnd completes the stream if the peer has ended it too.
func (s *Session) sentEnd(st *Stream) {
	if st.closed {
		return
	}
	if st.ignoreRecv && !st.recvEnd {
		// The answer to a request whose rest is not wanted: RFC 9113 section
		// 8.1 has the server ask the client to stop "without error".
		st.Reset(http2.ErrCodeNo)
		return
	}
	s.maybeComplete(st)
}

func (s *Session) maybeComplete(st *Stream) {
	if st.recvEnd && st.sendEnd && !st.closed {
		s.earnByStream()
		s.closeStream(st, StreamEnd{Kind: Complete})
	}
}

func (s *Session) sendHeaders(st *Stream, fields []hpack.HeaderField, end bool) {
	if s.role == Client && st.id == 0 {
		s.assignID(st, fields)
	}
	s.sendHeadersFrames(st, fields, end)
	if st.headersAt == 0 {
		st.headersAt = s.out.end()
	}
	if st.sendEnd {
		s.sentEnd(st)
	}
}

// sendHeadersFrames encodes the fields straight into the output, and cuts the
// block into CONTINUATION frames if it is too long for one.
func (s *Session) sendHeadersFrames(st *Stream, fields []hpack.HeaderField, end bool) {
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
		st.sendEnd = true
	}
	s.frame(0, http2.FrameHeaders, flags, st.id)
	start := len(s.out.buf)
	s.out.buf = s.enc.append(s.out.buf, fields)
	n := len(s.out.buf) - start
	if n <= int(s.peer.maxFrameSize) {
		h := s.out.buf[start-frameHeaderLen:]
		h[0], h[1], h[2] = byte(n>>16), byte(n>>8), byte(n)
	} else {
		s.splitHeaders(st.id, start, flags)
	}
	s.wrote()
}

// splitHeaders cuts the block that begins at start, behind a HEADERS frame's header.
func (s *Session) splitHeaders(id uint32, start int, flags http2.Flags) {
	block := append([]byte(nil), s.out.buf[start:]...)
	s.out.buf = s.out.buf[:start-frameHeaderLen]
	typ, flags := http2.FrameHeaders, flags&^http2.FlagHeadersEndHeaders
	for {
		n := min(len(block), int(s.peer.maxFrameSize))
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders // CONTINUATION's has the same value
		}
		s.frame(n, typ, flags, id)
		s.out.buf = append(s.out.buf, block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return
		}
		typ, flags = http2.FrameContinuation, 0
	}
}
