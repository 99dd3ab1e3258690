// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package listener takes the application's connections and finds out what they are.
//
//	accept ─▶ original destination ─▶ first bytes ─▶ HTTP/2 preface ─▶ Handler.HTTP2
//	                                             └─▶ anything else  ─▶ Handler.Raw
//
// Arrows are the life of one connection; all of it happens in the loop.
//
// Anything else is: a first byte that the preface does not have there (TLS's
// 0x16, HTTP/1's method), the end of the stream, or silence for Config.SniffTimeout,
// which is what a protocol looks like whose server speaks first; or an app that was
// starved after its connect, so Conn.Silent says that this is not certain. What was read
// goes along, so nothing is lost.
//
//	no descriptor is left (EMFILE)   a spare one is given up to take the
//	                                 connection and close it: the app sees a
//	                                 closed connection now, not a backlog that
//	                                 never moves
//	no original destination          Conn.Orig is the zero value; :authority decides
//	                                 later, and raw TCP has nowhere to go
//	the lookup itself fails          as none, counted and logged
package listener
