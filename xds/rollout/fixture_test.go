// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

const (
	pricing = "shop/pricing:50051"
	stock   = "shop/stock:50051"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func parseService(t testing.TB, s string) xds.Service {
	t.Helper()
	svc, err := xds.ParseService(s)
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// node is the sidecar of the pod of that name; "web-1" has the UID "uid-web-1".
func node(pod string) xds.Node {
	return xds.Node{Namespace: "shop", Pod: pod, UID: "uid-" + pod, Workload: "deployment/" + workloadName(pod), Node: "node1"}
}

func workloadName(pod string) string { return pod[:strings.LastIndexByte(pod, '-')] }

// bench is a state with a clock that only a test moves, and with a Directory.
type bench struct {
	t       testing.TB
	st      *state
	now     time.Time
	members map[string]*snapshot.Membership // by pod
	drains  []string                        // what SetDraining was called with
	sinks   map[string]*lastStatus          // by pod
	ids     uint64
	tracks  map[string]uint64 // the newest stream of each sidecar
}

// lastStatus is a Sink that keeps the newest status and counts.
type lastStatus struct {
	status *api.PodStatus
	puts   int
}

func (l *lastStatus) Put(s *api.PodStatus) { l.status, l.puts = s, l.puts+1 }

// newBench returns one that is settled.
func newBench(t testing.TB) *bench {
	t.Helper()
	b := newYoungBench(t)
	b.pass(xds.Settle)
	return b
}

func newYoungBench(t testing.TB) *bench {
	t.Helper()
	cfg := &Config{Logger: slog.New(slog.DiscardHandler), Replica: "xds-1"}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, st: newState(cfg), now: start, members: map[string]*snapshot.Membership{},
		sinks: map[string]*lastStatus{}, tracks: map[string]uint64{},
	}
	b.st.serving(b.now)
	b.st.tick(b.now)
	return b
}

// pass lets time go by as Run does: tick by tick.
func (b *bench) pass(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); {
		b.now = b.now.Add(min(time.Second, end.Sub(b.now)))
		b.st.tick(b.now)
	}
}

// ads opens an ADS stream that subscribes.
func (b *bench) ads(pod string, services ...string) uint64 {
	b.ids++
	b.st.openADS(b.ids, node(pod), b.now)
	for _, s := range services {
		b.st.subscribed(b.ids, parseService(b.t, s))
	}
	return b.ids
}

// track opens a Track stream with its first Report.
func (b *bench) track(pod string, first *api.Report) uint64 {
	b.t.Helper()
	b.ids++
	if b.sinks[pod] == nil {
		b.sinks[pod] = &lastStatus{}
	}
	b.st.trackOpened(b.ids, node(pod), b.sinks[pod], b.now)
	b.tracks[pod] = b.ids
	b.report(pod, first)
	return b.ids
}

// report takes in a Report of the newest stream.
func (b *bench) report(pod string, r *api.Report) bool {
	b.t.Helper()
	d, err := decode(r)
	if err != nil {
		b.t.Fatal(err)
	}
	changed, err := b.st.report(b.tracks[pod], d, b.now)
	if err != nil {
		b.t.Fatalf("%s: %v", pod, err)
	}
	return changed
}

// beat renews leases.
func (b *bench) beat(pods ...string) {
	b.t.Helper()
	for _, p := range pods {
		b.report(p, &api.Report{})
	}
}

// look is what the Directory says of a pod.
func (b *bench) look(pod string) look {
	m, ok := b.members[pod]
	if !ok {
		return look{}
	}
	return look{*m, true}
}

// status judges a pod as Run does and returns what it is told.
func (b *bench) status(pod string) *api.PodStatus {
	b.t.Helper()
	c := b.st.sidecars["uid-"+pod]
	if c == nil {
		b.t.Fatalf("%s is not known", pod)
	}
	b.st.judge(c, b.look(pod), asNeeded, b.now)
	b.st.tell(c, nil, b.now)
	b.flush()
	return b.st.status(c, nil, b.now)
}

