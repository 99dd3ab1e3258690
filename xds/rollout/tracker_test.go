// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// directoryStub is what an API server would say, and records what it is told.
type directoryStub struct {
	tracker *Tracker

	mu      sync.Mutex
	members map[string]snapshot.Membership // by pod
	asked   int
	takes   time.Duration // how long it takes to answer
	drains  []string
}

func (d *directoryStub) Membership(pod snapshot.ObjectKey) (snapshot.Membership, bool) {
	d.mu.Lock()
	d.asked++
	takes := d.takes
	m, ok := d.members[pod.Name]
	d.mu.Unlock()
	if takes > 0 { // a goroutine that waits for a mutex would stop the bubble's clock
		time.Sleep(takes)
	}
	return m, ok
}

func (d *directoryStub) SetDraining(uid string, drain snapshot.Drain) {
	d.mu.Lock()
	d.drains = append(d.drains, fmt.Sprintf("%s %d", uid, drain))
	d.mu.Unlock()
	d.tracker.Changed(nil, nil)
}

func (d *directoryStub) ServicesAt(netip.AddrPort) []snapshot.ObjectKey {
	return []snapshot.ObjectKey{{Namespace: "shop", Name: "pricing"}}
}

func (d *directoryStub) set(pod string, m snapshot.Membership) {
	d.mu.Lock()
	d.members[pod] = m
	d.mu.Unlock()
	d.tracker.Changed(nil, nil)
}

func (d *directoryStub) asks() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// lockedSink is a Sink for another goroutine.
type lockedSink struct {
	mu sync.Mutex
	lastStatus
}

func (l *lockedSink) Put(s *api.PodStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastStatus.Put(s)
}

func (l *lockedSink) get() (*api.PodStatus, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status, l.puts
}

type recorderStub struct {
	mu     sync.Mutex
	events []string
}

func (r *recorderStub) Event(pod snapshot.ObjectKey, uid, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", pod, uid, reason, message))
}

// trackerRig is a Tracker that runs, in a synctest bubble.
type trackerRig struct {
	t        *testing.T
	tracker  *Tracker
	dir      *directoryStub
	recorder *recorderStub
	registry *prometheus.Registry
	log      *bytes.Buffer
	sinks    map[string]*lockedSink
	streams  map[string]uint64
	ids      uint64
	stop     func()
}

func newTrackerRig(t *testing.T) *trackerRig {
	t.Helper()
	r := &trackerRig{
		t: t, recorder: &recorderStub{}, registry: prometheus.NewRegistry(), log: &bytes.Buffer{},
		sinks: map[string]*lockedSink{}, streams: map[string]uint64{},
	}
	var err error
	r.tracker, err = New(Config{Logger: slog.New(slog.NewTextHandler(r.log, nil)), Registerer: r.registry, Replica: "xds-1", Recorder: r.recorder})
	if err != nil {
		t.Fatal(err)
	}
	r.dir = &directoryStub{tracker: r.tracker, members: map[string]snapshot.Membership{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.tracker.Run(ctx, r.dir) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	r.tracker.Serving()
	return r
}

func (r *trackerRig) track(pod string, first *api.Report) *lockedSink {
	r.t.Helper()
	r.ids++
	r.streams[pod], r.sinks[pod] = r.ids, &lockedSink{}
	r.tracker.TrackOpened(r.ids, node(pod), r.sinks[pod])
	r.report(pod, first)
	return r.sinks[pod]
}

func (r *trackerRig) report(pod string, rep *api.Report) {
	r.t.Helper()
	if err := r.tracker.TrackReport(r.streams[pod], rep); err != nil {
		r.t.Fatal(err)
	}
}

// pass lets time go by while sidecars report.
func (r *trackerRig) pass(d time.Duration, beating ...string) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(xds.ReportInterval, time.Until(end)))
		for _, p := range beating {
			r.report(p, &api.Report{})
		}
	}
	synctest.Wait()
}

func (r *trackerRig) metric(name string, labels ...string) (value float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && hasLabels(m, labels) {
				value += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return value
}

func hasLabels(m *dto.Metric, values []string) bool {
	for _, v := range values {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == v }) {
			return false
		}
	}
	return true
}

