// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"net/netip"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// drainingBench has pricing-1, deleted and drained by nobody yet.
func drainingBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	m := b.server("pricing-1", 1, pricing)
	m.Services[0].State = corepb.HealthStatus_HEALTHY
	b.track("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, DrainStreamsMs: 30000}})
	b.status("pricing-1")
	m.Terminating, m.DeletionGrace = true, 30*time.Second
	m.Services[0].State = corepb.HealthStatus_DRAINING
	return b
}

// What one client says of a draining pod, and whether that lets it go.
func TestReleases(t *testing.T) {
	web := func(e ...*api.EndpointReport) func(*bench) {
		return func(b *bench) { b.track("web-1", says(sees(pricing, e...))) }
	}
	unlisted := func(f func(*bench)) func(*bench) {
		return func(b *bench) {
			b.members["pricing-1"].Services[0].State = corepb.HealthStatus_UNKNOWN
			b.status("pricing-1")
			f(b)
		}
	}
	left := func(f func(*bench)) func(*bench) {
		return func(b *bench) { b.members["pricing-1"].Services = nil; b.status("pricing-1"); f(b) }
	}
	// excused: it could not connect to what takes the pod's place.
	excused := func(f func(*bench)) func(*bench) {
		return func(b *bench) {
			f(b)
			for _, u := range b.st.sidecars["uid-web-1"].uses {
				u.excused = true
			}
		}
	}
	const missing = "0/1 shop/web-1"
	for name, tt := range map[string]struct {
		client func(b *bench)
		want   bool
		told   string
	}{
		"nobody":                                {func(*bench) {}, true, "0/0"},
		"not told of it yet":                    {web(), false, missing},
		"not told yet that it drains":           {web(at(1, "pricing-1", isConnected)), false, missing},
		"told, nothing in flight":               {web(at(1, "pricing-1", isDraining)), true, "1/1"},
		"told, picked as nothing else is ready": {web(at(1, "pricing-1", isDraining, isPicked)), false, missing},
		"told, an RPC in flight":                {web(at(1, "pricing-1", isDraining, inFlight(1, 0))), false, missing},
		"told, an RPC as old as may hold":       {web(at(1, "pricing-1", isDraining, inFlight(1, 30*time.Second))), false, missing},
		"told, an old stream in flight":         {web(at(1, "pricing-1", isDraining, inFlight(1, 30001*time.Millisecond))), true, "1/1"},
		"an old stream, but picked":             {web(at(1, "pricing-1", isDraining, isPicked, inFlight(1, time.Hour))), false, missing},
		"excused, picked":                       {excused(web(at(1, "pricing-1", isDraining, isPicked))), true, "1/1"},
		"excused, an RPC in flight":             {excused(web(at(1, "pricing-1", isDraining, isPicked, inFlight(1, 0)))), false, missing},
		"excused, not told that it drains":      {excused(web(at(1, "pricing-1", isConnected))), false, missing},
		"another pod drains at the address":     {web(at(1, "pricing-0", isDraining)), false, missing},
		"idle, not told yet":                    {func(b *bench) { b.track("web-1", says(idle(sees(pricing, at(1, "pricing-1"))))) }, false, missing},
		"only over ADS":                         {func(b *bench) { b.ads("web-1", pricing) }, false, missing},
		"left the slice, not told yet":          {unlisted(web(at(1, "pricing-1", isConnected))), false, missing},
		"left the slice, an RPC in flight":      {unlisted(web(at(1, "pricing-1", isDraining, inFlight(2, time.Second)))), false, missing},
		"left the slice, told and forgotten":    {unlisted(web()), true, "1/1"},
		"left the slice, gone": {unlisted(func(b *bench) {
			web(at(1, "pricing-1"))(b)
			b.report("web-1", says(sees(pricing, at(1, "pricing-1", isGone))))
		}), true, "1/1"},
		"left the Service, an RPC in flight":   {left(web(at(1, "pricing-1", isDraining, inFlight(1, 0)))), false, missing},
		"left the Service, not told yet":       {left(web(at(1, "pricing-1"))), false, missing},
		"left the Service, gone":               {left(web()), true, "1/1"},
		"left the slice, nothing said since":   {func(b *bench) { web()(b); unlisted(func(*bench) {})(b) }, false, missing},
		"left the Service, nothing said since": {func(b *bench) { web()(b); left(func(*bench) {})(b) }, false, missing},
		"left the slice, only over ADS":        {unlisted(func(b *bench) { b.ads("web-1", pricing) }), false, missing},
		"left the slice, nothing to say":       {func(b *bench) { web()(b); unlisted(func(b *bench) { b.beat("web-1") })(b) }, true, "1/1"},
		"Local, a client on another node":      {func(b *bench) { web()(b); m := b.members["pricing-1"]; m.Services[0].LocalOnly, m.Node = true, "node2" }, true, "0/0"},
		"it calls itself":                      {func(b *bench) { b.report("pricing-1", says(sees(pricing, at(1, "pricing-1")))) }, false, "0/1 shop/pricing-1"},
		"it called itself":                     {func(b *bench) { b.report("pricing-1", says(sees(pricing, at(1, "pricing-1", isDraining)))) }, true, "1/1"},
		"reached by its name, an RPC in flight": {func(b *bench) {
			b.track("web-1", &api.Report{Direct: []*api.EndpointReport{at(1, "pricing-1", inFlight(1, 0))}})
		}, false, missing},
		"reached by its address, no UID known": {func(b *bench) {
			b.track("web-1", &api.Report{Direct: []*api.EndpointReport{at(1, "pricing-1", inFlight(1, 0), func(e *api.EndpointReport) { e.Uid = "" })}})
		}, false, missing},
		"another pod reached at the address": {func(b *bench) {
			b.track("web-1", &api.Report{Direct: []*api.EndpointReport{at(1, "pricing-0", inFlight(1, 0))}})
		}, true, "0/0"},
		"reached by its name, an old stream": {func(b *bench) {
			b.track("web-1", &api.Report{Direct: []*api.EndpointReport{at(1, "pricing-1", inFlight(1, time.Hour))}})
		}, true, "0/0"},
		"reached by its name, nothing in flight": {func(b *bench) { b.track("web-1", &api.Report{Direct: []*api.EndpointReport{at(1, "pricing-1")}}) }, true, "0/0"},
		"leaves": {func(b *bench) {
			web(at(1, "pricing-1", inFlight(1, 0)))(b)
			b.report("web-1", &api.Report{Leaving: true})
		}, true, "0/0"},
		"its lease is over": {func(b *bench) {
			web(at(1, "pricing-1", inFlight(1, 0)))(b)
			b.pass(xds.Lease + 1)
		}, true, "0/0"},
		"restarted": {func(b *bench) {
			web(at(1, "pricing-1", isDraining, inFlight(1, 0)))(b)
			web(at(1, "pricing-1", isDraining))(b)
		}, true, "1/1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := drainingBench(t)
			tt.client(b)
			b.wantDrain(name, "pricing-1", tt.want, tt.told)
		})
	}
}

