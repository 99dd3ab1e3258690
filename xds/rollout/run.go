// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"evenkeel.dev/xds/snapshot"
)

// When pods are judged.
const (
	// tickEvery is how often heartbeats are given and leases looked at.
	tickEvery = 100 * time.Millisecond
	// gather is how long a change waits for others that come with it.
	gather = 5 * time.Millisecond
	// atMostEvery is the pause between two judgements while changes go on coming.
	atMostEvery = 25 * time.Millisecond
	// costFactor times what the last judgement took is their distance at least.
	costFactor = 4
	// lookAgain is how often pods in transition are judged without a change: leases end by time.
	lookAgain = 250 * time.Millisecond
)

// EventReason is the reason of the Events about holds that ended by a bound.
const EventReason = "HoldTimeout"

// EventWaiting is the reason of the Events about pods whose readiness waits for
// clients for longer than a moment.
const EventWaiting = "WaitingForClients"

// schedule says when pods are judged next. It is pure.
type schedule struct {
	changed time.Time // the first change that was not judged yet
	began   time.Time // the last judgement
	took    time.Duration
}

func (s *schedule) change(now time.Time) {
	if s.changed.IsZero() {
		s.changed = now
	}
}

// due is when the change is to be judged; ok is false if there is none.
func (s *schedule) due() (at time.Time, ok bool) {
	if s.changed.IsZero() {
		return time.Time{}, false
	}
	at = s.changed.Add(gather)
	if t := s.began.Add(max(atMostEvery, costFactor*s.took)); !s.began.IsZero() && t.After(at) {
		at = t
	}
	return at, true
}

// judge reports whether pods in transition are to be judged now.
func (s *schedule) judge(now time.Time) bool {
	if at, ok := s.due(); ok {
		return !now.Before(at)
	}
	return now.Sub(s.began) >= max(lookAgain, costFactor*s.took)
}

func (s *schedule) judged(began, ended time.Time) {
	s.changed, s.began, s.took = time.Time{}, began, ended.Sub(began)
}

// Run judges pods and tells them, until ctx is done. It is called once.
func (t *Tracker) Run(ctx context.Context, dir Directory) error {
	defer close(t.stopped)
	var s schedule
	nextTick := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var question *ask
		select {
		case <-ctx.Done():
			return nil
		case q := <-t.asks:
			question = &q
		case <-t.wake:
		case <-timer.C:
		}
		now := time.Now()
		if t.takeDirty() {
			s.change(now)
		}
		if question != nil {
			t.answer(dir, question)
		}
		beat := !now.Before(nextTick)
		if beat {
			nextTick = now.Add(tickEvery)
			t.tick(now)
		}
		judge := s.judge(now)
		if beat || judge {
			t.round(dir, judge)
		}
		if judge {
			s.judged(now, time.Now())
		}
		next := nextTick
		if at, ok := s.due(); ok && at.Before(next) {
			next = at
		}
		timer.Reset(time.Until(next))
	}
}

func (t *Tracker) takeDirty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.dirty
	t.dirty = false
	return d
}

func (t *Tracker) tick(now time.Time) {
	t.mu.Lock()
	late := t.state.tick(now)
	reporters := t.state.reporters(now)
	t.mu.Unlock()
	t.metrics.reporters.Set(float64(reporters))
	if late > 0 {
		t.metrics.heldUp.Inc()
		t.cfg.Logger.Warn("this process was held up; until sidecars have reported again nothing is claimed", "for", late)
	}
}

// round judges the pods whose heartbeat is due and, if asked for, those in transition.
func (t *Tracker) round(dir Directory, transition bool) {
	began := time.Now()
	t.mu.Lock()
	pods := t.state.toJudge(began, transition)
	dials := t.state.dials()
	t.mu.Unlock()
	t.judgeAll(dir, pods, dials, asNeeded)
	if transition && len(pods) > 0 {
		t.metrics.judging.Observe(time.Since(began).Seconds())
	}
}

