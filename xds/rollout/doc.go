// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package rollout knows which sidecars subscribe to which services and what
// became of each endpoint there, and tells every pod about itself: who has
// answered for it, and who has let go of it.
//
//	ADS streams ──────────────▶ ┌───────┐
//	Reports ──decode──────────▶ │ state │ ──PodStatus──▶ Sink of the pod's stream
//	Pods that came and left ──▶ └───────┘
//	                              ▲   │
//	Directory ──Membership────────┘   └──SetDraining──▶ Directory
//
// An arrow is a function call that does not block. The state is pure: it has no
// clock, no lock and no goroutine, and is given the Membership of the pods that
// it judges. Around it are the [Tracker]'s mutex, and one goroutine (Run) that
// asks the Directory, judges, and hands out.
//
// # Tour
//
//   - tracker.go: what others call. run.go: when pods are judged.
//   - decode.go: a Report, checked and made into values.
//   - state.go: sidecars, streams, who subscribes. report.go: a Report taken in.
//   - propagated.go, drained.go: the two questions. drain.go: when a drain opens and closes.
//   - excuse.go: who is not waited for again. learned.go: what a workload's pods use.
//   - status.go: a PodStatus. view.go: the same for people. laggards.go: names, at most 10.
//
// # States of a sidecar
//
// Every sidecar is a client of some services, and the pod it is in is a server
// of others, or of none.
//
//	as a client   unknown ─▶ in lease ⇄ lease over ─▶ forgotten
//	                            └──────▶ left (Pod gone, or leaving) ─▶ forgotten
//	as a server   starting ─▶ warming ─▶ ready ─▶ draining ─▶ gone ─▶ forgotten
//	                 app_ready  ready hold  hook called, or  Pod gone
//	                            released    Pod terminating
//
// In lease: its last Report, or the opening of an ADS stream since, is not older
// than [xds.Lease]. Only who is in lease is waited for. What was reported stays
// until the next stream's first Report replaces it: answers are kept by address
// and UID, so a pod that gets another's address begins with nothing.
//
// A pod is in transition while its ready hold is not released or while its drain
// is open and not released. Those are judged at every change, the others once
// each [xds.ReportInterval].
//
// # The two claims
//
// Neither is made before the replica is settled: [xds.Settle] after it began to
// serve, and again a lease after it was itself held up (paused, starved): what
// it has not read yet must not look like silence.
//
//   - propagated: for every service of the pod, every subscriber that is waited
//     for has the endpoint: active ones have connected to it or failed to.
//   - drained: for every service that the pod is or was in, every subscriber knows
//     that it drains, does not pick it, and has no RPC on it that holds. (Who is
//     excused may pick it: it has nothing else that it can connect to.)
//
// # Owners
//
//	mutex of Tracker   state and everything below it
//	Run                timers; the only caller of Directory and Recorder
//	server             the streams; a Sink keeps the newest status only
//
// The Directory is asked without the mutex held: it has a lock of its own.
//
// # Failures
//
//	a sidecar dies or is stopped       waited for until its lease is over
//	it is cut off from this replica    the same; other replicas still count it
//	it cannot connect to pods          answers FAILED; if that took long, or a hold timed out
//	                                   for it, it is not waited for in that service
//	                                   until it connects to something there
//	it ends                            leaving, or its Pod gone: not waited for at once
//	its stream breaks                  the next one's first Report replaces everything
//	two streams of one sidecar         the newer one's word counts
//	a malformed Report                 an error that names the field; the stream ends
//	this replica restarts              claims nothing until settled; holds end by other
//	                                   replicas or by their bounds
//	this replica is paused             claims nothing for a lease
//	a pod's name or IP is used again   UIDs differ: nothing carries over
//	the hook was called, the pod       the drain closes when its app restarts, at the latest
//	lives on                           after 35 s
//	the Recorder is slow               it is called from Run, so it must queue, not wait
//	more than the bounds allow         counted, logged once, the rest is not taken in
//
// # Limitations
//
// An endpoint that a sidecar reports without a UID acknowledges no pod: an old
// pod's answer could not be told from a new one's. Upstreams are forgotten with
// the replica. A service that was only kept connected is not learned: or what
// one generation of pods used would be handed down for ever.
package rollout
