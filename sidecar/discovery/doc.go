// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package discovery is the sidecar's side of the control plane: it asks one
// replica about what the app dials, turns the answers into a routing table and
// into the endpoints of services, and reports to every replica what became of
// them.
//
// # Tour
//
//		Resolve(key) ─▶ state.ask ─▶ outbox ─▶ attempt ═▶ control plane, one replica
//		                                                      ║
//		Sink ◀─ state.flush ◀─ state.apply ◀─ attempt ◀════════╝
//		  ┊ the data plane
//		Report(batch) ─▶ ledger ─▶ a book for each track ═▶ control plane, every replica
//		                                                      ║
//		Config.Pod, learning ◀─ Client.Run ◀─ track ◀══════════╝
//
//	  - client.go: [Client.Run], one goroutine that owns all of the state and
//	    selects over what can happen: asked, answered, sent, lost, retry, sweep,
//	    a replica's word.
//	  - stream.go, tls.go: an attempt, which is one connection with one stream,
//	    and the two goroutines that block on it in Run's stead.
//	  - request.go: the outbox; it merges what is to be said until the sender is
//	    free, and starts a new stream with everything that is held.
//	  - apply.go, decode.go: from a response to the state, resource by resource.
//	  - state.go, service.go: what was asked and answered; pure, takes now.
//	  - replicas.go: where the replicas are, found through ADS itself.
//	  - reports.go, track.go: a stream of reports to each replica, with its own
//	    backoff. ledger.go, book.go: what is to be told, and what each stream has
//	    not told yet.
//	  - learned.go: upstreams that others of the workload use.
//	  - stats.go: metrics, the time between attempts, and how often to complain.
//
// # States
//
// A destination is asked, then answered (known or unknown), and may change at
// any time; it is unsubscribed when nothing was routed by it for half an hour.
// The table says nothing about one that is only asked. A destination that is a
// service is shown once the whole list of its endpoints has arrived, so that
// the relay never meets a service that it cannot pick from; until then the
// table keeps its old word. The control plane's own name is a destination that
// the sink never hears of; one that is learned is not reported as used before it is.
//
// A service is subscribed while a destination leads to it. Its list is complete
// when the marker has arrived (see package xds), and from then on for good.
//
//	subscribed ─▶ retired ─▶ left ─▶ barrier ─▶ subscribed
//	    ▲            │        the control plane was told
//	    └────────────┘ wanted again before that
//
// A retired list is kept up to date. One that was left is asked for again only
// when an answer to a question that was asked later, the barrier, has come: what
// was sent for the old subscription has arrived by then, and was ignored.
//
// An answer of an endpoint is latched by address and pod UID. The end of a hold
// is written down by the first replica that has spoken on its stream; it is told
// to none before there is one.
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
//	a replica is lost                      its stream is tried again each 0.1 to 5 s; then it is told everything
//	a replica reads no reports             what it has not been told is merged; nobody waits
//	a replica knows no reports (older)     tried again, said once a minute; its pod hears nothing from it
//	too many learned names                 256 in the life of the process, said once
//	more than 16 replicas                  the first 16 by address
//
// # Limitations
//
//   - The state lives in memory: a restarted worker asks again, and reports anew.
//   - A replica that is not ready is not reported to, since it is no endpoint of
//     the control plane's Service.
package discovery
