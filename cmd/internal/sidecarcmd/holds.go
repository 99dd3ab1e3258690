// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/discovery"
	"evenkeel.dev/sidecar/hold"
	"evenkeel.dev/xds/api"
)

// reporter is what the holds tell the control plane through.
type reporter interface {
	SetOwn(*api.OwnPod)
	HoldEnded(*api.HoldEnd)
}

// holds runs the pod's three holds: one goroutine owns the machine, everybody
// else posts to it.
type holds struct {
	log     *slog.Logger
	latches latches
	streams time.Duration // drain-streams
	reports reporter
	metrics *holdMetrics

	mu     sync.Mutex
	inputs []input
	wake   chan struct{} // of capacity 1

	ready   chan struct{} // closed: /ready answers 200
	started chan struct{} // closed: /wait returns; startEnd says why
	// startEnd is set before started is closed.
	startEnd hold.End

	// run's goroutine alone.
	machine *hold.Machine
	own     *api.OwnPod
	running *drain // nil: no hook was called
}

// overslept is how late a timer of a process that runs is not.
const overslept = time.Second

type input func(m *hold.Machine, now time.Time)

func newHolds(cfg *Config, log *slog.Logger, reports reporter, reg prometheus.Registerer, now time.Time) *holds {
	h := &holds{
		log: log, latches: latches{log: log, dir: cfg.StateDir}, streams: cfg.DrainStreams,
		reports: reports, metrics: newHoldMetrics(reg),
		wake: make(chan struct{}, 1), ready: make(chan struct{}), started: make(chan struct{}),
	}
	h.machine = hold.New(hold.Config{
		ReadyTimeout: cfg.ReadyTimeout, DrainTimeout: cfg.DrainTimeout,
		DrainMin: time.Duration(cfg.DrainMin), AppGrace: cfg.AppGrace,
		Anonymous: cfg.PodUID == "",
		Started:   h.latches.has(latchStarted), Ready: h.latches.has(latchReady),
		Draining: h.latches.draining(now),
	}, now)
	if h.machine.Draining() {
		h.running = newDrain()
		log.Info("the drain that a restart has cut goes on")
	}
	h.tellOwn()
	return h
}

// run advances the machine until ctx ends.
func (h *holds) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // of timer; zero: it is not set
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wake:
		case <-timer.C:
		}
		now := time.Now()
		if !due.IsZero() && now.Sub(due) > overslept {
			h.machine.Slept(now)
		}
		h.mu.Lock()
		inputs := h.inputs
		h.inputs = nil
		h.mu.Unlock()
		for _, in := range inputs {
			in(h.machine, now)
		}
		h.advance(now)
		timer.Stop()
		if due = h.machine.Deadline(now); !due.IsZero() {
			timer.Reset(due.Sub(now))
		}
	}
}

func (h *holds) advance(now time.Time) {
	ends := h.machine.Advance(now)
	if e, waits := h.machine.Waiting(now); waits {
		h.log.Info("the pod is not ready yet: clients have not connected to it", "waited", e.Waited.Round(time.Millisecond).String(), "missing", e.Missing)
		h.tell(e)
	}
	running := h.running // Advance may have taken the drain back already
	for _, e := range ends {
		h.ended(e)
	}
	if h.running != nil && !h.machine.Draining() {
		h.log.Info("the pod lives on: its drain is taken back")
		h.running = nil
		h.latches.clear(latchDraining)
	}
	h.tellOwn()
	for _, e := range ends {
		h.release(e, running)
	}
}

// ended notes the end of a hold, for everybody but who waits for it.
func (h *holds) ended(e hold.End) {
	log := h.log.With("hold", e.Hold.String(), "reason", string(e.Reason), "waited", e.Waited.Round(time.Millisecond).String(), "missing", e.Missing)
	if e.Reason == hold.Timeout || e.Reason == hold.Silent {
		log.Warn("hold is over without an answer")
	} else {
		log.Info("hold is over")
	}
	h.metrics.ended(e)
	h.tell(e)
	switch e.Hold {
	case hold.Start:
		h.latches.set(latchStarted, "")
	case hold.Ready:
		h.latches.set(latchReady, "")
	}
}

func (h *holds) tell(e hold.End) {
	h.reports.HoldEnded(&api.HoldEnd{
		Hold: e.Hold.String(), WaitedMs: uint64(max(e.Waited.Milliseconds(), 0)), Reason: string(e.Reason), Missing: e.Missing,
	})
}

func (h *holds) release(e hold.End, running *drain) {
	switch e.Hold {
	case hold.Start:
		h.startEnd = e
		close(h.started)
	case hold.Ready:
		close(h.ready)
	case hold.Drain:
		running.end = e
		close(running.over)
	}
}

func (h *holds) tellOwn() {
	own := &api.OwnPod{
		Ready: h.machine.Over(hold.Ready), Draining: h.machine.Draining(), Drained: h.machine.Over(hold.Drain),
		DrainStreamsMs: uint64(h.streams.Milliseconds()),
	}
	if !proto.Equal(own, h.own) {
		h.own = own
		h.reports.SetOwn(own)
	}
}

