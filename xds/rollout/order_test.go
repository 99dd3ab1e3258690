// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"net/netip"
	"strings"
	"testing"

	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// storeBench is a bench whose Directory is a real snapshot.
type storeBench struct {
	*bench
	store *snapshot.Store
}

var (
	serviceKey = snapshot.ObjectKey{Namespace: "shop", Name: "pricing"}
	podKey     = snapshot.ObjectKey{Namespace: "shop", Name: "pricing-1"}
	podIP      = netip.MustParseAddr("10.244.0.1")
)

func newStoreBench(t *testing.T) *storeBench {
	b := &storeBench{newBench(t), snapshot.NewStore(snapshot.Config{})}
	b.apply(snapshot.Change{Kind: snapshot.KindService, Key: serviceKey, Service: &snapshot.Service{
		Key: serviceKey, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.4")}, Selector: snapshot.NewLabels(map[string]string{"app": "pricing"}),
		Ports: []snapshot.ServicePort{{Name: "grpc", Port: 50051, TargetPort: 50051}},
	}})
	return b
}

// apply is what Server.Apply does with the Tracker.
func (b *storeBench) apply(c snapshot.Change) {
	b.store.Apply(c)
	d := b.store.Drain()
	b.st.podsLeft(d.PodsLeft, b.now)
	b.st.podsCame(d.PodsCame)
}

func (b *storeBench) pod(uid string, change func(*snapshot.Pod)) {
	p := &snapshot.Pod{Key: podKey, UID: uid, Node: "node1", Labels: snapshot.NewLabels(map[string]string{"app": "pricing"})}
	if change != nil {
		change(p)
	}
	b.apply(snapshot.Change{Kind: snapshot.KindPod, Key: podKey, Pod: p})
}

func (b *storeBench) noPod() { b.apply(snapshot.Change{Kind: snapshot.KindPod, Key: podKey}) }

func (b *storeBench) slice(uids ...string) {
	k := snapshot.ObjectKey{Namespace: "shop", Name: "pricing-abc"}
	sl := &snapshot.Slice{Key: k, Service: "pricing", Ports: []snapshot.SlicePort{{Name: "grpc", Port: 50051}}}
	for _, uid := range uids {
		sl.Endpoints = append(sl.Endpoints, snapshot.Endpoint{Addr: podIP, Pod: "pricing-1", PodUID: uid, Node: "node1"})
	}
	b.apply(snapshot.Change{Kind: snapshot.KindSlice, Key: k, Slice: sl})
}

// trackAs opens the stream of pricing-1 with that UID.
func (b *storeBench) trackAs(uid string) {
	b.t.Helper()
	n := node("pricing-1")
	n.UID = uid
	b.ids++
	b.st.trackOpened(b.ids, n, &lastStatus{}, b.now)
	if _, err := b.st.report(b.ids, &report{}, b.now); err != nil {
		b.t.Fatal(err)
	}
}

// told judges the pod of that UID; nil if it does not report.
func (b *storeBench) told(uid string) *api.PodStatus {
	c := b.st.sidecars[uid]
	if c == nil || c.sink == nil {
		return nil
	}
	m, known := b.store.Membership(podKey)
	b.st.judge(c, look{m, known}, asNeeded, b.now)
	for _, d := range b.st.out.drains {
		b.store.SetDraining(d.uid, d.drain)
	}
	b.st.out.drains = nil
	return b.st.status(c, nil, b.now)
}

func (b *storeBench) answers(uid string, change ...func(*api.EndpointReport)) {
	b.t.Helper()
	r := says(sees(pricing))
	if uid != "" {
		r = says(sees(pricing, at(1, "x", append(change, func(e *api.EndpointReport) { e.Uid = uid })...)))
	}
	if b.tracks["web-1"] == 0 {
		b.track("web-1", r)
		return
	}
	b.report("web-1", r)
}

// step is an event of one source; those of a source come in their order.
type step struct {
	name string
	do   func(b *storeBench)
}

// everyOrder calls f with each way in which the sources can be mixed.
func everyOrder(sources [][]step, f func([]step)) (n int) {
	var walk func(done []step)
	left := make([]int, len(sources))
	total := 0
	for _, s := range sources {
		total += len(s)
	}
	walk = func(done []step) {
		if len(done) == total {
			n++
			f(done)
			return
		}
		for i, s := range sources {
			if left[i] < len(s) {
				left[i]++
				walk(append(done, s[left[i]-1]))
				left[i]--
			}
		}
	}
	walk(nil)
	return n
}

