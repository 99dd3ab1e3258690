// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
)

// Config of Pools.
type Config struct {
	// Logger; required.
	Logger *slog.Logger
	// Loop owns all that is here; required.
	Loop *loop.Loop
	// H2 is the configuration of the sessions, whose role is Client.
	H2 h2.Config
	// Rand jitters the backoff; required, the loop's own.
	Rand *rand.Rand

	// MaxSessions to one address. Zero: 4.
	MaxSessions int
	// MaxQueue is how many streams may wait for a place at one address. Zero: 1024.
	MaxQueue int

	// ConnectTimeout bounds TCP connect and the server's SETTINGS together. Zero: 5 s.
	ConnectTimeout time.Duration
	// SlowConnect is when a connect that is not there yet is called slow, so
	// that those who have a choice go elsewhere. Zero: 250 ms (the connection attempt
	// delay of RFC 8305, 8).
	SlowConnect time.Duration

	// BackoffMin is the delay after the first failed connect; it grows by 1.6
	// up to BackoffMax, each ± 20 % (gRPC's connection backoff). Zero: 100 ms
	// and 10 s, where gRPC has 1 s and 120 s: gRPC's numbers are for a name that may be
	// anywhere and for many clients of one server; here the control plane
	// takes the address of a dead pod away, so one that stays is about to come back
	// (a container restart), and a SYN in 10 s costs nothing.
	BackoffMin, BackoffMax time.Duration

	// IdleTimeout closes sessions without streams when nobody keeps the pool
	// warm. Zero: 60 s.
	IdleTimeout time.Duration
	// ExtraIdle closes sessions without streams beyond the first of a warm
	// pool. Zero: 30 s.
	ExtraIdle time.Duration

	// PeerSilence is how long a peer that owes us an acknowledgement may be
	// silent. Zero: 6 s; with what it takes to notice, less than 10 s.
	PeerSilence time.Duration

	clogged int64 // bytes held by slow streams; half of H2.SessionBuffer
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("upstream: Config.Logger is required"))
	}
	if c.Loop == nil {
		errs = append(errs, errors.New("upstream: Config.Loop is required"))
	}
	if c.Rand == nil {
		errs = append(errs, errors.New("upstream: Config.Rand is required"))
	}
	c.clogged = c.H2.SessionBuffer / 2
	if c.clogged <= 0 {
		c.clogged = 1 << 20 // h2's default is 2 MiB
	}
	orInt(&c.MaxSessions, 4)
	orInt(&c.MaxQueue, 1024)
	orDuration(&c.ConnectTimeout, 5*time.Second)
	orDuration(&c.SlowConnect, 250*time.Millisecond)
	orDuration(&c.BackoffMin, 100*time.Millisecond)
	orDuration(&c.BackoffMax, 10*time.Second)
	orDuration(&c.IdleTimeout, time.Minute)
	orDuration(&c.ExtraIdle, 30*time.Second)
	orDuration(&c.PeerSilence, 6*time.Second)
	return c, errors.Join(errs...)
}

func orInt(v *int, def int) {
	if *v <= 0 {
		*v = def
	}
}

func orDuration(v *time.Duration, def time.Duration) {
	if *v <= 0 {
		*v = def
	}
}
