// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package upstream keeps HTTP/2 sessions to servers: one Pool for each address.
//
//	Open ──▶ a session with a free stream ──────────────────────────▶ *h2.Stream
//	     └─▶ none: the queue ──▶ dial ──▶ connected ──▶ SETTINGS ──▶ Waiter.StreamReady
//	                               └── refused, slow, silent ──────▶ Waiter.StreamRefused
//
// Arrows are what becomes of one stream. All of it happens in the loop.
//
// # States of a session
//
//	opening   dialling, or connected and waiting for the server's SETTINGS
//	ready     takes streams
//	leaving   GOAWAY sent or received, or idle too long: its streams end, then it closes
//
// A Pool owns the lists of the first two; a session that leaves lives on through
// its connection alone. A connect by itself proves nothing about a server,
// so streams are only given to sessions whose SETTINGS have come.
//
// # A pool that is warm
//
// keeps one session at all times: it dials before the first stream needs it, again as
// soon as GOAWAY has come, and again and again with backoff while that fails.
// Otherwise it dials when a stream waits. More sessions, up to
// Config.MaxSessions, come when a stream waits and all others are full.
//
// # What happens when
//
//	the connect is refused, or fails     those who wait are refused, nothing of theirs was sent;
//	                                     Observer.Failing; the next attempt after a backoff
//	the connect is slow                  Observer.Slow after 250 ms, who may Evict; it goes on
//	no SETTINGS come                     as refused, after 5 s
//	GOAWAY                               the session leaves, its replacement is dialled
//	all streams are taken                another session, then the queue
//	streams that are not read hold       new streams go to another session: see clogged
//	half of a session's buffer
//	the queue is full                    Open fails with ErrQueueFull
//	the server vanishes                  within 10 s; see keepalive.go
//	the server drops each connection     one dial each 100 ms, not more
//	another server gets the address      Renew: the sessions leave, one is dialled at once
//
// # Limitations
//
// Streams fill the first session before the second one, as streams on one session
// share system calls; with equal costs that does not matter to the server.
// Streams that were on a session before others clogged it wait behind them: the connection's window
// is one. Their deadlines hold.
//
// No HTTP/2 PINGs are sent, so a server whose kernel lives and whose process
// hangs is only noticed by deadlines.
package upstream
