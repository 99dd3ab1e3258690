// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"flag"
	"os"
	"slices"
	"strconv"
	"testing"

	"evenkeel.dev/e2e/testapp/images"
)

// repeatEnv says how often each rollout is repeated (`make e2e-long`: 20).
const repeatEnv = "EVENKEEL_E2E_REPEAT"

// parallel is how many tests of TestRollout run at once unless -parallel says
// otherwise: most of their time they wait for pods.
const parallel = "2"

// fewEnv leaves out what takes long: `make test`, which has other things to do, runs
// a few of these tests, `make e2e` all.
const fewEnv = "EVENKEEL_E2E_FEW"

// few are the tests of TestRollout in `make test`.
var few = []string{"ReplicaKilled", "RollingRestart", "StreamOutlivesDrain", "Job", "HooksStillRun", "OutboundUntilExit"}

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", parallel); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestRollout: rollouts lose nothing. The tests that take a part of the cluster away
// run first, one by one; then the others at the same time, each in namespaces of its
// own.
func TestRollout(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the cluster is made of namespaces and cgroups")
	}
	r := &rollouts{suite: start(t, "rollout", images.Node), repeat: 1}
	if v := os.Getenv(repeatEnv); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q: want a number", repeatEnv, v)
		}
		r.repeat = n
	}
	// More than a hundred pods run at once: what sidecars ask for by default is more
	// than the two nodes, which share two cores, have.
	r.install(t, "injection.resources.cpuRequest=5m")
	r.collect(t)
	for _, sub := range []struct {
		name  string
		alone bool
		f     func(*testing.T, *rollouts)
	}{
		{"Cost", true, testCost},
		{"ReplicaKilled", true, testReplicaKilled},
		{"ControlPlaneAway", true, testRolloutControlPlaneAway},
		{"CronJob", true, testCronJob},
		{"NodePowerPulled", true, testNodePower},
		{"RollingRestart", false, testRollingRestart},
		{"Strategy", false, testStrategy},
		{"ClientsAndServersAtOnce", false, testBothSides},
		{"Scale2To10To2", false, testScale},
		{"StatefulSetOrderedReady", false, testOrderedReady},
		{"EvictionWithBudget", false, testEviction},
		{"StreamOutlivesDrain", false, testOutlivingStream},
		{"SuddenDeath", false, testSuddenDeath},
		{"StoppedClientSidecar", false, testStoppedSidecar},
		{"CutOffSubscriber", false, testCutOffSubscriber},
		{"Job", false, testJob},
		{"HooksStillRun", false, testHooks},
		{"OutboundUntilExit", false, testOutboundUntilExit},
	} {
		if os.Getenv(fewEnv) != "" && !slices.Contains(few, sub.name) {
			continue
		}
		t.Run(sub.name, func(t *testing.T) {
			if !sub.alone {
				t.Parallel()
			}
			sub.f(t, r)
		})
	}
}

// rollouts is the cluster of TestRollout.
type rollouts struct {
	*suite
	*collector
	// repeat is how often each rollout is done.
	repeat int
}
