// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"evenkeel.dev/xds"
)

// model is the rules of the package again, from what was said and when, without
// any state of its own.
type model struct {
	said     []saying
	hooked   time.Duration
	wasHook  bool
	replicas []string
}

type saying struct {
	at      time.Duration
	replica string
	status  *Status // nil: lost
}

// last is the word of a replica that counts at a time, if it has one.
func (o *model) last(replica string, at time.Duration) (Status, bool) {
	var last *saying
	for i := range o.said {
		if s := &o.said[i]; s.replica == replica && s.at <= at {
			last = s
		}
	}
	if last == nil || last.status == nil || at-last.at > xds.Lease {
		return Status{}, false
	}
	return *last.status, true
}

func (o *model) everyone(at time.Duration, says func(Status) bool) bool {
	n := 0
	for _, r := range o.replicas {
		if s, ok := o.last(r, at); ok && s.Settled {
			if n++; !says(s) {
				return false
			}
		}
	}
	return n > 0
}

// silentFor is whether nobody counted at any time of the d before at.
func (o *model) silentFor(d, at time.Duration) bool {
	if at < d {
		return false
	}
	for t := at - d + 1; t <= at; t += 20 * ms {
		for _, r := range o.replicas {
			if _, ok := o.last(r, t); ok {
				return false
			}
		}
	}
	return true
}

func (o *model) firstReady() (time.Duration, bool) {
	for _, s := range o.said {
		if s.status != nil && s.status.AppReady {
			return s.at, true
		}
	}
	return 0, false
}

func (o *model) terminating(at time.Duration) (grace time.Duration, ok bool) {
	for _, s := range o.said {
		if s.at <= at && s.status != nil && s.status.Terminating {
			grace, ok = s.status.DeletionGrace, true
		}
	}
	return grace, ok
}

// judge says what is wrong with an end.
func (o *model) judge(e End, cfg Config) string {
	at := e.At.Sub(epoch)
	switch {
	case e.Hold == Ready && e.Reason == Answered:
		if !o.everyone(at, func(s Status) bool { return s.Propagated }) {
			return "not everyone who is settled and counts says propagated"
		}
	case e.Hold == Ready && e.Reason == Timeout:
		if first, ok := o.firstReady(); !ok || at < first+cfg.ReadyTimeout {
			return "before its bound"
		}
	case e.Hold == Drain && e.Reason == Answered:
		if !o.everyone(at, func(s Status) bool { return s.Drained }) {
			return "not everyone who is settled and counts says drained"
		}
	case e.Hold == Drain && e.Reason == Timeout:
		bound := cfg.DrainTimeout
		if grace, ok := o.terminating(at); ok {
			bound = min(bound, left(grace, cfg.AppGrace))
		} else {
			bound = min(bound, Undeleted)
		}
		if at < o.hooked+bound {
			return fmt.Sprintf("before its bound, %s after the hook", bound)
		}
	case e.Reason == Silent:
		if !o.silentFor(Silence, at) {
			return "somebody was heard"
		}
	}
	return ""
}

// TestNobodyIsHeldForEverNorReleasedTooEarly plays random histories of two
// replicas that come, go, hang, settle and change their minds.
func TestNobodyIsHeldForEverNorReleasedTooEarly(t *testing.T) {
	runs := 4000
	if testing.Short() {
		runs = 400
	}
	for seed := range runs {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7))
		cfg := defaults
		cfg.ReadyTimeout = time.Duration(1+rnd.IntN(15)) * sec
		cfg.DrainMin = time.Duration(rnd.IntN(3)-1) * sec
		o := &model{replicas: []string{"r1", "r2"}}
		m := New(cfg, epoch)
		m.Serving()
		now := epoch
		advance := func() {
			for _, e := range m.Advance(now) {
				if wrong := o.judge(e, cfg); wrong != "" {
					t.Fatalf("seed %d: %s %s at %s: %s", seed, e.Hold, e.Reason, e.At.Sub(epoch), wrong)
				}
			}
		}
		rest := func(to time.Time) {
			for d := m.Deadline(now); !d.IsZero() && !d.After(to); d = m.Deadline(now) {
				now = d
				advance()
			}
		}
		deleted := false
		for range 1 + rnd.IntN(40) {
			to := now.Add(time.Duration(rnd.IntN(2500)) * ms)
			rest(to)
			now = to
			replica := o.replicas[rnd.IntN(2)]
			switch rnd.IntN(8) {
			case 0:
				o.said = append(o.said, saying{now.Sub(epoch), replica, nil})
				m.Lost(now, replica)
			case 1:
				if !o.wasHook {
					o.wasHook, o.hooked = true, now.Sub(epoch)
					m.Hook(now)
				}
			default:
				deleted = deleted || o.wasHook && rnd.IntN(2) == 0
				s := Status{
					Settled: rnd.IntN(4) > 0, AppReady: rnd.IntN(4) > 0, Exposure: Exposure(rnd.IntN(4)),
					Propagated: rnd.IntN(3) == 0, Drained: rnd.IntN(3) == 0,
					Terminating: deleted, DeletionGrace: time.Duration(rnd.IntN(70)) * sec,
				}
				o.said = append(o.said, saying{now.Sub(epoch), replica, &s})
				m.Status(now, replica, s)
			}
			advance()
		}
		// Nothing more is heard: every hold ends within the lease, the silence and the
		// longest floor.
		rest(now.Add(xds.Lease + Silence + FloorExternal))
		if !m.Over(Ready) || m.Draining() && !m.Over(Drain) {
			t.Fatalf("seed %d: held for ever: %+v", seed, m.View(now))
		}
	}
}
