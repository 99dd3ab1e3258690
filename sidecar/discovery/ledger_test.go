// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/xds/api"
)

// reader is a replica that puts reports together, as it is meant to.
type reader struct {
	services map[string]*api.ServiceReport // without endpoints
	ends     map[string]map[string]*api.EndpointReport
	direct   map[string]*api.EndpointReport
	holds    []string
	own      *api.OwnPod
	outside  *api.DirectConnections
	reports  int
	largest  int
	leaving  bool
}

func newReader() *reader {
	return &reader{services: map[string]*api.ServiceReport{}, ends: map[string]map[string]*api.EndpointReport{}, direct: map[string]*api.EndpointReport{}}
}

func put(m map[string]*api.EndpointReport, e *api.EndpointReport) {
	if id := e.GetAddress() + " " + e.GetUid(); e.GetGone() {
		delete(m, id)
	} else {
		m[id] = e
	}
}

func (r *reader) take(m *api.Report) {
	r.reports++
	n := 0
	for _, s := range m.GetServices() {
		name := s.GetService()
		if s.GetGone() {
			delete(r.services, name)
			delete(r.ends, name)
			continue
		}
		if r.ends[name] == nil {
			r.ends[name] = map[string]*api.EndpointReport{}
		}
		for _, e := range s.GetEndpoints() {
			n++
			put(r.ends[name], e)
		}
		r.services[name] = &api.ServiceReport{Service: name, Active: s.GetActive(), Destinations: s.GetDestinations()}
	}
	for _, e := range m.GetDirect() {
		n++
		put(r.direct, e)
	}
	r.largest = max(r.largest, n)
	for _, h := range m.GetHolds() {
		r.holds = append(r.holds, fmt.Sprintf("%s %s %t", h.GetHold(), h.GetReason(), h.GetRecord()))
	}
	if m.GetOwn() != nil {
		r.own = m.GetOwn()
	}
	if m.GetDirectConnections() != nil {
		r.outside = m.GetDirectConnections()
	}
	r.leaving = r.leaving || m.GetLeaving()
}

func (r *reader) read(l *ledger, b *book) {
	p, record := l.take(b)
	for _, m := range p.reports(record) {
		r.take(m)
	}
}

// whole is the same of a stream that opens now.
func whole(l *ledger) *reader {
	b := l.open(nil)
	defer l.close(b)
	r := newReader()
	r.read(l, b)
	return r
}

func (r *reader) equal(o *reader) bool {
	eq := func(a, b map[string]*api.EndpointReport) bool {
		if len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if !proto.Equal(v, b[k]) {
				return false
			}
		}
		return true
	}
	if len(r.services) != len(o.services) || !eq(r.direct, o.direct) {
		return false
	}
	for name, s := range r.services {
		if !proto.Equal(s, o.services[name]) || !eq(r.ends[name], o.ends[name]) {
			return false
		}
	}
	return true
}

// TestStreamsAgreeWithTheLedger: however changes and pages fall together, a
// stream that has told all has told what one that opens now tells.
func TestStreamsAgreeWithTheLedger(t *testing.T) {
	for seed := range 300 {
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		l := newLedger()
		b1 := l.open(nil)
		r1 := newReader()
		var b2 *book
		r2 := newReader()
		endpoint := func() report.Endpoint {
			e := report.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(4))}), 1), UID: string(rune('a' + rnd.IntN(2))),
				Gone: rnd.IntN(3) == 0, Failed: rnd.Uint64N(9),
			}
			if !e.Gone {
				e.Answer, e.Draining, e.InFlight = report.Answer(rnd.IntN(3)), rnd.IntN(2) == 0, rnd.IntN(3)
			}
			return e
		}
		for range 60 {
			name := fmt.Sprintf("shop/s%d:1", rnd.IntN(3))
			switch rnd.IntN(9) {
			case 0:
				l.report(report.Batch{Services: []report.Service{{Name: name, Gone: true}}})
			case 1:
				all := map[string][]string{}
				for i := range rnd.IntN(4) {
					all[fmt.Sprintf("shop/s%d:1", i)] = []string{fmt.Sprint(rnd.IntN(2))}
				}
				l.subscribed(all)
			case 2:
				l.report(report.Batch{Direct: []report.Endpoint{endpoint()}})
			case 3:
				r1.read(l, b1)
			case 4:
				if b2 == nil {
					b2 = l.open(nil)
				}
				r2.read(l, b2)
			default:
				l.report(report.Batch{Services: []report.Service{{Name: name, Active: rnd.IntN(2) == 0, Endpoints: []report.Endpoint{endpoint(), endpoint()}}}})
			}
		}
		now := whole(l)
		r1.read(l, b1)
		if !r1.equal(now) {
			t.Fatalf("seed %d: a stream has told\n%+v\nand one that opens tells\n%+v", seed, r1, now)
		}
		if b2 != nil {
			if r2.read(l, b2); !r2.equal(now) {
				t.Fatalf("seed %d: a stream that opened late has told\n%+v\nand one that opens tells\n%+v", seed, r2, now)
			}
		}
	}
}