// judgeAll judges pods, and does what comes of it. dials are what apps dial past their sidecars.
func (t *Tracker) judgeAll(dir Directory, pods []*sidecar, dials []netip.AddrPort, d depth) {
	if len(pods) > 0 {
		services := make(directory, len(dials))
		for _, a := range dials {
			services[a] = dir.ServicesAt(a)
		}
		for _, c := range pods {
			t.judge(dir, c, services, d)
		}
	}
	t.flush(dir)
}

// judge asks the Directory about one pod. What it said may be older than a Report
// that comes in between: the change that made it so has the pod judged again.
func (t *Tracker) judge(dir Directory, c *sidecar, services directory, d depth) {
	var l look
	l.member, l.known = dir.Membership(c.objectKey())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.sidecars[c.key] != c {
		return // forgotten meanwhile
	}
	now := time.Now()
	t.state.judge(c, l, d, now)
	t.state.tell(c, services, now)
}

// objectKey is never written after the sidecar was met.
func (c *sidecar) objectKey() snapshot.ObjectKey {
	ns, name, _ := strings.Cut(c.name, "/")
	return snapshot.ObjectKey{Namespace: ns, Name: name}
}

func (t *Tracker) answer(dir Directory, q *ask) {
	t.mu.Lock()
	living, _ := t.state.asked(q.namespace, q.workload)
	dials := t.state.dials()
	t.mu.Unlock()
	t.judgeAll(dir, living, dials, inFull)
	t.mu.Lock()
	defer t.mu.Unlock()
	q.answer <- t.state.view(q.namespace, q.workload, time.Now())
}

// flush does what the state wants done outside.
func (t *Tracker) flush(dir Directory) {
	t.mu.Lock()
	out := t.state.out
	t.state.out = effects{}
	t.mu.Unlock()
	for _, d := range out.drains {
		dir.SetDraining(d.uid, d.drain)
	}
	for _, d := range out.propagated {
		t.metrics.propagation.Observe(d.Seconds())
	}
	for _, o := range out.overflows {
		t.metrics.overflows.WithLabelValues(o.what).Inc()
		if o.first {
			t.cfg.Logger.Warn("a sidecar reports more than is kept; the rest is left out", "sidecar", o.who, "bound", o.what)
		}
	}
	for _, h := range out.holds {
		t.record(&h)
	}
}

// record counts a hold that ended, and writes an Event if a bound ended it.
func (t *Tracker) record(h *heldPod) {
	if h.end.reason == reasonWaiting {
		t.event(h, EventWaiting)
		return
	}
	t.metrics.holds.WithLabelValues(h.end.hold).Observe(h.end.waited.Seconds())
	if h.end.reason != reasonTimeout && h.end.reason != reasonSilent {
		return
	}
	t.metrics.timeouts.WithLabelValues(h.end.hold).Inc()
	t.cfg.Logger.Warn("a hold was ended by its bound", "pod", h.pod.String(), "uid", h.uid, "hold", h.end.hold,
		"reason", h.end.reason, "waited", h.end.waited, "missing", h.end.missing)
	t.event(h, EventReason)
}

func (t *Tracker) event(h *heldPod, reason string) {
	if t.cfg.Recorder != nil && h.uid != "" {
		t.cfg.Recorder.Event(h.pod, h.uid, reason, h.end.message())
	}
}

// message is that of the Event.
func (h *holdEnd) message() string {
	if h.reason == reasonWaiting {
		return fmt.Sprintf("not ready %.1fs after its app: waiting for %s to connect", h.waited.Seconds(), strings.Join(h.missing, ", "))
	}
	m := fmt.Sprintf("%s hold ended after %.1fs", h.hold, h.waited.Seconds())
	if h.reason == reasonSilent {
		return m + ": the control plane was silent"
	}
	if len(h.missing) > 0 {
		m += " without " + strings.Join(h.missing, ", ")
	}
	return m
}