func (b *bench) flush() {
	for _, d := range b.st.out.drains {
		b.drains = append(b.drains, fmt.Sprintf("%s %d", d.uid, d.drain))
	}
	b.st.out.drains = nil
}

// server adds a pod that is in services, at 10.244.0.<last>; listed as warming.
func (b *bench) server(pod string, last byte, services ...string) *snapshot.Membership {
	b.t.Helper()
	ip := netip.AddrFrom4([4]byte{10, 244, 0, last})
	m := &snapshot.Membership{UID: "uid-" + pod, Node: "node1", AppReady: true, IPs: []netip.Addr{ip}, Exposure: snapshot.ExposureService}
	for _, s := range services {
		svc := parseService(b.t, s)
		m.Services = append(m.Services, snapshot.PodService{Service: svc, Addr: netip.AddrPortFrom(ip, svc.Port), State: corepb.HealthStatus_UNHEALTHY})
	}
	b.members[pod] = m
	return m
}

// sees is the ServiceReport of an active client about endpoints.
func sees(service string, endpoints ...*api.EndpointReport) *api.ServiceReport {
	return &api.ServiceReport{Service: service, Active: true, Destinations: []string{"name/shop/" + service[5:]}, Endpoints: endpoints}
}

// idle makes the client one that has no RPCs.
func idle(s *api.ServiceReport) *api.ServiceReport {
	s.Active = false
	return s
}

func says(services ...*api.ServiceReport) *api.Report { return &api.Report{Services: services} }

// at is an endpoint: 10.244.0.<last>:50051 of that pod.
func at(last int, pod string, change ...func(*api.EndpointReport)) *api.EndpointReport {
	e := &api.EndpointReport{Address: fmt.Sprintf("10.244.0.%d:50051", last), Uid: "uid-" + pod}
	for _, f := range change {
		f(e)
	}
	return e
}

func isConnected(e *api.EndpointReport) { e.Answer = api.EndpointReport_CONNECTED }
func hasFailed(e *api.EndpointReport)   { e.Answer = api.EndpointReport_FAILED }
func isDraining(e *api.EndpointReport)  { e.Draining = true }
func isPicked(e *api.EndpointReport)    { e.Picked = true }
func isGone(e *api.EndpointReport)      { e.Gone = true }

func inFlight(n uint32, youngest time.Duration) func(*api.EndpointReport) {
	return func(e *api.EndpointReport) { e.InFlight, e.YoungestMs = n, uint64(youngest.Milliseconds()) }
}

// wantReady and wantDrain compare the two claims with "clients/answered missing…".
func (b *bench) wantReady(why, pod string, propagated bool, numbers string) {
	b.t.Helper()
	s := b.status(pod)
	got := strings.TrimSpace(fmt.Sprintf("%d/%d %s", s.GetAnswered(), s.GetClients(), strings.Join(s.GetMissing(), " ")))
	if s.GetPropagated() != propagated || got != numbers {
		b.t.Errorf("%s: propagated %v, %q; want %v, %q", why, s.GetPropagated(), got, propagated, numbers)
	}
}

func (b *bench) wantDrain(why, pod string, drained bool, numbers string) {
	b.t.Helper()
	s := b.status(pod)
	got := strings.TrimSpace(fmt.Sprintf("%d/%d %s", s.GetDrainReleased(), s.GetDrainClients(), strings.Join(s.GetDrainMissing(), " ")))
	if s.GetDrained() != drained || got != numbers {
		b.t.Errorf("%s: drained %v, %q; want %v, %q", why, s.GetDrained(), got, drained, numbers)
	}
}

func (b *bench) wantDrains(why string, want ...string) {
	b.t.Helper()
	if !slices.Equal(b.drains, want) {
		b.t.Errorf("%s: SetDraining was called with %q, want %q", why, b.drains, want)
	}
}