func TestReportOfAnEndpoint(t *testing.T) {
	l := newLedger()
	e := report.Endpoint{
		Addr: addr("10.0.0.1:1"), UID: "u", Answer: report.Failed, Failing: true, Draining: true, Picked: true,
		InFlight: 3, Youngest: 1500 * time.Millisecond, Failed: 4, Replayed: 5,
	}
	say := func(e report.Endpoint) *api.EndpointReport {
		l.report(report.Batch{Services: []report.Service{{Name: pricing, Active: true, Endpoints: []report.Endpoint{e}}}})
		return whole(l).ends[pricing]["10.0.0.1:1 u"]
	}
	want := &api.EndpointReport{
		Address: "10.0.0.1:1", Uid: "u", Answer: api.EndpointReport_FAILED, Failing: true, Draining: true, Picked: true,
		InFlight: 3, YoungestMs: 1500, Failed: 4, Replayed: 5,
	}
	if got := say(e); !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	// An answer is for good, but a failure may become a success.
	for _, step := range []struct {
		say  report.Answer
		want api.EndpointReport_Answer
	}{
		{report.None, api.EndpointReport_FAILED},
		{report.Connected, api.EndpointReport_CONNECTED},
		{report.Failed, api.EndpointReport_CONNECTED},
		{report.None, api.EndpointReport_CONNECTED},
	} {
		if got := say(report.Endpoint{Addr: e.Addr, UID: e.UID, Answer: step.say}).GetAnswer(); got != step.want {
			t.Errorf("%d is told as %s, want %s", step.say, got, step.want)
		}
	}
	// Gone, with its counters, and once.
	b := l.open(nil)
	l.take(b)
	l.report(report.Batch{Services: []report.Service{{Name: pricing, Endpoints: []report.Endpoint{{Addr: e.Addr, UID: "u", Gone: true, Failed: 6}}}}})
	p, _ := l.take(b)
	got := p.reports(nil)[0].GetServices()[0].GetEndpoints()
	if len(got) != 1 || !proto.Equal(got[0], &api.EndpointReport{Address: "10.0.0.1:1", Uid: "u", Gone: true, Failed: 6}) {
		t.Errorf("%v", got)
	}
	if p, _ := l.take(b); len(p.reports(nil)) != 1 || !proto.Equal(p.reports(nil)[0], &api.Report{}) {
		t.Error("there is something left to tell")
	}
	// Another pod at the address begins anew, and so does the same after it was gone.
	if got := say(e); got.GetAnswer() != api.EndpointReport_FAILED {
		t.Errorf("%v", got)
	}
}

func TestServiceThatTheDataPlaneHasNotForgotten(t *testing.T) {
	l := newLedger()
	l.subscribed(map[string][]string{pricing: {"a"}})
	ep := []report.Endpoint{{Addr: addr("10.0.0.1:1"), UID: "u"}}
	l.report(report.Batch{Services: []report.Service{{Name: pricing, Active: true, Endpoints: ep}}})
	if !l.active(pricing) || l.active(web) {
		t.Error("active")
	}
	// Unsubscribed, while RPCs run on its endpoints.
	l.subscribed(nil)
	r := whole(l)
	if s := r.services[pricing]; s == nil || len(s.GetDestinations()) != 0 || len(r.ends[pricing]) != 1 {
		t.Errorf("%v", r.services)
	}
	l.report(report.Batch{Services: []report.Service{{Name: pricing, Gone: true}}})
	if r := whole(l); len(r.services) != 0 {
		t.Errorf("%v", r.services)
	}
	// Only subscribed: known to have been received, no more.
	l.subscribed(map[string][]string{pricing: {"a"}})
	if s := whole(l).services[pricing]; s.GetActive() || !slices.Equal(s.GetDestinations(), []string{"a"}) {
		t.Errorf("%v", s)
	}
	l.subscribed(nil)
	if r := whole(l); len(r.services) != 0 {
		t.Errorf("%v", r.services)
	}
}

