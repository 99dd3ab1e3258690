// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// HeadersKind says what a field section is.
type HeadersKind uint8

const (
	// Informational: a 1xx response; another follows.
	Informational HeadersKind = iota
	// Response: the final response's header section.
	Response
	// Trailers: a response's (Client) or a request's (Server) trailer section;
	// always with end.
	Trailers
)

func (k HeadersKind) String() string {
	return [...]string{"informational", "response", "trailers"}[k]
}

// EndKind says how a stream ended.
type EndKind uint8

const (
	// Complete: both sides ended it, or the response was whole and the rest of
	// the request was declined with RST_STREAM(NO_ERROR) (RFC 9113 section 8.1).
	Complete EndKind = iota
	// ResetByPeer: RST_STREAM was received.
	ResetByPeer
	// ResetLocally: RST_STREAM was sent: by Stream.Reset (Cause is nil), or
	// because the peer broke a rule of the stream (Cause is a *StreamError).
	ResetLocally
	// Unprocessed: the peer provably did nothing with the request, which may be
	// replayed elsewhere: REFUSED_STREAM, an id above GOAWAY's last id, or the
	// request's header section never left for the peer (Client only).
	Unprocessed
	// ConnectionLost: the session failed or its transport is gone.
	ConnectionLost
)

func (k EndKind) String() string {
	return [...]string{"complete", "reset by peer", "reset locally", "unprocessed", "connection lost"}[k]
}

// StreamEnd is how a stream ended.
type StreamEnd struct {
	Kind  EndKind
	Code  http2.ErrCode // of the RST_STREAM or GOAWAY
	Cause error         // nil, or what lies behind it
}

// StreamHandler hears what happens to a Stream; see SessionHandler for the terms.
type StreamHandler interface {
	// HeadersReceived brings a response's sections (Client) or a request's
	// trailers (Server).
	HeadersReceived(st *Stream, kind HeadersKind, fields []hpack.HeaderField, end bool)
	// DataReceived brings a piece of the body, without padding; p is empty only
	// with end. The receiver owes st.Consumed(len(p)) once it is done with it.
	DataReceived(st *Stream, p []byte, end bool)
	// DataSent: n bytes given to WriteData are in the output. It may be called
	// from within WriteData.
	DataSent(st *Stream, n int)
	// Closed is called exactly once, and is the last call for st. It may come
	// from within WriteHeaders, WriteData and Reset. When it has returned, st
	// must not be used any more; methods that are on the stack do no harm.
	Closed(st *Stream, end StreamEnd)
}

// Stream is one request and its response on a Session.
type Stream struct {
	s  *Session
	h  StreamHandler
	id uint32

	recvEnd     bool // END_STREAM was received
	sendEnd     bool // END_STREAM is in the output
	ended       bool // the owner has written end: no more may follow
	closed      bool // Closed was called
	gotHeaders  bool // the request (Server) or the final response (Client) came
	headRequest bool // the request's method is HEAD: content-length speaks of no body here
	ignoreRecv  bool // the request was too large: drop what follows
	ready       bool // in the list of streams that have data to send
	replied     bool // anything of a response was seen (Client)

	informational uint8 // 1xx responses seen

	recvWindow int32
	owed       int32 // Consumed and not yet given back to the stream's window
	held       int32 // delivered and not yet Consumed
	sendWindow int32

	bodyLeft int64 // what content-length still allows; -1: not said

	opened    time.Duration // since the session's epoch
	headersAt uint64        // output offset behind the request's header section (Client)

	queue    chunkQueue
	trailers []hpack.HeaderField // written behind queue
	trail    bool                // trailers wait

	next, prev *Stream // in the session's ready or dead list
}

// ID returns the stream's id; 0 for one of Open's that has not written its headers.
func (st *Stream) ID() uint32 { return st.id }

// Session is the one that the stream is on; valid until the end of Closed.
func (st *Stream) Session() *Session { return st.s }

// SetHandler sets who hears of the stream.
func (st *Stream) SetHandler(h StreamHandler) { st.h = h }

// Queued returns the bytes given to WriteData that are not yet in the output.
func (st *Stream) Queued() int { return st.queue.n }

// RecvClosed reports whether nothing more will be received on the stream.
func (st *Stream) RecvClosed() bool { return st.recvEnd || st.closed }

// SendClosed reports whether nothing more can be written to the stream.
func (st *Stream) SendClosed() bool { return st.ended || st.closed }

// Reset sends RST_STREAM and closes the stream; what is queued on it is
// dropped. Handler.Closed is called before Reset returns. Of a stream that is
// Complete but for the peer's request, NO_ERROR is the fitting code.
func (st *Stream) Reset(code http2.ErrCode) {
	if st.closed {
		return
	}
	s := st.s
	kind := ResetLocally
	if s.role == Server && st.sendEnd && code == http2.ErrCodeNo {
		kind = Complete
	}
	if st.id != 0 && s.err == nil {
		s.writeRST(st.id, code)
		s.gone.add(st.id)
		s.earnByReset()
	}
	s.closeStream(st, StreamEnd{Kind: kind, Code: code})
}
