// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package balancer picks an endpoint for each RPC of one service.
//
// # Tour
//
//		discovery ──Spec──▶ Balancer.Update ──▶ sets ──Pick──▶ *Endpoint ──Done──▶ counters
//		upstream  ──SetFailing / SetConnected──▶ sets
//
//	  - spec.go: the pure description, [Spec], made by discovery.
//	  - endpoint.go: the live [Endpoint]: its counters, its backoff, and a place
//	    for the caller's sessions.
//	  - balancer.go: [Balancer], which keeps three sets of endpoints that may be
//	    picked from and moves endpoints between them.
//	  - pick.go: the policies.
//
// # Ownership
//
// A Balancer and its Endpoints belong to one event loop; nothing here locks,
// blocks, logs or reads a clock. The random source is the caller's.
//
// # States
//
// The control plane's state of an endpoint ([Warming], [Ready], [Draining]) and
// the connectivity that upstream reports (failing until t, or not) together
// decide in which set it is:
//
//	Warming                        none: sessions may be made, nothing is picked
//	Ready,    not failing          ready set: picked from
//	Draining, not failing          draining set: picked from while the ready set is empty
//	Ready or Draining, failing     backoff heap until t, then back in its set
//	removed                        none; counters live on for the RPCs in flight
//
// Picking from a set is O(1) whatever its size. An update that comes with a
// [Delta] touches what changed and nothing else.
//
// # Policies
//
// [LeastRequest] compares two endpoints taken at random by their RPCs in flight
// and takes the least recently picked one on a tie. Latency is deliberately not
// looked at: as a tie-break it ranks endpoints at low load (simulated:
// coefficient of variation 26 to 57 %).
//
// [RoundRobin] walks a random permutation of its own, so that clients which
// start together do not march in step.
//
// # Failures
//
//	no ready endpoint              draining ones; none either: *NoEndpointError
//	all of them fail to connect    *NoEndpointError with RetryAt, the earliest end of a backoff
//	a stale or repeated Delta      ignored in favour of the whole list in the same Spec
//	the same address twice         the last one counts
//	another UID at an address      another pod: the endpoint is removed, a new one added
//
// # Limitations
//
//   - EndpointSpec.Weight is carried and shown, not yet used.
//   - RPCs in flight are this client's own. An endpoint that is slow because of
//     others is noticed only by the RPCs that this client has on it.
package balancer