func TestLargeReportsAreSplit(t *testing.T) {
	l := newLedger()
	const n = 2*maxReportEndpoints + 10
	var eps []report.Endpoint
	for i := range n {
		eps = append(eps, report.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 50051), UID: "0b3f9a44-0000-0000-0000-000000000000"})
	}
	l.report(report.Batch{Services: []report.Service{{Name: web, Endpoints: eps[:5]}, {Name: pricing, Active: true, Endpoints: eps}}, Direct: eps[:100]})
	l.leave()
	b := l.open(&api.Sidecar{Pod: "p"})
	p, record := l.take(b)
	all := p.reports(record)
	r := newReader()
	for i, m := range all {
		r.take(m)
		if size := proto.Size(m); size > 2<<20 {
			t.Errorf("report %d has %d bytes", i, size)
		}
		if (m.GetSidecar() != nil) != (i == 0) || m.GetLeaving() != (i == len(all)-1) {
			t.Errorf("report %d: sidecar %v, leaving %t", i, m.GetSidecar(), m.GetLeaving())
		}
	}
	if len(r.ends[pricing]) != n || len(r.ends[web]) != 5 || len(r.direct) != 100 || !r.services[pricing].GetActive() || r.largest > maxReportEndpoints {
		t.Errorf("%d of %d endpoints, %d, %d direct, at most %d in one", len(r.ends[pricing]), n, len(r.ends[web]), len(r.direct), r.largest)
	}
}

func TestEndOfAHoldIsWrittenDownOnce(t *testing.T) {
	l := newLedger()
	end := func(hold string) { l.holdEnded(&api.HoldEnd{Hold: hold, Reason: "timeout"}) }
	tell := func(b *book) string {
		r := newReader()
		r.read(l, b)
		return strings.Join(r.holds, ", ")
	}
	want := func(b *book, want string) {
		t.Helper()
		if got := tell(b); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	end("start") // nobody is there
	b1 := l.open(nil)
	want(b1, "") // it may prove to be nobody
	l.hear(b1)
	want(b1, "start timeout true")
	b2 := l.open(nil)
	want(b2, "start timeout false")
	l.hear(b2)
	end("ready")
	want(b2, "ready timeout true")
	want(b1, "ready timeout false")
	// The one that was to write it down fails as it is told.
	end("drain")
	p, record := l.take(b1)
	if got := p.reports(record)[0].GetHolds(); len(got) != 1 || !got[0].GetRecord() {
		t.Errorf("%v", got)
	}
	want(b2, "drain timeout false")
	l.close(b1)
	l.untold(record)
	want(b2, "drain timeout true")
	b3 := l.open(nil)
	l.hear(b3)
	want(b3, "start timeout false, ready timeout false, drain timeout false")
	for range 3 * maxHoldEnds {
		end("drain")
	}
	if n := len(l.holds); n != maxHoldEnds {
		t.Errorf("%d are kept", n)
	}
}

func TestEveryStreamIsWoken(t *testing.T) {
	l := newLedger()
	b1, b2 := l.open(nil), l.open(nil)
	for what, f := range map[string]func(){
		"report":     func() { l.report(report.Batch{Services: []report.Service{{Name: pricing}}}) },
		"subscribed": func() { l.subscribed(map[string][]string{web: nil}) },
		"own":        func() { l.setOwn(&api.OwnPod{}) },
		"direct":     func() { l.setOutside(&api.DirectConnections{}) },
		"hold":       func() { l.holdEnded(&api.HoldEnd{}) },
		"leave":      l.leave,
	} {
		for range 3 { // never blocks
			f()
		}
		for _, b := range []*book{b1, b2} {
			select {
			case <-b.wake:
			default:
				t.Errorf("%s wakes nobody", what)
			}
		}
	}
	r := whole(l)
	if r.own == nil || r.outside == nil || !r.leaving || len(r.services) != 2 {
		t.Errorf("a stream that opens then is told %+v", r)
	}
}

func TestWhatMovesLearning(t *testing.T) {
	l := newLedger()
	moved := func() bool {
		select {
		case <-l.moved:
			return true
		default:
			return false
		}
	}
	ep := report.Endpoint{Addr: addr("10.0.0.1:1"), UID: "u"}
	say := func(active bool, e report.Endpoint) bool {
		l.report(report.Batch{Services: []report.Service{{Name: pricing, Active: active, Endpoints: []report.Endpoint{e}}}})
		return moved()
	}
	got := []bool{
		say(false, ep),
		say(true, ep),
		say(true, ep),
		say(true, report.Endpoint{Addr: ep.Addr, UID: "u", Slow: true}),
		say(true, report.Endpoint{Addr: ep.Addr, UID: "u", Draining: true}),
		say(true, report.Endpoint{Addr: ep.Addr, UID: "u", Answer: report.Connected}),
		say(true, report.Endpoint{Addr: ep.Addr, UID: "u", Gone: true}),
	}
	if want := []bool{false, true, false, true, false, true, true}; !reflect.DeepEqual(got, want) {
		t.Errorf("moved %v, want %v", got, want)
	}
}
