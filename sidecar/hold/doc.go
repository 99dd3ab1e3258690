// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package hold decides what a pod keeps back, and for how long: the start of
// its app, its readiness, the SIGTERM of its app. The control plane informs, the
// pod decides.
//
// It is pure: no clock, no goroutine, no I/O. Inputs are methods of [Machine]
// that take now; after them [Machine.Advance] says which holds have just ended,
// [Machine.Deadline] when it must be called again at the latest, and
// [Machine.View] what there is to tell.
//
// # Tour
//
//   - machine.go: the inputs, Advance, Deadline.
//   - word.go: what the replicas of the control plane say, taken together.
//   - start.go, ready.go, drain.go: one hold each: its conditions and bounds.
//   - view.go: what people and probes are told.
//
// # Words of the replicas
//
// A replica's word counts while its stream is open and its last status is not
// older than [xds.Lease]. One that is not settled is heard about the pod (app
// ready, terminating, exposure) but claims nothing: propagated and drained take
// at least one settled replica, and all of those. Silence begins when the last
// replica stops to count.
//
// # States
//
//	start   held ─▶ over     synced, a status seen, every learned upstream answered
//	ready   held ─▶ over     propagated
//	drain   idle ─▶ held ─▶ over ─▶ idle
//	             hook called   drained, and not before the floor
//	                              the pod lives on: not terminating, and its app was seen
//	                              not ready after the hook, or Forget has passed
//
// Start and ready end once. A drain may come again: a liveness restart runs the
// hook of a pod that goes on living.
//
// # Failures
//
//	one of several replicas is killed      it stops to count at once; the others decide
//	one hangs                              waited for until its lease is over, then the others decide
//	one is not settled                     the settled ones decide
//	all have restarted                     nothing is claimed until they settle, or a bound ends the hold
//	all are silent                         ready and drain end after [Silence], the drain not before its floor
//	a client does not answer               ready ends ReadyTimeout after the app was first seen ready,
//	                                       drain at its bound; the laggards are named
//	a learned upstream does not answer     start ends at the bound that `sidecar wait` brings
//	control plane older than reports       synced and silent: start ends after [Silence] too
//	the process did not run for a while    silence begins when it runs again; words that are too old stay so
//	worker restarted                       latched: start and ready end at once; a drain that runs is
//	                                       continued from its own begin (Config.Draining)
//	container restarted, app running       the same latches
//	hook without a deletion                ([Undeleted]) at most; the pod may live on
//	deletion with a shorter grace          half of it is the app's
//
// # Limitations
//
//   - Without any status of a replica that counts it is not known whether the
//     pod is being deleted; the drain then ends by silence, at the floor.
//   - Nothing is known of a client that no replica has heard of yet.
package hold
