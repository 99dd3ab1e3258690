// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_000_000, 0)

const (
	sec = time.Second
	ms  = time.Millisecond
)

// step is something that happens at a time after the begin.
type step struct {
	at time.Duration
	do func(m *Machine, now time.Time)
}

// says is a status of a replica, once.
func says(at time.Duration, replica string, s Status) step {
	return step{at, func(m *Machine, now time.Time) { m.Status(now, replica, s) }}
}

// keeps is a status of a replica, repeated each 2 s until a time.
func keeps(from, to time.Duration, replica string, s Status) []step {
	var steps []step
	for at := from; at <= to; at += 2 * sec {
		steps = append(steps, says(at, replica, s))
	}
	return steps
}

func lost(at time.Duration, replica string) step {
	return step{at, func(m *Machine, now time.Time) { m.Lost(now, replica) }}
}

func synced(at time.Duration) step {
	return step{at, func(m *Machine, now time.Time) { m.Synced(now) }}
}

func learned(at time.Duration, l Learned) step {
	return step{at, func(m *Machine, _ time.Time) { m.Learned(l) }}
}

func waits(at, timeout time.Duration) step {
	return step{at, func(m *Machine, now time.Time) { m.Wait(now, timeout) }}
}

func hook(at time.Duration) step {
	return step{at, func(m *Machine, now time.Time) { m.Hook(now) }}
}

func serves(at time.Duration) step {
	return step{at, func(m *Machine, _ time.Time) { m.Serving() }}
}

