// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package sidecar is the data plane: one RPC in, one RPC out.
//
//	app ═▶ listener ─▶ downSession ─▶ relay ─▶ router ─▶ service ─▶ balancer ─▶ target ═▶ server
//	          │        (h2, Server)   one a    Table     or an     Pick       (upstream.Pool,
//	          └─▶ rawConn             stream             address              h2, Client)
//
// Single arrows are calls in one event loop, in the order in which a new stream
// takes them; double ones are sockets. Responses go back through the relay alone.
// Discovery brings Routes and Service, from outside, through the loop's mailbox.
//
// Files are named by what they hold: sidecar.go the assembly, downstream.go the
// app's sessions, route.go where a stream goes and what it waits for, service.go
// and target.go what is shared by streams, relay.go and halves.go the joining of two
// streams, replay.go sending again, outcome.go what the app is told; track.go what is
// noted about endpoints, flights.go what runs on them, reporter.go when it is told.
//
// # Who owns what
//
// The loop owns everything here: there is no lock. Other goroutines come in by Routes, Service,
// Warm, Snapshot and the metrics' collector, all of which post functions.
// A target has a Pool and lives while a service has its address or streams use it. A relay
// belongs to its two streams and is recycled once both have closed.
//
// # States of a relay
//
//	dispatch ─▶ waits: for the route, the service, an endpoint ─▶ dispatch again
//	   └─▶ connect ─▶ queued for a session ─▶ send ─▶ committed ─▶ done ─▶ free
//	            ▲                              │
//	            └── unprocessed, and kept ─────┘
//
// Committed: a byte of the response was seen, the kept request is dropped. Done: the
// outcome is decided and counted; streams may still be closing. Each wait has its bound
// and all of them have the RPC's deadline, which is absolute from the first HEADERS: what a wait used up is
// taken off the grpc-timeout that is sent. A deadline of an RPC that is at a
// server is the client's and the server's to keep, and costs no timer here.
//
// # States of an endpoint
//
//	            connected          picked                             told
//	warming     when in use        no                                 answer
//	ready       when in use        yes                                answer
//	draining    not anew, unless   while no ready one can be: all     answer, picked, in flight
//	            it may be picked   of them fail, or there is none     and the youngest of those
//	left        till the last RPC  no                                 in flight; then, once, gone
//	… and back  as its state says  as its state says                  as one endpoint
//
// In use: the service had an RPC within Config.ServiceIdle (active), or Warm was called. The control
// plane's states are its own; left is what an endpoint is after it was taken out of the set while
// RPCs run on it, also when its whole service is forgotten.
//
// The answer is one of a pod, so of an address and a UID: none before a connect has ended, then failed
// until a session is established, SETTINGS included, then connected for good. Services that have the
// same endpoint share its sessions, so one answer is all of theirs. Another UID at an address is
// another endpoint: sessions to the old pod take no more streams, and the new one is dialled.
//
// What changed is told to Config.Reporter from a timer, at most each 20 ms; what changes with each RPC is
// told only of endpoints that drain, and of addresses without a service, there each 500 ms.
//
// # What the app sees
//
//	the server does                        the app sees
//	responds, in any shape and order       the same
//	RST_STREAM of any code                 the same code, behind the data that came before it
//	… REFUSED_STREAM, before any response  nothing: another endpoint; none left: UNAVAILABLE
//	RST_STREAM after the whole response    the response; RST_STREAM(NO_ERROR) if it still sends
//	GOAWAY, stream not processed           nothing: another endpoint, or a new session of the only one
//	GOAWAY, stream processed               nothing: the stream ends in its time
//	closes or loses the connection         before headers: UNAVAILABLE, trailers-only
//	                                       between messages: trailers with UNAVAILABLE
//	                                       within a message: RST_STREAM(INTERNAL_ERROR)
//	breaks a rule of HTTP/2                INTERNAL (the stream's) or UNAVAILABLE (the connection's)
//	sends too large headers                RESOURCE_EXHAUSTED
//	cannot be reached                      nothing: another endpoint; none for 5 s: UNAVAILABLE
//	… and is of no service                 UNAVAILABLE, then GOAWAY: the name is to be resolved anew
//	vanishes                               UNAVAILABLE within 10 s
//	begins to drain, leaves the set        nothing: what was sent to it ends there, what waits for
//	                                       a stream and what is new goes elsewhere
//	is replaced at its address             nothing: the same
//
// and for requests that are not gRPC 503, 502, 429 or 504 with a text.
//
//	the app does                           the server sees
//	RST_STREAM of any code                 RST_STREAM(CANCEL)
//	closes the connection                  RST_STREAM(CANCEL) for each stream
//	GOAWAY, PING, SETTINGS                 nothing: they are the session's own
//	reads slowly                           its windows shut
//
//	the control plane                      the app sees
//	has not said where an address is       up to 1 s, then HTTP/2 to that address; later
//	                                       streams of the connection are balanced once it has
//	is away                                the last it said, for as long as it is away
//	says that a service is gone            RPCs in flight end well; later ones are routed anew
//
//	a server without warning               is left by picking    told
//	refuses the connect                    at once               failing, and failed if it was the first
//	RST, FIN, on any session               at once               failing, when the next connect fails
//	vanishes                               within 10 s           failing 250 ms later
//	the connect hangs                      after 250 ms          slow; failing, where one was well before
//	GOAWAY                                 while it is dialled   nothing
//
//	the app's connection                   is
//	begins with HTTP/2's preface           HTTP/2
//	begins otherwise, or ends              relayed as bytes to where the app meant
//	is silent for 1 s                      connected there; then what the first word is, also the server's: SETTINGS
//	                                       is HTTP/2's (silent.go). Without a destination: HTTP/2
//
// # Choices
//
// A reset keeps its code, and is not turned into a status, so that the app's library makes
// of it what it would without a sidecar. A connection that is lost is not a
// reset, and has a text that says whose it was.
//
// Endpoints that are connected are preferred to those that are being dialled. Only when a
// service is first used do RPCs spread over all of its endpoints at once, each waiting for its own dial.
//
// # Limitations
//
// Requests larger than Config.ReplayBytes are not sent again. A request on a connection that
// is lost is sent again only when its headers had not left. Trailers that promise a status cannot follow
// half a message, so there the reason is lost. TLS passes through as bytes.
package sidecar