// post hands an input to run. It never blocks.
func (h *holds) post(in input) {
	h.mu.Lock()
	h.inputs = append(h.inputs, in)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default: // run has yet to look: it will find in too
	}
}

// query asks the machine; false: ctx ended first.
func query[T any](ctx context.Context, h *holds, f func(m *hold.Machine, now time.Time) T) (T, bool) {
	answer := make(chan T, 1)
	h.post(func(m *hold.Machine, now time.Time) { answer <- f(m, now) })
	select {
	case v := <-answer:
		return v, true
	case <-ctx.Done():
		var none T
		return none, false
	}
}

// serving waits until the event loop turns.
func (h *holds) serving(ctx context.Context, turns func() uint64) error {
	t := time.NewTicker(firstLook)
	defer t.Stop()
	for turns() == 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
	h.post(func(m *hold.Machine, _ time.Time) { m.Serving() })
	return nil
}

func (h *holds) synced() { h.post(func(m *hold.Machine, now time.Time) { m.Synced(now) }) }

func (h *holds) learned(l discovery.Learned) {
	h.post(func(m *hold.Machine, _ time.Time) { m.Learned(hold.Learned(l)) })
}

// pod takes what a replica says of the pod; nil: it is lost.
func (h *holds) pod(replica string, ps *api.PodStatus) {
	if ps == nil {
		h.post(func(m *hold.Machine, now time.Time) { m.Lost(now, replica) })
		return
	}
	s := podStatus(ps)
	h.post(func(m *hold.Machine, now time.Time) { m.Status(now, replica, s) })
}

// drain takes a call of the hook and waits for the end of the drain; false: ctx
// ended first.
func (h *holds) drain(ctx context.Context) (hold.End, bool) {
	d, ok := query(ctx, h, func(m *hold.Machine, now time.Time) *drain {
		if !m.Draining() {
			h.log.Info("drain begins: the preStop hook was called")
			h.running = newDrain()
			h.latches.set(latchDraining, strconv.FormatInt(now.UnixNano(), 10))
		}
		m.Hook(now)
		return h.running
	})
	if !ok {
		return hold.End{}, false
	}
	select {
	case <-d.over:
		return d.end, true
	case <-ctx.Done():
		return hold.End{}, false
	}
}

// drain is what calls of the hook wait for.
type drain struct {
	over chan struct{}
	end  hold.End // set before over is closed
}

func newDrain() *drain { return &drain{over: make(chan struct{})} }

func podStatus(ps *api.PodStatus) hold.Status {
	return hold.Status{
		Settled: ps.GetSettled(), AppReady: ps.GetAppReady(), Terminating: ps.GetTerminating(),
		DeletionGrace: time.Duration(ps.GetDeletionGraceSeconds()) * time.Second,
		Exposure:      exposure(ps.GetExposure()),
		Propagated:    ps.GetPropagated(), Clients: int(ps.GetClients()), Answered: int(ps.GetAnswered()), Missing: ps.GetMissing(),
		Drained: ps.GetDrained(), DrainClients: int(ps.GetDrainClients()), DrainReleased: int(ps.GetDrainReleased()), DrainMissing: ps.GetDrainMissing(),
		DirectConnections: int(ps.GetDirectConnections()),
	}
}

func exposure(e api.PodStatus_Exposure) hold.Exposure {
	switch e {
	case api.PodStatus_NONE:
		return hold.ExposureNone
	case api.PodStatus_SERVICE:
		return hold.ExposureService
	case api.PodStatus_EXTERNAL:
		return hold.ExposureExternal
	default:
		return hold.ExposureUnknown
	}
}

// holdMetrics are the pod's own.
type holdMetrics struct {
	seconds  *prometheus.HistogramVec
	timeouts *prometheus.CounterVec
}

func newHoldMetrics(reg prometheus.Registerer) *holdMetrics {
	m := &holdMetrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "evenkeel", Name: "hold_seconds", Help: "How long holds of this pod took, by hold.",
			Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 15, 30, 60},
		}, []string{"hold"}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "evenkeel", Name: "hold_timeouts_total",
			Help: "Holds of this pod that ended without an answer: by their bound, or as the control plane was silent.",
		}, []string{"hold"}),
	}
	reg.MustRegister(m.seconds, m.timeouts)
	for _, k := range []hold.Kind{hold.Start, hold.Ready, hold.Drain} {
		m.timeouts.WithLabelValues(k.String())
	}
	return m
}

func (m *holdMetrics) ended(e hold.End) {
	if e.Reason == hold.Latched {
		return // it took its time before this worker
	}
	m.seconds.WithLabelValues(e.Hold.String()).Observe(e.Waited.Seconds())
	if e.Reason != hold.Answered {
		m.timeouts.WithLabelValues(e.Hold.String()).Inc()
	}
}
