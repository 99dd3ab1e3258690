// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package rollout knows which sidecars subscribe to which services.
//
// It is told by the ADS server, stream by stream, and answers two questions: who
// subscribes to a service, and what a sidecar subscribes to. A sidecar that
// reconnects has two streams for a moment, of which one is a leftover: it counts
// once, and goes when its last stream goes.
//
// # States
//
// A Tracker holds streams and the services of each; everything else is derived.
// It is locked, never blocks and calls nothing: the ADS server's streams call it
// from their own goroutines.
//
// # Limitations
//
// It knows of the streams of this replica only. It does not know whether a
// subscriber has connected to an endpoint or is done with it, so it decides
// nothing about holds.
package rollout