// A replica that has never seen where the pod was goes by what clients say.
func TestDrainOfAPodNeverSeenListed(t *testing.T) {
	b := newBench(t)
	m := b.server("pricing-1", 1, pricing)
	m.Terminating = true
	m.Services[0].Addr, m.Services[0].State = netip.AddrPort{}, corepb.HealthStatus_UNKNOWN
	b.track("pricing-1", says())
	b.track("web-1", says(sees(pricing, at(1, "pricing-1", isDraining, inFlight(1, 0)))))
	b.wantDrain("an RPC in flight", "pricing-1", false, "0/1 shop/web-1")
	b.report("web-1", says(sees(pricing, at(1, "pricing-1", isGone))))
	b.wantDrain("gone", "pricing-1", true, "1/1")
}

// When a drain opens and closes, and what the Directory is told.
func TestDrainOpens(t *testing.T) {
	const on, off = "uid-pricing-1 1", "uid-pricing-1 0"
	hook := func(b *bench) { b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, Draining: true}}) }
	noHook := func(b *bench) { b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}}) }
	b := newBench(t)
	m := b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	b.wantDrain("living", "pricing-1", false, "0/0")
	b.wantDrains("living")

	hook(b)
	b.wantDrain("hook called, nobody subscribes", "pricing-1", true, "0/0")
	b.wantDrains("hook called", on)
	b.wantDrain("again", "pricing-1", true, "0/0")
	b.wantDrains("once", on)
	m.AppReady = false
	b.wantDrain("its app ends", "pricing-1", false, "0/0")
	b.wantDrains("closed", on, off)
	m.AppReady = true
	b.wantDrain("its app is back; the pod still says draining", "pricing-1", false, "0/0")
	b.wantDrains("nothing more", on, off)
	noHook(b)
	b.status("pricing-1")
	hook(b)
	b.wantDrain("the next hook", "pricing-1", true, "0/0")
	b.wantDrains("opened again", on, off, on)
	b.pass(35*time.Second - 1)
	b.beat("pricing-1")
	b.wantDrain("35 s are not over", "pricing-1", true, "0/0")
	b.pass(1)
	b.wantDrain("over", "pricing-1", false, "0/0")
	b.wantDrains("closed by time", on, off, on, off)

	noHook(b)
	b.status("pricing-1")
	hook(b)
	b.status("pricing-1")
	m.Terminating = true
	b.status("pricing-1")
	m.AppReady = false
	b.pass(time.Minute)
	b.beat("pricing-1")
	b.wantDrain("deleted: it does not come back", "pricing-1", true, "0/0")
	if n := len(b.drains); n != 6 || b.drains[5] != on {
		t.Errorf("SetDraining: %q", b.drains)
	}
}

