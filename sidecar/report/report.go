// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package report is what the data plane tells of the endpoints that it was
// given. It holds types only: the data plane makes them, discovery sends them to
// the control plane.
package report

import (
	"fmt"
	"net/netip"
	"time"
)

// Sink takes reports. Report is called in the event loop, at most every few
// milliseconds, and must not block; what it is given is its own.
type Sink interface {
	Report(Batch)
}

// Batch is what changed since the batch before.
type Batch struct {
	Services []Service
	// Direct are addresses that are reached without a service.
	Direct []Endpoint
}

// Service is one service whose endpoints, or whose use, changed.
type Service struct {
	Name string // "namespace/name:port"
	// Gone: the data plane has forgotten it. Nothing else is set.
	Gone bool
	// Active: it has or had an RPC within Config.ServiceIdle. A service that is only kept
	// connected, since others of the workload use it, is not.
	Active    bool
	Endpoints []Endpoint // new or changed
}

// Answer is what became of connecting to an endpoint. It is latched: a session
// that is later closed takes nothing back.
type Answer uint8

// The answers.
const (
	None      Answer = iota // no attempt has ended
	Connected               // a session was established once, SETTINGS exchanged
	Failed                  // an attempt failed, none has succeeded
)

func (a Answer) String() string {
	switch a {
	case None:
		return "none"
	case Connected:
		return "connected"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("answer(%d)", uint8(a))
}

// Endpoint is one endpoint now.
type Endpoint struct {
	Addr netip.AddrPort
	UID  string // of the pod, as it was given; may be empty
	// Gone: neither in the set any more nor with RPCs in flight. Nothing but the counters is set.
	Gone   bool
	Answer Answer
	// Slow: the first attempt takes, or took, longer than upstream.Config.SlowConnect.
	Slow bool
	// Failing: connecting fails now; or it takes that long, where it did not before.
	Failing bool
	// Draining: the control plane says so, or it left the set while RPCs run on it.
	Draining bool
	// Picked: it drains and would still be picked, as nothing else is ready.
	Picked bool
	// InFlight RPCs. Only while draining, and for Batch.Direct.
	InFlight int
	// Youngest of those RPCs: its age when the drain began; 0 if it began later,
	// or if none is in flight. For Batch.Direct, where no drain is known of, its age
	// at the time of the report, which comes again each ten seconds.
	Youngest time.Duration
	// Failed counts RPCs that failed because of the endpoint, Replayed those that were
	// sent to another one instead.
	Failed, Replayed uint64
}