func all(parts ...any) []step {
	var steps []step
	for _, p := range parts {
		switch p := p.(type) {
		case step:
			steps = append(steps, p)
		case []step:
			steps = append(steps, p...)
		default:
			panic(fmt.Sprintf("%T is no step", p))
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return steps
}

var defaults = Config{ReadyTimeout: 15 * sec, DrainTimeout: 30 * sec, DrainMin: -1, AppGrace: 30 * sec}

// play runs the machine as its driver does, with no call but those that inputs
// and Deadline ask for, and returns what ended, by when.
func play(t *testing.T, cfg Config, until time.Duration, steps []step) (ends []string, m *Machine) {
	t.Helper()
	m = New(cfg, epoch)
	m.Learned(Learned{Complete: true})
	now := epoch
	advance := func() {
		for _, e := range m.Advance(now) {
			s := fmt.Sprintf("%s %s at %s", e.Hold, e.Reason, now.Sub(epoch))
			if len(e.Missing) > 0 {
				s += " without " + strings.Join(e.Missing, ",")
			}
			if e.At != now {
				t.Errorf("%s: said to have ended at %s", s, e.At.Sub(epoch))
			}
			ends = append(ends, s)
		}
	}
	rest := func(to time.Time) {
		for n := 0; ; n++ {
			if n > 1000 {
				t.Fatalf("the machine spins at %s", now.Sub(epoch))
			}
			d := m.Deadline(now)
			if d.IsZero() || d.After(to) {
				return
			}
			if !d.After(now) {
				t.Fatalf("deadline %s is not after %s", d.Sub(epoch), now.Sub(epoch))
			}
			now = d
			advance()
		}
	}
	advance()
	for _, s := range steps {
		at := epoch.Add(s.at)
		rest(at)
		now = at
		s.do(m, now)
		advance()
	}
	rest(epoch.Add(until))
	return ends, m
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("ended:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// only keeps the ends of one hold.
func only(k Kind, ends []string) []string {
	return slices.DeleteFunc(ends, func(s string) bool { return !strings.HasPrefix(s, k.String()+" ") })
}

// Statuses.
var (
	warming    = Status{Settled: true, AppReady: true, Exposure: ExposureService, Clients: 3, Answered: 1, Missing: []string{"shop/b", "shop/c"}}
	propagated = Status{Settled: true, AppReady: true, Exposure: ExposureService, Propagated: true, Clients: 3, Answered: 3}
	unsettled  = Status{AppReady: true, Exposure: ExposureService}
	notReady   = Status{Settled: true, Exposure: ExposureService}
	alone      = Status{Settled: true, Exposure: ExposureNone, Propagated: true}
)

// terminating is a status of a pod that is being deleted.
func terminating(grace time.Duration, e Exposure, drained bool) Status {
	s := Status{
		Settled: true, AppReady: true, Terminating: true, DeletionGrace: grace, Exposure: e,
		Drained: drained, DrainClients: 2, DrainReleased: 1, DrainMissing: []string{"shop/slow"},
	}
	if drained {
		s.DrainReleased, s.DrainMissing = 2, nil
	}
	return s
}

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cfg   func(*Config)
		steps []step
		want  []string
	}{
		{
			"propagated", nil,
			all(keeps(sec, 5*sec, "r1", warming), says(6*sec, "r1", propagated)),
			[]string{"ready answered at 6s"},
		},
		{
			"a pod that no Service selects", nil,
			all(says(100*ms, "r1", alone)),
			[]string{"ready answered at 100ms"},
		},
		{
			"a pod without a UID: when anyone has spoken", func(c *Config) { c.Anonymous = true },
			all(says(100*ms, "r1", Status{})),
			[]string{"ready answered at 100ms"},
		},
		{
			"not before the event loop turns", nil,
			all(says(0, "r1", propagated), serves(700*ms)),
			[]string{"ready answered at 700ms"},
		},
		{
			"latched", func(c *Config) { c.Ready = true },
			nil,
			[]string{"ready latched at 0s"},
		},
		{
			"the bound runs from when the app is ready", nil,
			all(keeps(sec, 20*sec, "r1", notReady), keeps(21*sec, 40*sec, "r1", warming)),
			[]string{"ready timeout at 36s without shop/b,shop/c"},
		},
		{
			"the app takes its time", nil,
			all(keeps(sec, 100*sec, "r1", notReady)),
			nil,
		},
		{
			"a bound of zero", func(c *Config) { c.ReadyTimeout = 0 },
			all(says(sec, "r1", warming)),
			[]string{"ready timeout at 1s without shop/b,shop/c"},
		},
		{
			"silent from the begin", nil, nil,
			[]string{"ready silent at 3s"},
		},
		{
			"the only replica is killed", nil,
			all(keeps(sec, 9*sec, "r1", warming), lost(9500*ms, "r1")),
			[]string{"ready silent at 12.5s"},
		},
		{
			"the only replica hangs", nil,
			all(keeps(sec, 5*sec, "r1", warming)), // its lease is over at 10 s
			[]string{"ready silent at 13s"},
		},
		{
			"it comes back in time", nil,
			all(keeps(sec, 5*sec, "r1", warming), lost(6*sec, "r1"), keeps(8*sec, 11*sec, "r1", warming), says(12*sec, "r1", propagated)),
			[]string{"ready answered at 12s"},
		},
		{
			"both replicas must say so", nil,
			all(keeps(sec, 5*sec, "r2", warming), keeps(sec, 9*sec, "r1", propagated), says(6*sec, "r2", propagated)),
			[]string{"ready answered at 6s"},
		},
		{
			"one of two is killed: the other decides at once", nil,
			all(keeps(sec, 5*sec, "r2", warming), keeps(sec, 9*sec, "r1", propagated), lost(5500*ms, "r2")),
			[]string{"ready answered at 5.5s"},
		},
		{
			"one of two hangs: the other decides when its lease is over", nil,
			all(keeps(sec, 3*sec, "r2", warming), keeps(sec, 20*sec, "r1", propagated)),
			[]string{"ready answered at 8.000000001s"},
		},
		{
			"one of two is not settled: the other decides", nil,
			all(keeps(sec, 9*sec, "r1", warming), keeps(sec, 9*sec, "r2", unsettled), says(4*sec, "r1", propagated)),
			[]string{"ready answered at 4s"},
		},
		{
			"the settled one is gone: who is not settled claims nothing", nil,
			all(keeps(sec, 3*sec, "r1", warming), keeps(sec, 9*sec, "r2", unsettled), lost(4*sec, "r1"), keeps(11*sec, 13*sec, "r2", warming), says(14*sec, "r2", propagated)),
			[]string{"ready answered at 14s"},
		},
		{
			"both have restarted", nil,
			all(keeps(sec, 9*sec, "r1", unsettled), keeps(sec, 9*sec, "r2", unsettled), keeps(11*sec, 30*sec, "r1", warming)),
			[]string{"ready timeout at 16s without shop/b,shop/c"},
		},
		{
			"what an unsettled one claims does not count", nil,
			all(keeps(sec, 13*sec, "r1", Status{AppReady: true, Propagated: true})),
			[]string{"ready timeout at 16s"},
		},
		{
			"the word of a lost replica does not count", nil,
			all(says(0, "r2", notReady), lost(500*ms, "r2"), says(600*ms, "r1", warming), lost(700*ms, "r1"), lost(800*ms, "r1"), lost(900*ms, "r9")),
			[]string{"ready silent at 3.7s"},
		},
		{
			"the laggards of all are named", nil,
			all(keeps(sec, 20*sec, "r1", warming), keeps(sec, 20*sec, "r2", Status{Settled: true, AppReady: true, Clients: 3, Answered: 2, Missing: []string{"shop/a", "shop/b"}})),
			[]string{"ready timeout at 16s without shop/a,shop/b,shop/c"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := defaults
			if tc.cfg != nil {
				tc.cfg(&cfg)
			}
			steps := tc.steps
			if !strings.Contains(tc.name, "event loop") {
				steps = all(serves(0), steps)
			}
			ends, m := play(t, cfg, 60*sec, steps)
			check(t, only(Ready, ends), tc.want...)
			if m.Over(Ready) != (len(tc.want) > 0) {
				t.Errorf("over: %t", m.Over(Ready))
			}
		})
	}
}

func TestSilenceBeginsWhenTheProcessRunsAgain(t *testing.T) {
	m := New(defaults, epoch)
	m.Serving()
	m.Status(epoch, "r1", warming)
	now := epoch.Add(time.Minute) // nothing ran until then
	m.Slept(now)
	if ends := m.Advance(now); len(ends) != 1 || ends[0].Reason != Timeout {
		t.Errorf("%+v", ends) // the bound is no silence
	}
	m = New(defaults, epoch)
	m.Serving()
	m.Status(epoch, "r1", notReady)
	m.Slept(now)
	if ends := m.Advance(now); len(ends) != 0 {
		t.Errorf("%+v", ends)
	}
	if d := m.Deadline(now); d != now.Add(Silence) {
		t.Errorf("deadline %s", d.Sub(epoch))
	}
	m.Status(now.Add(sec), "r1", notReady)
	if ends := m.Advance(now.Add(Silence)); len(ends) != 0 {
		t.Errorf("%+v", ends)
	}
}

func TestStart(t *testing.T) {
	dead := Learned{Missing: []string{"shop/pricing:50051 on shop/p1"}}
	for _, tc := range []struct {
		name  string
		cfg   func(*Config)
		steps []step
		want  []string
	}{
		{
			"nothing learned: at once with the first word", nil,
			all(serves(0), synced(50*ms), says(80*ms, "r1", notReady)),
			[]string{"start answered at 80ms"},
		},
		{
			"synced comes last", nil,
			all(serves(0), says(80*ms, "r1", notReady), synced(90*ms)),
			[]string{"start answered at 90ms"},
		},
		{
			"who is not settled may tell the upstreams", nil,
			all(serves(0), synced(50*ms), says(80*ms, "r1", Status{})),
			[]string{"start answered at 80ms"},
		},
		{
			"the learned ones answer", nil,
			all(serves(0), waits(10*ms, 10*sec), synced(50*ms), learned(80*ms, dead), says(80*ms, "r1", notReady), learned(300*ms, Learned{Complete: true})),
			[]string{"start answered at 300ms"},
		},
		{
			"one never does", nil,
			all(serves(0), waits(10*ms, 10*sec), synced(50*ms), learned(80*ms, dead), keeps(80*ms, 12*sec, "r1", notReady)),
			[]string{"start timeout at 10.01s without shop/pricing:50051 on shop/p1"},
		},
		{
			"nobody waits: held for as long as it takes", nil,
			all(serves(0), waits(10*ms, 0), synced(50*ms), learned(80*ms, dead), keeps(80*ms, 30*sec, "r1", notReady)),
			nil,
		},
		{
			"no control plane", nil,
			all(serves(0), waits(0, 10*sec)),
			[]string{"start timeout at 10s without the control plane"},
		},
		{
			"a control plane that takes no reports", nil,
			all(serves(0), waits(0, 10*sec), synced(500*ms)),
			[]string{"start silent at 3.5s"},
		},
		{
			"its word was heard before it was lost", nil,
			all(serves(0), waits(0, 10*sec), says(0, "r1", notReady), lost(10*ms, "r1"), synced(500*ms)),
			[]string{"start answered at 500ms"},
		},
		{
			"the loop does not turn: the bound holds all the same", nil,
			all(waits(0, sec), synced(50*ms), says(80*ms, "r1", notReady)),
			[]string{"start timeout at 1s without the data plane"},
		},
		{
			"asked again with what is left", nil,
			all(serves(0), waits(0, 10*sec), waits(4*sec, 6*sec), synced(50*ms), learned(80*ms, dead), keeps(80*ms, 12*sec, "r1", notReady)),
			[]string{"start timeout at 10s without shop/pricing:50051 on shop/p1"},
		},
		{
			"the app runs already", func(c *Config) { c.Started = true },
			all(serves(20 * ms)),
			[]string{"start latched at 20ms"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := defaults
			if tc.cfg != nil {
				tc.cfg(&cfg)
			}
			ends, _ := play(t, cfg, 60*sec, tc.steps)
			check(t, only(Start, ends), tc.want...)
		})
	}
}
