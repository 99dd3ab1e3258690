// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"encoding/json"
	"testing"
	"time"

	"evenkeel.dev/xds/api"
)

// The states of a pod's life as people see them.
func TestStates(t *testing.T) {
	b := newBench(t)
	m := b.server("pricing-1", 1, pricing)
	m.AppReady = false
	b.track("pricing-1", says())
	state := func() string {
		for _, c := range append(values(b.st.sidecars), b.st.gone...) {
			if c.name == "shop/pricing-1" {
				if c.pod.goneAt.IsZero() {
					b.st.judge(c, b.look("pricing-1"), inFull, b.now)
				}
				return b.st.podView(c).State
			}
		}
		return "unknown"
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "starting"},
		{func() { m.AppReady = true }, "warming"},
		{func() { b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}}) }, "ready"},
		{func() { b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, Draining: true}}) }, "draining"},
		{func() { m.AppReady = false }, "starting"}, // its app is restarted
		{func() { m.AppReady = true }, "ready"},
		{func() { m.Terminating = true }, "draining"},
		{func() { b.report("pricing-1", &api.Report{Leaving: true}) }, "draining"},
		{func() { b.st.podsLeft([]string{"uid-pricing-1"}, b.now) }, "gone"},
		{func() { b.pass(keepGone) }, "gone"},
		{func() { b.pass(2 * time.Second) }, "unknown"},
	} {
		step.do()
		if got := state(); got != step.want {
			t.Errorf("it is %s, want %s", got, step.want)
		}
	}
}

func values(m map[string]*sidecar) (list []*sidecar) {
	for _, c := range m {
		list = append(list, c)
	}
	return list
}

// The JSON is a contract with the CLI.
func TestViewJSON(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", &api.Report{
		Own:   &api.OwnPod{Ready: true},
		Holds: []*api.HoldEnd{{Hold: "start", WaitedMs: 300, Reason: "answered"}, {Hold: "ready", WaitedMs: 15000, Reason: "timeout", Missing: []string{"shop/web-1"}}},
	})
	b.track("web-1", says(sees(pricing, at(1, "pricing-1", func(e *api.EndpointReport) { e.Failed, e.Replayed = 2, 1 }))))
	b.track("web-2", says(sees(pricing, at(1, "pricing-1", isConnected, func(e *api.EndpointReport) { e.Replayed = 4 }))))
	b.report("web-2", says(sees(pricing, at(1, "pricing-1", isConnected, func(e *api.EndpointReport) { e.Replayed = 6 }))))
	c := b.st.sidecars["uid-pricing-1"]
	b.st.judge(c, b.look("pricing-1"), inFull, b.now)
	got, err := json.Marshal(b.st.view("shop", "deployment/pricing", b.now))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"replica":"xds-1","settled":true,"pods":[{"namespace":"shop","pod":"pricing-1","uid":"uid-pricing-1","workload":"deployment/pricing",` +
		`"state":"ready","clients":1,"answered":1,"missing":[],"drain":{"clients":0,"released":0,"missing":[]},` +
		`"holds":[{"hold":"start","seconds":0.3,"reason":"answered","missing":[]},{"hold":"ready","seconds":15,"reason":"timeout","missing":["shop/web-1"]}],` +
		`"rpcs_failed":2,"rpcs_replayed":7}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if v := b.st.view("shop", "", b.now); len(v.Pods) != 3 || v.Pods[0].Pod != "pricing-1" || v.Pods[2].Pod != "web-2" {
		t.Errorf("the whole namespace: %+v", v.Pods)
	}
	if v := b.st.view("bank", "", b.now); v.Pods == nil || len(v.Pods) != 0 {
		t.Errorf("another namespace: %+v", v.Pods)
	}
}

// Counters start again with the sidecar's process; a stream that comes anew
// brings the same ones.
func TestTallies(t *testing.T) {
	b := newBench(t)
	with := func(failed, replayed uint64, change ...func(*api.EndpointReport)) *api.Report {
		return says(sees(pricing, at(1, "pricing-1", append(change, func(e *api.EndpointReport) { e.Failed, e.Replayed = failed, replayed })...)))
	}
	b.track("web-1", with(2, 0))
	b.track("web-1", with(2, 0))
	b.report("web-1", with(3, 1))
	b.track("web-1", with(1, 0)) // its process was restarted
	b.report("web-1", with(2, 0, isGone))
	b.track("web-2", with(0, 5))
	if got := *b.st.tallies["uid-pricing-1"]; got != (tally{5, 6}) {
		t.Errorf("counted %+v, want 5 failed and 6 replayed", got)
	}
}