// An app that was not ready when the hook was called: the watch may be behind, so
// that it becomes ready closes nothing. The pod itself knows whether it lives on.
func TestDrainOfAnAppThatIsNotReady(t *testing.T) {
	b := newBench(t)
	m := b.server("pricing-1", 1, pricing)
	m.AppReady = false
	hook := &api.Report{Own: &api.OwnPod{Ready: true, Draining: true}}
	b.track("pricing-1", hook)
	b.wantDrain("not ready", "pricing-1", true, "0/0")
	m.AppReady = true
	b.wantDrain("seen ready", "pricing-1", true, "0/0")
	m.AppReady = false
	b.wantDrain("seen not ready after that", "pricing-1", false, "0/0")
	b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}})
	b.status("pricing-1")
	b.report("pricing-1", hook)
	b.wantDrain("the hook once more", "pricing-1", true, "0/0")
	b.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}})
	b.wantDrain("it says itself that it lives on", "pricing-1", false, "0/0")
	const on, off = "uid-pricing-1 1", "uid-pricing-1 0"
	b.wantDrains("all", on, off, on, off)
}

// A drain that was over when this replica first hears of it stays closed: the app
// may have restarted since.
func TestDrainOfBefore(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, Draining: true, Drained: true}})
	b.wantDrain("over", "pricing-1", false, "0/0")
	b.wantDrains("over")
}

// The drain is closed also when nobody listens any more.
func TestDrainClosesWithoutAStream(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, Draining: true}})
	b.status("pricing-1")
	b.st.trackClosed(b.tracks["pricing-1"])
	b.pass(hookForgotten)
	for _, c := range b.st.toJudge(b.now, true) {
		b.st.judge(c, b.look("pricing-1"), asNeeded, b.now)
	}
	b.flush()
	b.wantDrains("closed", "uid-pricing-1 1", "uid-pricing-1 0")
	if n := len(b.st.toJudge(b.now, true)); n != 0 {
		t.Errorf("%d pods are still judged", n)
	}
}

func TestDirectConnections(t *testing.T) {
	b := newBench(t)
	b.server("pricing-1", 1, pricing)
	b.track("pricing-1", says())
	to := func(addr string, n uint64) *api.Report {
		return &api.Report{DirectConnections: &api.DirectConnections{Destinations: []*api.DirectConnections_Destination{{Address: addr, Count: n}}}}
	}
	b.track("web-1", to("10.96.0.4:50051", 3))
	b.track("web-2", to("10.244.0.7:50051", 2))
	b.track("web-3", to("10.96.0.9:50051", 1))
	if n := len(b.st.dials()); n != 3 {
		t.Errorf("%d addresses are dialled, want 3", n)
	}
	k := snapshot.ObjectKey{Namespace: "shop", Name: "pricing"}
	d := directory{netip.MustParseAddrPort("10.96.0.4:50051"): {k}, netip.MustParseAddrPort("10.244.0.7:50051"): {{Namespace: "shop", Name: "other"}, k}}
	count := func() uint32 {
		c := b.st.sidecars["uid-pricing-1"]
		b.st.judge(c, b.look("pricing-1"), asNeeded, b.now)
		return b.st.status(c, d, b.now).GetDirectConnections()
	}
	if n := count(); n != 5 {
		t.Errorf("%d direct connections, want 5", n)
	}
	b.report("web-1", &api.Report{DirectConnections: &api.DirectConnections{}})
	b.report("web-2", &api.Report{Leaving: true})
	if n := count(); n != 0 {
		t.Errorf("%d direct connections are left", n)
	}
}

// A hook that is called before the watch has the Pod is not lost.
func TestDrainOfAPodThatIsNotSeenYet(t *testing.T) {
	b := newBench(t)
	b.track("pricing-1", &api.Report{Own: &api.OwnPod{Draining: true}})
	b.wantDrain("not seen", "pricing-1", false, "0/0")
	b.server("pricing-1", 1, pricing)
	b.wantDrain("seen", "pricing-1", true, "0/0")
	b.wantDrains("seen", "uid-pricing-1 1")

	// Without an API server there may never be one.
	b.track("web-1", &api.Report{Own: &api.OwnPod{Draining: true}})
	b.wantDrain("not seen", "web-1", false, "0/0")
	b.pass(xds.Lease + 1)
	b.wantDrain("it does not exist", "web-1", true, "0/0")
	b.server("web-1", 2, stock)
	b.wantDrain("it does all the same", "web-1", true, "0/0")
	b.wantDrains("both", "uid-pricing-1 1", "uid-web-1 1")
}
