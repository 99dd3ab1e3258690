// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	const grace = 65 * sec // 30 s of the app's, 30 s of the drain, 5 s to spare
	type config = func(*Config)
	floor := func(d time.Duration) config { return func(c *Config) { c.DrainMin = d } }
	drained := func(e Exposure) Status { return terminating(grace, e, true) }
	held := func(e Exposure) Status { return terminating(grace, e, false) }
	for _, tc := range []struct {
		name  string
		cfg   config
		steps []step
		want  []string
	}{
		// Floors.
		{
			"no Service, drained at once", nil,
			all(hook(0), says(20*ms, "r1", drained(ExposureNone))),
			[]string{"drain answered at 20ms"},
		},
		{
			"a Service: 3 s", nil,
			all(hook(0), keeps(20*ms, 10*sec, "r1", drained(ExposureService))),
			[]string{"drain answered at 3s"},
		},
		{
			"a LoadBalancer: 10 s", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureExternal))),
			[]string{"drain answered at 10s"},
		},
		{
			"not known: as for a Service", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureUnknown))),
			[]string{"drain answered at 3s"},
		},
		{
			"an explicit floor", floor(1500 * ms),
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureExternal))),
			[]string{"drain answered at 1.5s"},
		},
		{
			"none", floor(0),
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureExternal))),
			[]string{"drain answered at 20ms"},
		},
		{
			"none, but clients pass by their sidecars", floor(0),
			all(hook(0), keeps(20*ms, 12*sec, "r1", func() Status { s := drained(ExposureService); s.DirectConnections = 1; return s }())),
			[]string{"drain answered at 3s"},
		},
		{
			"more than auto, and clients pass by", floor(5 * sec),
			all(hook(0), keeps(20*ms, 12*sec, "r1", func() Status { s := drained(ExposureService); s.DirectConnections = 1; return s }())),
			[]string{"drain answered at 5s"},
		},
		{
			"the exposure is what anyone says", nil,
			all(hook(0), keeps(10*ms, 12*sec, "r2", drained(ExposureExternal)), keeps(20*ms, 12*sec, "r1", drained(ExposureNone))),
			[]string{"drain answered at 10s"},
		},
		{
			"what is known stays known in silence", nil,
			all(says(0, "r1", held(ExposureExternal)), lost(10*ms, "r1"), hook(sec)),
			[]string{"drain silent at 11s"},
		},
		// The answer.
		{
			"an RPC ends late", nil,
			all(hook(0), keeps(20*ms, 7*sec, "r1", held(ExposureService)), says(8*sec, "r1", drained(ExposureService))),
			[]string{"drain answered at 8s"},
		},
		{
			"two of them must say so", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureNone)), keeps(10*ms, 5*sec, "r2", held(ExposureNone)), says(6*sec, "r2", drained(ExposureNone))),
			[]string{"drain answered at 6s"},
		},
		{
			"one of two is killed", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureNone)), keeps(10*ms, 5*sec, "r2", held(ExposureNone)), lost(5500*ms, "r2")),
			[]string{"drain answered at 5.5s"},
		},
		{
			"one of two hangs", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureNone)), says(10*ms, "r2", held(ExposureNone))),
			[]string{"drain answered at 5.010000001s"},
		},
		{
			"one of two is not settled", nil,
			all(hook(0), keeps(20*ms, 12*sec, "r1", drained(ExposureNone)), keeps(10*ms, 12*sec, "r2", Status{Terminating: true, DeletionGrace: grace})),
			[]string{"drain answered at 20ms"},
		},
		{
			"both have restarted: nobody claims anything until they settle", nil,
			all(hook(0), keeps(10*ms, 10*sec, "r1", Status{Terminating: true, DeletionGrace: grace}), says(11*sec, "r1", drained(ExposureNone))),
			[]string{"drain answered at 11s"},
		},
		// The bounds.
		{
			"the bound", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", held(ExposureService))),
			[]string{"drain timeout at 30s without shop/slow"},
		},
		{
			"the floor obeys the bound", func(c *Config) { c.DrainTimeout = 2 * sec },
			all(hook(0), keeps(20*ms, 40*sec, "r1", drained(ExposureExternal))),
			[]string{"drain answered at 2s"},
		},
		{
			"a bound of zero", func(c *Config) { c.DrainTimeout = 0 },
			all(hook(0), keeps(20*ms, 40*sec, "r1", drained(ExposureExternal))),
			[]string{"drain timeout at 0s"},
		},
		{
			"a grace that leaves less", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", terminating(42*sec, ExposureService, false))),
			[]string{"drain timeout at 12s without shop/slow"},
		},
		{
			"a shorter grace than the app's own: half of it", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", terminating(10*sec, ExposureService, false))),
			[]string{"drain timeout at 5s without shop/slow"},
		},
		{
			"just the app's own: half of it too", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", terminating(30*sec, ExposureService, false))),
			[]string{"drain timeout at 15s without shop/slow"},
		},
		{
			"the floor obeys a short grace", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", terminating(4*sec, ExposureExternal, true))),
			[]string{"drain answered at 2s"},
		},
		{
			"the grace is cut while it runs", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", held(ExposureService)), says(8500*ms, "r1", terminating(4*sec, ExposureService, false))),
			[]string{"drain timeout at 8.5s without shop/slow"},
		},
		{
			"no deletion: 5 s", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureExternal, DrainClients: 1, DrainMissing: []string{"shop/a"}})),
			[]string{"drain timeout at 5s without shop/a"},
		},
		{
			"no deletion, drained", nil,
			all(hook(0), keeps(20*ms, 40*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureService, Drained: true})),
			[]string{"drain answered at 3s"},
		},
		{
			"word of the deletion comes after the hook", nil,
			all(hook(0), says(20*ms, "r1", notReady), says(2*sec, "r1", held(ExposureService)), keeps(4*sec, 11*sec, "r1", held(ExposureService)), says(12*sec, "r1", drained(ExposureService))),
			[]string{"drain answered at 12s"},
		},
		{
			"word of the deletion comes too late", nil,
			all(hook(0), says(20*ms, "r1", notReady), keeps(2*sec, 4*sec, "r1", notReady), keeps(6*sec, 20*sec, "r1", held(ExposureService))),
			[]string{"drain timeout at 5s"},
		},
		// Silence.
		{
			"silent: the floor", nil,
			all(hook(10 * sec)),
			[]string{"drain silent at 13s"},
		},
		{
			"the only replica is killed", nil,
			all(hook(0), keeps(20*ms, 9*sec, "r1", held(ExposureService)), lost(9*sec, "r1")),
			[]string{"drain silent at 12s"},
		},
		{
			"the only replica hangs", nil,
			all(hook(0), keeps(0, 8*sec, "r1", held(ExposureService))),
			[]string{"drain silent at 16s"},
		},
		{
			"it comes back", nil,
			all(hook(0), keeps(20*ms, 9*sec, "r1", held(ExposureService)), lost(9*sec, "r1"), keeps(11*sec, 14*sec, "r1", held(ExposureService)), says(15*sec, "r1", drained(ExposureService))),
			[]string{"drain answered at 15s"},
		},
		{
			"never called", nil,
			all(keeps(20*ms, 9*sec, "r1", drained(ExposureService))),
			nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := defaults
			if tc.cfg != nil {
				tc.cfg(&cfg)
			}
			ends, _ := play(t, cfg, 60*sec, all(serves(0), tc.steps))
			check(t, only(Drain, ends), tc.want...)
		})
	}
}