func order(steps []step) string {
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// A pod that becomes ready: in whatever order slice, Pod and reports come, it is
// propagated in the end, and never before its client has connected.
func TestEveryOrderOfReady(t *testing.T) {
	const uid = "uid-1"
	sources := [][]step{
		{
			{"Pod", func(b *storeBench) { b.pod(uid, nil) }},
			{"Pod has an IP", func(b *storeBench) { b.pod(uid, func(p *snapshot.Pod) { p.IPs = []netip.Addr{podIP} }) }},
			{"app ready", func(b *storeBench) {
				b.pod(uid, func(p *snapshot.Pod) { p.IPs, p.AppReady = []netip.Addr{podIP}, true })
			}},
		},
		{{"slice", func(b *storeBench) { b.slice(uid) }}},
		{{"pod reports", func(b *storeBench) { b.trackAs(uid) }}},
		{
			{"client subscribes", func(b *storeBench) { b.ads("web-1", pricing) }},
			{"client reports", func(b *storeBench) { b.answers("") }},
			{"client was told", func(b *storeBench) { b.answers(uid) }},
			{"client connected", func(b *storeBench) { b.answers(uid, isConnected) }},
		},
	}
	n := everyOrder(sources, func(steps []step) {
		b := newStoreBench(t)
		known, connected := false, false
		for i, s := range steps {
			s.do(b)
			known = known || s.name == "client subscribes"
			connected = connected || s.name == "client connected"
			got := b.told(uid)
			switch {
			case got.GetPropagated() && known && !connected:
				t.Fatalf("propagated without its client after: %s", order(steps[:i+1]))
			case got.GetPropagated() && !got.GetAppReady():
				t.Fatalf("propagated before its app is ready after: %s", order(steps[:i+1]))
			}
		}
		if s := b.told(uid); !s.GetPropagated() || s.GetAnswered() != 1 || s.GetExposure() != api.PodStatus_SERVICE {
			t.Fatalf("in the end %v after: %s", s, order(steps))
		}
	})
	if n != 2520 { // 9! / (3! · 4!)
		t.Errorf("%d orders, want 2520", n)
	}
}

// A pod that ends: it is drained in the end, and never while its client holds it.
func TestEveryOrderOfDrain(t *testing.T) {
	const uid = "uid-1"
	alive := func(p *snapshot.Pod) { p.IPs, p.AppReady, p.Ready = []netip.Addr{podIP}, true, true }
	sources := [][]step{
		{{"Pod deleted", func(b *storeBench) {
			b.pod(uid, func(p *snapshot.Pod) { alive(p); p.Terminating = true })
		}}},
		{{"slice lets it go", func(b *storeBench) { b.slice() }}},
		{{"hook called", func(b *storeBench) {
			d, _ := decode(&api.Report{Own: &api.OwnPod{Ready: true, Draining: true}})
			if _, err := b.st.report(b.st.sidecars[uid].track, d, b.now); err != nil {
				t.Fatal(err)
			}
		}}},
		{
			{"client heard", func(b *storeBench) { b.answers(uid, isConnected, isDraining, inFlight(2, 0)) }},
			{"its RPCs ended", func(b *storeBench) { b.answers(uid, isConnected, isDraining) }},
			{"client forgot it", func(b *storeBench) { b.answers(uid, isGone) }},
		},
		{
			{"another subscribes", func(b *storeBench) { b.ads("web-2", pricing) }},
			{"and hears", func(b *storeBench) {
				e := at(1, "x", isDraining)
				e.Uid = uid
				b.track("web-2", says(idle(sees(pricing, e))))
			}},
			{"and forgets it", func(b *storeBench) {
				e := at(1, "x", isGone)
				e.Uid = uid
				b.report("web-2", says(idle(sees(pricing, e))))
			}},
		},
	}
	everyOrder(sources, func(steps []step) {
		b := newStoreBench(t)
		b.pod(uid, alive)
		b.slice(uid)
		b.trackAs(uid)
		b.answers(uid, isConnected)
		b.told(uid)
		released := false
		for i, s := range steps {
			s.do(b)
			released = released || s.name == "its RPCs ended"
			if got := b.told(uid); got.GetDrained() && !released {
				t.Fatalf("drained while its client holds it after: %s", order(steps[:i+1]))
			}
		}
		b.told(uid)
		b.beat("web-1", "web-2")
		if s := b.told(uid); !s.GetDrained() || s.GetDrainReleased() != 2 {
			t.Fatalf("in the end %v after: %s", s, order(steps))
		}
	})
}

// A pod whose name and IP a new one has at once: the two slices' words, the two
// Pods and the client's answers for either may come in any order.
func TestEveryOrderOfReuse(t *testing.T) {
	const old, next = "uid-1", "uid-2"
	with := func(p *snapshot.Pod) { p.IPs, p.AppReady = []netip.Addr{podIP}, true }
	sources := [][]step{
		{
			{"old Pod gone", func(b *storeBench) { b.noPod() }},
			{"new Pod", func(b *storeBench) { b.pod(next, with) }},
		},
		{
			{"slice has both", func(b *storeBench) { b.slice(old, next) }},
			{"slice has the new", func(b *storeBench) { b.slice(next) }},
		},
		{{"new one reports", func(b *storeBench) { b.trackAs(next) }}},
		{
			{"client connects again to the old", func(b *storeBench) { b.answers(old, isConnected) }},
			{"client was told of the new", func(b *storeBench) { b.answers(next) }},
			{"client lets the old go", func(b *storeBench) { b.answers(old, isGone) }},
			{"client connected to the new", func(b *storeBench) { b.answers(next, isConnected) }},
		},
	}
	everyOrder(sources, func(steps []step) {
		b := newStoreBench(t)
		b.pod(old, with)
		b.slice(old)
		b.trackAs(old)
		b.answers(old, isConnected)
		if !b.told(old).GetPropagated() {
			t.Fatal("the old one is not propagated")
		}
		connected := false
		for i, s := range steps {
			s.do(b)
			connected = connected || s.name == "client connected to the new"
			if got := b.told(next); got.GetPropagated() && !connected {
				t.Fatalf("the new one profits from the old one's answers after: %s", order(steps[:i+1]))
			}
		}
		if s := b.told(next); !s.GetPropagated() || s.GetAnswered() != 1 {
			t.Fatalf("in the end %v after: %s", s, order(steps))
		}
		if b.st.sidecars[old] != nil || len(b.st.gone) != 1 {
			t.Fatalf("the old one is not gone after: %s", order(steps))
		}
	})
}
