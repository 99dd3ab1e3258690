// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// NoEndpointError says that there was nothing to pick. Its text is fit for a
// grpc-message.
type NoEndpointError struct {
	Service string
	Known   int // endpoints in any state
	Ready   int // of those: ready, failing or not
	Failing int // of those: in backoff because connecting failed
	Tried   int // endpoints that the caller excluded
	// RetryAt is when the first backoff ends; zero when none runs.
	RetryAt time.Time
}

func (e *NoEndpointError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "evenkeel: no ready endpoint for %s (%d known, %d ready", e.Service, e.Known, e.Ready)
	if e.Failing > 0 {
		fmt.Fprintf(&b, ", %d failing to connect", e.Failing)
	}
	if e.Tried > 0 {
		fmt.Fprintf(&b, ", %d tried", e.Tried)
	}
	b.WriteByte(')')
	return b.String()
}

// Pick chooses an endpoint for one RPC and counts it as in flight. Endpoints in
// tried are left out: a replay never goes to the same endpoint twice. The error
// is a *NoEndpointError.
func (b *Balancer) Pick(now time.Time, tried []*Endpoint) (*Endpoint, error) {
	b.expire(now)
	e := b.from(&b.ready, tried)
	if e == nil {
		// Draining endpoints still serve. While nothing else does they are
		// better than an error.
		e = b.from(&b.draining, tried)
	}
	if e == nil {
		err := &NoEndpointError{
			Service: b.service, Known: len(b.byAddr), Ready: b.states[Ready],
			Failing: len(b.backoff), Tried: len(tried),
		}
		if len(b.backoff) > 0 {
			err.RetryAt = b.backoff[0].until
		}
		return nil, err
	}
	b.seq++
	e.last = b.seq
	e.inFlight++
	e.picked++
	return e, nil
}

func (b *Balancer) from(s *set, tried []*Endpoint) *Endpoint {
	switch len(s.list) {
	case 0:
		return nil
	case 1:
		if slices.Contains(tried, s.list[0]) {
			return nil
		}
		return s.list[0]
	}
	if b.policy == RoundRobin {
		return roundRobin(s, tried)
	}
	return b.leastRequest(s, tried)
}

// leastRequest is the power of two choices.
//
// gRFC A48: the picker "will randomly select N endpoints and pick the one with
// the fewest outstanding requests". A48 takes the first on a tie; taking the
// least recently picked one instead makes the low-load case nearly a round
// robin.
func (b *Balancer) leastRequest(s *set, tried []*Endpoint) *Endpoint {
	n := len(s.list)
	if len(tried) > 0 {
		// A replay: rare enough to look at every endpoint, and the exclusion is
		// exact.
		var best *Endpoint
		start := b.rnd.IntN(n)
		for i := range n {
			e := s.list[(start+i)%n]
			if !slices.Contains(tried, e) && (best == nil || e.better(best)) {
				best = e
			}
		}
		return best
	}
	i := b.rnd.IntN(n)
	j := b.rnd.IntN(n - 1)
	if j >= i {
		j++
	}
	x, y := s.list[i], s.list[j]
	if y.better(x) {
		return y
	}
	return x
}

// better is the order of least_request.
func (e *Endpoint) better(than *Endpoint) bool {
	if e.inFlight != than.inFlight {
		return e.inFlight < than.inFlight
	}
	return e.last < than.last
}

func roundRobin(s *set, tried []*Endpoint) *Endpoint {
	n := len(s.list)
	for range n {
		e := s.list[s.cursor]
		s.cursor++
		if s.cursor == n {
			s.cursor = 0
		}
		if !slices.Contains(tried, e) {
			return e
		}
	}
	return nil
}
