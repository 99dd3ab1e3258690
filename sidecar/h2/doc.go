// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package h2 is HTTP/2 (RFC 9113) and HPACK (RFC 7541) as a relay of gRPC needs
// them, on both ends of a connection, without I/O: bytes and the time go into a
// Session, events and bytes come out of it. It opens no socket, starts no
// goroutine and reads no clock, so that every rule is a table test, every
// interleaving can be had again, and a fuzzer runs at full speed.
//
// # Tour
//
// A Session is one connection. Its owner, one goroutine, feeds what it read to
// Receive and writes what Output shows, saying how much with Wrote; it calls Tick
// when NextDeadline has come. Handlers are called from within these, in wire
// order:
//
//	read ──▶ Session.Receive ──▶ SessionHandler, StreamHandler ─┐
//	                                                            │ the relay
//	write ◀─ Session.Output  ◀── Stream.WriteHeaders, WriteData ◀┘
//	  └────▶ Session.Wrote   ──▶ StreamHandler.DataSent ──▶ Stream.Consumed (other side)
//
// (an arrow is a call or the bytes that it returns). A relay holds two streams,
// one of a Server session, whose peer is the application, and one of a Client
// session, whose peer is a pod, and passes events of one to methods of the other.
//
// The files follow the way of a byte. conn_recv.go takes frames out of what was
// read, without copying what is whole; recv_headers.go and recv_data.go handle
// the two kinds that matter; hpack_decode.go and headers.go decode fields and
// judge them; streams.go opens and closes; flow.go keeps the receive windows;
// conn_send.go writes, queues and shares out; settings.go, goaway.go and timers.go
// are what they are called; limits.go bounds what a hostile peer can cost;
// errors.go decides how far a fault reaches. x/net's http2.Framer is not used: it
// wants an io.Reader and copies each frame; nine bytes of header are a few lines.
// Its hpack package is the source of the tables and the judge in the tests; why it
// is not the codec is told in hpack_encode.go and hpack_decode.go.
//
// # States
//
// Of a stream, by what was received and sent (RFC 9113 section 5.1):
//
//	    Open (Client)           HEADERS received (Server)
//	         │ WriteHeaders: gets its id      │ StreamOpened
//	         └──────────────┬─────────────────┘
//	                      open
//	END_STREAM received ┌───┴───┐ END_STREAM sent
//	         RecvClosed │       │ SendClosed
//	END_STREAM sent     └───┬───┘ END_STREAM received
//	                  Closed(Complete)
//
// and from each state RST_STREAM, GOAWAY or the end of the session lead to Closed
// with another kind. Closed is called exactly once for each stream; it is the last
// call, and the Stream is then used again for another. Order of events of a
// stream: HeadersReceived(Informational)*, (Response), DataReceived*,
// (Trailers), Closed.
//
// Of a session: preface → established → draining → finished, or failed at any
// time. Draining (GOAWAY sent or received, or ids exhausted) opens no streams and
// finishes those that there are. Failed has told each stream, and has at most its
// last output to give.
//
// # Flow control
//
// Stream windows are end to end: Consumed gives back what left on the other side.
// The connection's window is given back at receipt, so that one stalled stream
// does not stop the others, until the relays of the session hold
// Config.SessionBuffer bytes, or those of all sessions together Pool.MaxHeld; then
// it is withheld. A session thus holds at most SessionBuffer + ConnWindow, a
// stream StreamWindow, and all of them MaxHeld + a ConnWindow each. What waits to be sent is
// on its stream, in chunks of the pool; streams take turns of one frame. DATA
// enters the output up to Config.OutputLimit.
//
// # Failures
//
//	peer does                                   reach       code                     the relay sees
//	--------------------------------------------------------------------------------------------------------------
//	frame that breaks framing or HPACK          connection  FRAME_SIZE, COMPRESSION  Closed(ConnectionLost) for all
//	frame on an idle stream, wrong order        connection  PROTOCOL_ERROR           "
//	HEADERS on a closed stream (to a server)    connection  STREAM_CLOSED            "
//	beyond the connection's window, overflow    connection  FLOW_CONTROL_ERROR       "
//	a bound of Config or Limits                 connection  ENHANCE_YOUR_CALM        "
//	no preface, SETTINGS, or ACK in time        connection  SETTINGS_TIMEOUT         "
//	no answer to PING                           connection  NO_ERROR                 "
//	malformed request                           stream      PROTOCOL_ERROR           nothing: it was not opened
//	malformed response or body                  stream      PROTOCOL_ERROR           Closed(ResetLocally, *StreamError)
//	frames after END_STREAM                     stream      STREAM_CLOSED            "
//	beyond the stream's window, overflow        stream      FLOW_CONTROL_ERROR       "
//	one stream too many                         stream      REFUSED_STREAM           nothing
//	request fields beyond MaxHeaderListSize     stream      as the relay answers     HeadersTooLarge
//	response fields beyond it                   stream      ENHANCE_YOUR_CALM        Closed(ResetLocally, ErrHeadersTooLarge)
//	RST_STREAM                                  stream      -                        Closed(ResetByPeer)
//	RST_STREAM(REFUSED_STREAM), no response     stream      -                        Closed(Unprocessed): replay it
//	RST_STREAM(NO_ERROR) behind a response      stream      -                        Closed(Complete)
//	GOAWAY                                      streams     -                        Closed(Unprocessed) above its last id
//	is gone (Abort)                             connection  -                        Closed(ConnectionLost), or Unprocessed
//	                                                                                 if HEADERS never left whole
//	PRIORITY, unknown frames and settings       none        -                        nothing
//	frames that cross our RST_STREAM            none        -                        nothing; their bytes count
//
// Handlers that break their own contract are met without harm where it costs
// nothing: methods of a closed stream do nothing.
//
// # Limitations
//
// No server push, no extended CONNECT, no priorities: PRIORITY is read and
// ignored. Field values lose white space at their ends, where the RFC would have
// the message refused (see trimValue). Our encoder writes no Huffman code. A
// DATA frame is passed on in the pieces in which it was read: frame boundaries are
// not kept. The pieces of one field block are kept until it is whole. What is sent
// is not held against RFC 9113 section 8: the relay sends what it received.
// A client that ignores SETTINGS_MAX_CONCURRENT_STREAMS is refused by stream, not
// by connection. A stream that was reset here is told from one that the peer had
// closed for the last 64 of them and all below the highest forgotten.
package h2