// From a change to what the pod is told it takes at most 25 ms; without a change
// it is told the same each ReportInterval.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerRig(t)
		defer r.stop()
		b := newBench(t)
		r.dir.set("pricing-1", *b.server("pricing-1", 1, pricing))
		server := r.track("pricing-1", says())
		r.track("web-1", says(sees(pricing)))
		r.pass(xds.Settle+time.Second, "pricing-1", "web-1")
		if s, _ := server.get(); !s.GetSettled() || s.GetPropagated() || s.GetClients() != 1 {
			t.Fatalf("settled: %v", s)
		}
		_, before := server.get()
		r.pass(5*xds.ReportInterval, "pricing-1", "web-1")
		if _, n := server.get(); n-before < 4 || n-before > 6 {
			t.Errorf("%d heartbeats in five intervals", n-before)
		}
		r.report("web-1", says(sees(pricing, at(1, "pricing-1", isConnected))))
		time.Sleep(atMostEvery)
		synctest.Wait()
		if s, _ := server.get(); !s.GetPropagated() || s.GetAnswered() != 1 {
			t.Errorf("25 ms after the answer: %v", s)
		}
		if n := r.metric("evenkeel_propagation_seconds"); n != 1 {
			t.Errorf("the propagation was measured %v times", n)
		}
		r.report("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true, Draining: true}})
		time.Sleep(2 * atMostEvery)
		synctest.Wait()
		if s, _ := server.get(); s.GetDrained() || s.GetDrainClients() != 1 || !slices.Equal(r.dir.drains, []string{"uid-pricing-1 1"}) {
			t.Errorf("the hook was called: %v; SetDraining %v", s, r.dir.drains)
		}
		r.report("web-1", says(sees(pricing, at(1, "pricing-1", isDraining))))
		time.Sleep(atMostEvery)
		synctest.Wait()
		if s, _ := server.get(); !s.GetDrained() {
			t.Errorf("25 ms after it was let go: %v", s)
		}
		if n := r.metric("evenkeel_rollout_reporters"); n != 2 {
			t.Errorf("%v reporters", n)
		}
	})
}

// A lease that ends is seen without any change.
func TestRunSeesLeasesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerRig(t)
		defer r.stop()
		r.dir.set("pricing-1", *newBench(t).server("pricing-1", 1, pricing))
		server := r.track("pricing-1", says())
		r.track("web-1", says(sees(pricing)))
		r.pass(xds.Settle+xds.ReportInterval, "pricing-1", "web-1")
		r.pass(xds.Lease-time.Millisecond, "pricing-1")
		if s, _ := server.get(); s.GetPropagated() {
			t.Errorf("before the lease is over: %v", s)
		}
		r.pass(lookAgain+time.Millisecond, "pricing-1")
		if s, _ := server.get(); !s.GetPropagated() {
			t.Errorf("after it is over: %v", s)
		}
	})
}

// Many changes are judged together, and the longer that takes the fewer times.
func TestRunCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			takes      time.Duration
			atMost, of int
		}{{0, 45, 1000}, {20 * time.Millisecond, 15, 1000}} {
			r := newTrackerRig(t)
			r.dir.set("pricing-1", *newBench(t).server("pricing-1", 1, pricing))
			r.track("pricing-1", says())
			r.track("web-1", &api.Report{Services: []*api.ServiceReport{sees(pricing)}, Own: &api.OwnPod{Ready: true}})
			time.Sleep(time.Second)
			synctest.Wait()
			r.dir.mu.Lock()
			r.dir.takes = tt.takes
			r.dir.mu.Unlock()
			time.Sleep(time.Second)
			before := r.dir.asks()
			for range tt.of { // for a second
				r.report("web-1", says(sees(pricing, at(1, "pricing-1"))))
				time.Sleep(time.Millisecond)
			}
			if n := r.dir.asks() - before; n < 5 || n > tt.atMost {
				t.Errorf("judged %d times in a second when it takes %s; want at most %d", n, tt.takes, tt.atMost)
			}
			r.stop()
		}
	})
}

func TestRunRecordsHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerRig(t)
		defer r.stop()
		hold := func(name, reason string, record bool, missing ...string) *api.HoldEnd {
			return &api.HoldEnd{Hold: name, WaitedMs: 15000, Reason: reason, Record: record, Missing: missing}
		}
		all := []*api.HoldEnd{
			hold("start", "answered", true),
			hold("ready", "timeout", true, "shop/cart-1", "shop/cart-2"),
			hold("drain", "silent", true),
			hold("drain", "timeout", false, "shop/cart-1"), // another replica's
			hold("ready", "waiting", true, "shop/cart-1"),
		}
		r.track("pricing-1", &api.Report{Holds: all})
		r.pass(time.Second)
		r.track("pricing-1", &api.Report{Holds: all}) // its stream came anew
		r.pass(time.Second)
		want := []string{
			"shop/pricing-1 uid-pricing-1 HoldTimeout: ready hold ended after 15.0s without shop/cart-1, shop/cart-2",
			"shop/pricing-1 uid-pricing-1 HoldTimeout: drain hold ended after 15.0s: the control plane was silent",
			"shop/pricing-1 uid-pricing-1 WaitingForClients: not ready 15.0s after its app: waiting for shop/cart-1 to connect",
		}
		if !slices.Equal(r.recorder.events, want) {
			t.Errorf("events:\n%s\nwant\n%s", strings.Join(r.recorder.events, "\n"), strings.Join(want, "\n"))
		}
		for _, m := range []struct {
			name, hold string
			want       float64
		}{
			{"evenkeel_hold_seconds", "start", 1},
			{"evenkeel_hold_seconds", "ready", 1},
			{"evenkeel_hold_seconds", "drain", 1},
			{"evenkeel_hold_timeouts_total", "start", 0},
			{"evenkeel_hold_timeouts_total", "ready", 1},
			{"evenkeel_hold_timeouts_total", "drain", 1},
		} {
			if got := r.metric(m.name, m.hold); got != m.want {
				t.Errorf("%s{%s} is %v, want %v", m.name, m.hold, got, m.want)
			}
		}
		if !strings.Contains(r.log.String(), "ended by its bound") {
			t.Errorf("the log:\n%s", r.log)
		}
	})
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerRig(t)
		r.dir.set("pricing-1", *newBench(t).server("pricing-1", 1, pricing))
		r.track("pricing-1", &api.Report{Own: &api.OwnPod{Ready: true}})
		r.track("web-1", &api.Report{
			Services:          []*api.ServiceReport{sees(pricing, at(1, "pricing-1", isConnected))},
			DirectConnections: &api.DirectConnections{Destinations: []*api.DirectConnections_Destination{{Address: "10.96.0.4:50051", Count: 2}}},
		})
		v, err := r.tracker.View(t.Context(), "shop", "deployment/pricing")
		if err != nil || len(v.Pods) != 1 || v.Pods[0].Clients != 1 || v.Pods[0].Answered != 1 || v.Pods[0].State != "ready" {
			t.Errorf("%+v, %v", v, err)
		}
		if s, _ := r.sinks["pricing-1"].get(); s.GetDirectConnections() != 2 {
			t.Errorf("told: %v", s)
		}
		r.stop()
		if _, err := r.tracker.View(t.Context(), "shop", ""); !errors.Is(err, ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
		tr, err := New(Config{Logger: slog.New(slog.DiscardHandler), Replica: "x"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tr.View(ctx, "shop", ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nobody runs: %v", err)
		}
	})
}

// Who subscribes over ADS on this replica.
func TestSubscribers(t *testing.T) {
	b := newBench(t)
	tr := &Tracker{state: b.st}
	p, s := parseService(t, pricing), parseService(t, stock)
	ids := func(svc xds.Service) (text string) {
		for _, n := range tr.Subscribers(svc) {
			text += n.Pod + " "
		}
		return text
	}
	for _, st := range []struct {
		what                   string
		do                     func()
		wantPricing, wantStock string
	}{
		{"one subscribes, twice", func() { b.ads("web-1", pricing, pricing) }, "web-1 ", ""},
		{"another, to both", func() { b.ads("web-2", pricing, stock) }, "web-1 web-2 ", "web-2 "},
		{"the first comes anew before its old stream ends", func() { b.ads("web-1", pricing) }, "web-1 web-2 ", "web-2 "},
		{"its old stream ends", func() { b.st.closeADS(1, b.now) }, "web-1 web-2 ", "web-2 "},
		{"the second lets one go, twice", func() { b.st.unsubscribed(2, p); b.st.unsubscribed(2, p) }, "web-1 ", "web-2 "},
		{"streams that are not known", func() { b.st.subscribed(9, s); b.st.unsubscribed(9, s); b.st.closeADS(9, b.now) }, "web-1 ", "web-2 "},
		{"one that only reports", func() { b.track("web-3", says(sees(stock))) }, "web-1 ", "web-2 "},
		{"all end", func() { b.st.closeADS(2, b.now); b.st.closeADS(3, b.now) }, "", ""},
	} {
		st.do()
		if got := ids(p); got != st.wantPricing {
			t.Errorf("%s: pricing has %q, want %q", st.what, got, st.wantPricing)
		}
		if got := ids(s); got != st.wantStock {
			t.Errorf("%s: stock has %q, want %q", st.what, got, st.wantStock)
		}
		for svc, n := range tr.Services() {
			if len(tr.Subscribers(svc)) != n {
				t.Errorf("%s: %s has %d", st.what, svc, n)
			}
		}
	}
	if len(b.st.sidecars) != 1 {
		t.Errorf("left behind: %+v", b.st.sidecars)
	}
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Settle: -1, MaxServices: -1, MaxEndpoints: -1})
	for _, part := range []string{"Logger", "Replica", "Settle", "MaxServices", "MaxEndpoints"} {
		if !strings.Contains(fmt.Sprint(err), part) {
			t.Errorf("%q does not say %s", err, part)
		}
	}
}