func TestDrainIsKeptOfAPodThatIsDeleted(t *testing.T) {
	over := terminating(65*sec, ExposureService, true)
	over.AppReady = false
	ends, m := play(t, defaults, 300*sec, all(
		hook(0), keeps(20*ms, 200*sec, "r1", terminating(65*sec, ExposureService, true)), keeps(sec, 200*sec, "r1", over),
		hook(100*sec), // of another container
	))
	check(t, only(Drain, ends), "drain answered at 3s")
	if !m.Draining() || !m.Over(Drain) {
		t.Error("the drain of a pod that is being deleted was taken back")
	}
}

func TestLivenessRestartHasADrainOfItsOwnEachTime(t *testing.T) {
	up := Status{Settled: true, AppReady: true, Exposure: ExposureService, Drained: true}
	down := up
	down.AppReady = false
	var m *Machine
	seen := map[time.Duration]bool{}
	look := func(at time.Duration) step {
		return step{at, func(m *Machine, _ time.Time) { seen[at] = m.Draining() }}
	}
	ends, m := play(t, defaults, 200*sec, all(
		hook(0), keeps(20*ms, 3*sec, "r1", up),
		look(3500*ms),
		says(4*sec, "r1", down), // the container is restarted
		look(4*sec+1),
		keeps(5*sec, 20*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureService}),
		// Again, and the word about the first drain does not end the second.
		hook(20*sec), keeps(20*sec+10*ms, 22*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureService, DrainClients: 1, DrainMissing: []string{"shop/x"}}),
		keeps(23*sec, 80*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureService}),
	))
	check(t, only(Drain, ends), "drain answered at 3s", "drain timeout at 25s")
	if !seen[3500*ms] || seen[4*sec+1] {
		t.Errorf("draining before and after the app went down: %v", seen)
	}
	// The app was never seen down the second time: forgotten after 35 s.
	if m.Draining() {
		t.Error("the drain of a pod that lives on is kept for ever")
	}
}

func TestDrainOfAPodThatLivesOnIsForgottenInTime(t *testing.T) {
	up := Status{Settled: true, AppReady: true, Exposure: ExposureService}
	steps := all(hook(0), keeps(20*ms, 60*sec, "r1", up))
	_, before := play(t, defaults, Forget-1, steps[:18])
	_, after := play(t, defaults, Forget, steps[:18])
	if !before.Draining() || after.Draining() {
		t.Errorf("draining before %t, after %t", before.Draining(), after.Draining())
	}
}

func TestWordAboutTheLastDrainDoesNotEndTheNext(t *testing.T) {
	down := Status{Settled: true, Exposure: ExposureNone, Drained: true}
	ends, _ := play(t, defaults, 30*sec, all(
		hook(0), says(20*ms, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureNone, Drained: true}), says(sec, "r1", down),
		hook(1500*ms), keeps(2*sec, 20*sec, "r1", Status{Settled: true, AppReady: true, Exposure: ExposureNone}),
	))
	check(t, only(Drain, ends), "drain answered at 20ms", "drain timeout at 6.5s")
}

func TestDrainGoesOnAfterARestartOfTheWorker(t *testing.T) {
	cfg := defaults
	cfg.Draining = epoch.Add(-20 * sec)
	ends, _ := play(t, cfg, 60*sec, all(serves(0), keeps(100*ms, 20*sec, "r1", terminating(65*sec, ExposureService, false))))
	check(t, only(Drain, ends), "drain timeout at 10s without shop/slow")
}
