// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/sidecar/upstream"
)

// Resolver asks the control plane. Resolve never blocks, may be called from any
// goroutine and for the same key again and again: a repeated call says that the key is in use.
type Resolver interface{ Resolve(k router.Key) }

// Config of a Sidecar.
type Config struct {
	// Logger; required.
	Logger *slog.Logger
	// Listeners are bound TCP listeners (not MPTCP); at least one. They stay the caller's.
	Listeners []*os.File
	// Resolver; required.
	Resolver Resolver
	// Reporter hears what becomes of endpoints, called in the loop. Nil: nobody does.
	Reporter report.Sink
	// OriginalDst tells where an accepted connection was going; called in the
	// loop. Nil: no connection was redirected.
	OriginalDst func(fd int) (netip.AddrPort, error)
	// ErrNoOriginalDst is the error of OriginalDst for a connection that was not redirected.
	ErrNoOriginalDst error
	// Registerer takes the metrics. Nil: they are not exported.
	Registerer prometheus.Registerer
	// Rand drives picking and jitter. Nil: seeded by the runtime.
	Rand *rand.Rand

	// DefaultPort is meant by an :authority without a port on a connection
	// without an original destination. Zero: 50051.
	DefaultPort uint16

	// RouteWait is how long a stream waits for the control plane's word on
	// where it goes. Zero: 1 s.
	RouteWait time.Duration
	// EndpointWait is how long an RPC waits for a service to have an endpoint
	// that can be used, within its deadline. Zero: 5 s.
	EndpointWait time.Duration
	// ServiceIdle is how long a service without RPCs keeps its sessions. Zero: 5 min.
	ServiceIdle time.Duration
	// DrainTime bounds the end of Run: streams may end within it. Zero: 5 s. Negative: none.
	DrainTime time.Duration

	// ReplayBytes of a request are kept until its response begins, so that it
	// can be sent elsewhere. Zero: 64 KiB. Negative: no replay of requests with a body.
	ReplayBytes int
	// ReplayBudget is how many such bytes the process keeps. Zero: 16 MiB.
	ReplayBudget int
	// ReplayAttempts is on how many endpoints an RPC is tried. Zero: 5.
	ReplayAttempts int

	// MaxMethods per service have metrics of their own; further ones share the
	// label "other". Zero: 500.
	MaxMethods int

	// Loop, Downstream (the sessions of the app) and Upstream (those of the
	// servers) have their own defaults. Logger, Loop, Rand, Pool and Stats in them are set here.
	Loop       loop.Config
	Downstream h2.Config
	Upstream   h2.Config
	Sessions   upstream.Config
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("sidecar: Config.Logger is required"))
	}
	if c.Resolver == nil {
		errs = append(errs, errors.New("sidecar: Config.Resolver is required"))
	}
	if len(c.Listeners) == 0 {
		errs = append(errs, errors.New("sidecar: Config.Listeners is empty: nothing to accept connections on"))
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	orDefault(&c.DefaultPort, 50051)
	orDefault(&c.RouteWait, time.Second)
	orDefault(&c.EndpointWait, 5*time.Second)
	orDefault(&c.ServiceIdle, 5*time.Minute)
	orDefault(&c.DrainTime, 5*time.Second)
	orDefault(&c.ReplayBytes, 64<<10)
	orDefault(&c.ReplayBudget, 16<<20)
	orDefault(&c.ReplayAttempts, 5)
	orDefault(&c.MaxMethods, 500)
	return c, errors.Join(errs...)
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
