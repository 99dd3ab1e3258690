// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stats is written by Run's goroutine and read by scrapes.
type stats struct {
	synced      atomic.Bool
	lastAnswer  atomic.Int64 // Unix nanoseconds; zero: never
	disconnects atomic.Uint64
	rejected    atomic.Uint64

	destinations, services, endpoints atomic.Int64

	replicas, tracks   atomic.Int64 // that are known; whose streams are up
	trackEnds, reports atomic.Uint64
}

func (s *stats) answered(now time.Time) {
	s.synced.Store(true)
	s.lastAnswer.Store(now.UnixNano())
}

func (s *stats) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	gauge := func(name, help string, labels prometheus.Labels, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "evenkeel", Subsystem: "discovery", Name: name, Help: help, ConstLabels: labels,
		}, f)
	}
	counter := func(name, help string, v *atomic.Uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "evenkeel", Subsystem: "discovery", Name: name, Help: help,
		}, func() float64 { return float64(v.Load()) })
	}
	const resources = "Resources held from the control plane, by type."
	held := func(typ string, v *atomic.Int64) prometheus.Collector {
		return gauge("resources", resources, prometheus.Labels{"type": typ}, func() float64 { return float64(v.Load()) })
	}
	for _, c := range []prometheus.Collector{
		gauge("connected", "1 while the control plane's stream is up and answered.", nil, func() float64 {
			if s.synced.Load() {
				return 1
			}
			return 0
		}),
		gauge("last_answer_timestamp_seconds", "When the control plane last said anything (Unix time; 0: never).", nil, func() float64 {
			return float64(s.lastAnswer.Load()) / 1e9
		}),
		counter("disconnects_total", "Streams that ended and attempts to connect that failed.", &s.disconnects),
		counter("rejected_responses_total", "Responses with at least one malformed resource.", &s.rejected),
		gauge("replicas", "Replicas of the control plane that reports are sent to.", nil, func() float64 { return float64(s.replicas.Load()) }),
		gauge("report_streams", "Replicas of the control plane that take reports now.", nil, func() float64 { return float64(s.tracks.Load()) }),
		counter("report_stream_ends_total", "Streams of reports that ended and attempts to open one that failed.", &s.trackEnds),
		counter("reports_sent_total", "Reports sent to replicas of the control plane, empty ones too.", &s.reports),
		held("destination", &s.destinations),
		held("service", &s.services),
		held("endpoint", &s.endpoints),
	} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("discovery: register a metric: %w", err)
		}
	}
	return nil
}

// pauses are the times between attempts: exponential, with jitter over its whole
// upper half, so that the sidecars of a cluster whose control plane restarts do
// not come back as one.
type pauses struct {
	min, max time.Duration
	rnd      *rand.Rand
}

// next is the wait after so many failures in a row, from 1.
func (b pauses) next(failures int) time.Duration {
	d := b.min
	for i := 1; i < failures && d < b.max; i++ {
		d *= 2
	}
	d = min(d, b.max)
	return d/2 + time.Duration(b.rnd.Int64N(int64(d/2)+1))
}

// complaint logs a change of connectivity once, and a lasting outage once a
// minute: not every attempt of every sidecar.
type complaint struct {
	down bool
	last time.Time
}

func (q *complaint) connected(log *slog.Logger, target, id string) {
	log.Info("connected to the control plane", "target", target, "server", id)
	q.down = false
}

func (q *complaint) disconnected(ctx context.Context, log *slog.Logger, now time.Time, target string, err error, wait time.Duration) {
	q.complain(ctx, log, now, "no connection to the control plane; the last known endpoints stay in use", target, err, wait)
}

func (q *complaint) complain(ctx context.Context, log *slog.Logger, now time.Time, text, target string, err error, wait time.Duration) {
	level := slog.LevelDebug
	if !q.down || now.Sub(q.last) >= time.Minute {
		level = slog.LevelWarn
		q.last = now
	}
	q.down = true
	log.Log(ctx, level, text, "target", target, "error", err, "retry_in", wait.Round(time.Millisecond).String())
}
