// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package discovery is the sidecar's side of the control plane: it asks about
// what the app dials, and turns the answers into a routing table and into the
// endpoints of services.
//
// # Tour
//
//		Resolve(key) ─▶ state.ask ─▶ outbox ─▶ attempt ═▶ control plane
//		                                                      ║
//		Sink ◀─ state.flush ◀─ state.apply ◀─ attempt ◀════════╝
//
//	  - client.go: [Client.Run], one goroutine that owns all of the state and
//	    selects over what can happen: asked, answered, sent, lost, retry, sweep.
//	  - stream.go, tls.go: an attempt, which is one connection with one stream,
//	    and the two goroutines that block on it in Run's stead.
//	  - request.go: the outbox; it merges what is to be said until the sender is
//	    free, and starts a new stream with everything that is held.
//	  - apply.go, decode.go: from a response to the state, resource by resource.
//	  - state.go: what was asked and answered; pure, takes now.
//	  - stats.go: metrics, the time between attempts, and how often to complain.
//
// # States
//
// A destination is asked, then answered (known or unknown), and may change at
// any time; it is unsubscribed when nothing was routed by it for half an hour.
// The table says nothing about one that is only asked. A destination that is a
// service is shown once the whole list of its endpoints has arrived, so that
// the relay never meets a service that it cannot pick from; until then the
// table keeps its old word.
//
// A service is subscribed while a destination leads to it. Its list is complete
// when the marker has arrived (see package xds), and from then on for good.
//
// # Failures
//
//	control plane away, or not there yet   last good state; an attempt each 0.1 to 5 s, with jitter
//	it comes back                          one request per type: all names, with the versions held
//	malformed resource                     its last good version stays, the rest of the response counts;
//	                                       NACK that names resource and field, a log line, a counter
//	unknown policy (newer control plane)   the default policy, a log line
//	CA or token file missing or wrong      the attempt fails and says which file; read again at the next
//	server reads nothing                   given up beyond 1024 answers that wait
//	server vanishes or hangs               HTTP/2 pings end the stream within 20 s
//	Service deleted                        its ClusterIP keeps leading to it: an open connection's RPCs
//	                                       fail with a text that says so, and go on when it is made again
//	flood of names from the app            bounded; unknown ones are dropped first
//
// # Limitations
//
//   - One control plane replica at a time. Reports to every replica come with
//     the holds.
//   - The state lives in memory: a restarted worker asks again.
package discovery
