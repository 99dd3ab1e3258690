// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package balancer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_000_000, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// spec reads "0 1w 2d": endpoints with their states, ready without a letter.
func spec(t testing.TB, policy Policy, text string) *Spec {
	t.Helper()
	s := &Spec{Service: "shop/pricing:50051", Policy: policy}
	for f := range strings.FieldsSeq(text) {
		var n int
		var letter string
		if _, err := fmt.Sscanf(f, "%d%s", &n, &letter); err != nil && n == 0 && f[0] != '0' {
			t.Fatal(err)
		}
		state, ok := map[string]State{"": Ready, "w": Warming, "d": Draining}[letter]
		if !ok {
			t.Fatalf("state %q", letter)
		}
		s.Endpoints = append(s.Endpoints, EndpointSpec{Addr: endpointAddr(n), State: state})
	}
	return s
}

// picked is the set of endpoints that get RPCs, as text.
func picked(b *Balancer, now time.Time, tried ...*Endpoint) string {
	seen := map[int]bool{}
	for range 200 {
		e, err := b.Pick(now, tried)
		if err != nil {
			return err.Error()
		}
		e.Done(now)
		seen[index(e)] = true
	}
	var all []int
	for i := range seen {
		all = append(all, i)
	}
	slices.Sort(all)
	return strings.Trim(fmt.Sprint(all), "[]")
}

func endpointsOf(list []*Endpoint) string {
	var all []int
	for _, e := range list {
		all = append(all, index(e))
	}
	slices.Sort(all)
	return strings.Trim(fmt.Sprint(all), "[]")
}

func endpoint(t testing.TB, b *Balancer, i int) *Endpoint {
	t.Helper()
	e, ok := b.Endpoint(endpointAddr(i))
	if !ok {
		t.Fatalf("endpoint %d is not there", i)
	}
	return e
}

func policies(t *testing.T, f func(t *testing.T, p Policy)) {
	for _, p := range []Policy{LeastRequest, RoundRobin} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}

func TestStatesDecideWhoIsPicked(t *testing.T) {
	for _, tc := range []struct{ spec, want string }{
		{"0 1 2", "0 1 2"},
		{"0", "0"},
		{"0 1w 2d", "0"},
		{"1w 2d 3d", "2 3"},
		{"1w 2d", "2"},
		{"", "evenkeel: no ready endpoint for shop/pricing:50051 (0 known, 0 ready)"},
		{"0w 1w 2w 3w 4w 5w", "evenkeel: no ready endpoint for shop/pricing:50051 (6 known, 0 ready)"},
	} {
		policies(t, func(t *testing.T, p Policy) {
			b := New("shop/pricing:50051", seeded())
			b.Update(spec(t, p, tc.spec))
			if got := picked(b, epoch); got != tc.want {
				t.Errorf("%q: picked %s, want %s", tc.spec, got, tc.want)
			}
		})
	}
}

func TestUpdateKeepsEndpoints(t *testing.T) {
	policies(t, func(t *testing.T, p Policy) {
		b := New("shop/pricing:50051", seeded())
		c := b.Update(spec(t, p, "0 1 2w"))
		if endpointsOf(c.Added) != "0 1 2" || c.Removed != nil || c.Moved != nil {
			t.Fatalf("added %s, removed %s, moved %s", endpointsOf(c.Added), endpointsOf(c.Removed), endpointsOf(c.Moved))
		}
		one := endpoint(t, b, 1)
		one.Data = "sessions"
		for one.InFlight() == 0 {
			if _, err := b.Pick(epoch, nil); err != nil {
				t.Fatal(err)
			}
		}
		before := one.Picked()

		c = b.Update(spec(t, p, "1d 2 3"))
		if endpointsOf(c.Added) != "3" || endpointsOf(c.Removed) != "0" || endpointsOf(c.Moved) != "1 2" {
			t.Fatalf("added %s, removed %s, moved %s; want 3, 0 and 1 2", endpointsOf(c.Added), endpointsOf(c.Removed), endpointsOf(c.Moved))
		}
		if endpoint(t, b, 1) != one || one.Data != "sessions" || one.Picked() != before || one.InFlight() != 1 {
			t.Error("endpoint 1 lost its identity")
		}
		if one.Spec().State != Draining || one.Removed() {
			t.Error("endpoint 1 is not draining")
		}
		if !c.Removed[0].Removed() {
			t.Error("endpoint 0 does not know that it was removed")
		}
		if got := picked(b, epoch); got != "2 3" {
			t.Errorf("picked %s, want 2 3", got)
		}

		c = b.Update(spec(t, p, ""))
		if len(c.Removed) != 3 || b.Len() != 0 {
			t.Errorf("removed %s, %d left", endpointsOf(c.Removed), b.Len())
		}
		one.Done(epoch) // the RPC in flight ends after the endpoint has gone
		one.SetFailing(at(time.Hour))
		one.SetConnected()
		if one.InFlight() != 0 {
			t.Error("the RPC in flight did not end")
		}
		if _, err := b.Pick(epoch, nil); err == nil {
			t.Error("a removed endpoint was picked")
		}
	})
}

func TestDoneWithoutPickIsABug(t *testing.T) {
	b := New("a/b:1", seeded())
	b.Update(spec(t, LeastRequest, "0"))
	e, err := b.Pick(epoch, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.Done(epoch)
	defer func() {
		if recover() == nil {
			t.Error("the second Done went unnoticed")
		}
	}()
	e.Done(epoch)
}

func TestFailingEndpointsAreSkippedUntilTheirBackoffEnds(t *testing.T) {
	policies(t, func(t *testing.T, p Policy) {
		b := New("shop/pricing:50051", seeded())
		b.Update(spec(t, p, "0 1 2"))
		endpoint(t, b, 0).SetFailing(at(time.Second))
		endpoint(t, b, 1).SetFailing(at(3 * time.Second))
		step := func(now time.Duration, want string) {
			t.Helper()
			if got := picked(b, at(now)); got != want {
				t.Errorf("after %s: picked %s, want %s", now, got, want)
			}
		}
		step(0, "2")
		step(999*time.Millisecond, "2")
		step(time.Second, "0 2")
		endpoint(t, b, 0).SetFailing(at(10 * time.Second))
		endpoint(t, b, 1).SetFailing(at(2 * time.Second)) // moved forward
		step(1500*time.Millisecond, "2")
		step(2*time.Second, "1 2")
		endpoint(t, b, 0).SetConnected()
		step(2*time.Second, "0 1 2")

		for i := range 3 {
			endpoint(t, b, i).SetFailing(at(time.Duration(20+i) * time.Second))
		}
		_, err := b.Pick(at(3*time.Second), nil)
		var none *NoEndpointError
		if !errors.As(err, &none) || !none.RetryAt.Equal(at(20*time.Second)) || none.Failing != 3 || none.Ready != 3 {
			t.Errorf("error %+v", err)
		}
		if want := "evenkeel: no ready endpoint for shop/pricing:50051 (3 known, 3 ready, 3 failing to connect)"; err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		// A removed one takes its backoff with it.
		b.Update(spec(t, p, "1 2"))
		if _, err := b.Pick(at(3*time.Second), nil); !errors.As(err, &none) || !none.RetryAt.Equal(at(21*time.Second)) {
			t.Errorf("error %+v", err)
		}
	})
}

func TestDrainingIsBetterThanFailing(t *testing.T) {
	policies(t, func(t *testing.T, p Policy) {
		b := New("shop/pricing:50051", seeded())
		b.Update(spec(t, p, "0 1d"))
		endpoint(t, b, 0).SetFailing(at(time.Second))
		if got := picked(b, epoch); got != "1" {
			t.Errorf("picked %s, want 1", got)
		}
		if got := picked(b, at(time.Second)); got != "0" {
			t.Errorf("picked %s, want 0", got)
		}
	})
}

func TestBackoffLastsThroughStates(t *testing.T) {
	b := New("shop/pricing:50051", seeded())
	b.Update(spec(t, LeastRequest, "0 1w"))
	endpoint(t, b, 1).SetFailing(at(time.Second)) // prewarming failed
	var none *NoEndpointError
	if _, err := b.Pick(epoch, []*Endpoint{endpoint(t, b, 0)}); !errors.As(err, &none) || none.Failing != 0 {
		t.Error("a warming endpoint is no reason to wait for its backoff")
	}
	b.Update(spec(t, LeastRequest, "0 1"))
	if got := picked(b, epoch); got != "0" {
		t.Errorf("picked %s, want 0", got)
	}
	if got := picked(b, at(time.Second)); got != "0 1" {
		t.Errorf("picked %s, want 0 1", got)
	}
}

func TestAnotherPodAtTheSameAddressStartsAfresh(t *testing.T) {
	b := New("shop/pricing:50051", seeded())
	s := spec(t, LeastRequest, "0 1")
	b.Update(s)
	endpoint(t, b, 0).SetFailing(at(time.Hour))
	again := *s
	again.Endpoints = slices.Clone(s.Endpoints)
	again.Endpoints[0].Pod = "shop/pricing-b"
	b.Update(&again)
	if got := picked(b, epoch); got != "0 1" {
		t.Errorf("picked %s, want 0 1", got)
	}
}

func TestAnotherUIDAtTheSameAddressIsAnotherEndpoint(t *testing.T) {
	b := New("shop/pricing:50051", seeded())
	with := func(version, uid string, more ...EndpointSpec) *Spec {
		s := spec(t, LeastRequest, "0")
		s.Version, s.Endpoints[0].UID = version, uid
		s.Endpoints = append(s.Endpoints, more...)
		return s
	}
	b.Update(with("1", "a"))
	old := endpoint(t, b, 0)
	if _, err := b.Pick(epoch, nil); err != nil {
		t.Fatal(err)
	}
	c := b.Update(with("2", "b"))
	if len(c.Added) != 1 || !slices.Equal(c.Removed, []*Endpoint{old}) || c.Moved != nil {
		t.Errorf("a whole list: %+v", c)
	}
	if e := endpoint(t, b, 0); e == old || e.InFlight() != 0 || !old.Removed() || old.InFlight() != 1 {
		t.Error("the new pod has its predecessor's RPCs")
	}
	old.Done(epoch)
	delta := with("3", "c")
	delta.Delta = &Delta{Base: "2", Upserts: delta.Endpoints}
	if c = b.Update(delta); len(c.Added) != 1 || len(c.Removed) != 1 {
		t.Errorf("a delta: %+v", c)
	}
	old = endpoint(t, b, 0)
	draining := EndpointSpec{Addr: endpointAddr(0), UID: "c", State: Draining}
	c = b.Update(with("4", "c", draining, EndpointSpec{Addr: endpointAddr(0), UID: "d"}, EndpointSpec{Addr: endpointAddr(0), UID: "e", State: Ready}))
	if len(c.Added) != 1 || c.Added[0].Spec().UID != "e" || !slices.Equal(c.Removed, []*Endpoint{old}) || len(c.Moved) > 0 {
		t.Errorf("the same address again and again: %+v", c)
	}
	if b.Len() != 1 || b.Count(Ready) != 1 || b.Count(Draining) != 0 || picked(b, epoch) != "0" {
		t.Errorf("%d endpoints, %d ready", b.Len(), b.Count(Ready))
	}
}

func TestFallback(t *testing.T) {
	b := New("shop/pricing:50051", seeded())
	b.Update(spec(t, LeastRequest, "0 1d"))
	ready, draining := endpoint(t, b, 0), endpoint(t, b, 1)
	check := func(when string, want bool) {
		t.Helper()
		if draining.Fallback() != want || ready.Fallback() {
			t.Errorf("%s: %t, and of the ready one %t", when, draining.Fallback(), ready.Fallback())
		}
	}
	check("one is ready", false)
	ready.SetFailing(at(time.Hour))
	check("which fails", true)
	draining.SetFailing(at(time.Hour))
	check("itself fails", false)
	draining.SetConnected()
	check("it is back", true)
	ready.SetConnected()
	check("the ready one is back", false)
	b.Update(spec(t, LeastRequest, "1d"))
	check("alone", true)
	b.Update(spec(t, LeastRequest, ""))
	check("removed", false)
}

func TestTriedIsNeverPickedAgain(t *testing.T) {
	policies(t, func(t *testing.T, p Policy) {
		b := New("shop/pricing:50051", seeded())
		b.Update(spec(t, p, "0 1 2 3d"))
		zero, one, two, three := endpoint(t, b, 0), endpoint(t, b, 1), endpoint(t, b, 2), endpoint(t, b, 3)
		if got := picked(b, epoch, zero); got != "1 2" {
			t.Errorf("picked %s, want 1 2", got)
		}
		if got := picked(b, epoch, zero, two); got != "1" {
			t.Errorf("picked %s, want 1", got)
		}
		if got := picked(b, epoch, zero, one, two); got != "3" {
			t.Errorf("picked %s, want the draining 3", got)
		}
		if got, want := picked(b, epoch, zero, one, two, three),
			"evenkeel: no ready endpoint for shop/pricing:50051 (4 known, 3 ready, 4 tried)"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestReplayGoesToTheLeastLoaded(t *testing.T) {
	b := New("a/b:1", seeded())
	b.Update(spec(t, LeastRequest, "0 1 2 3"))
	load := map[int]int{0: 0, 1: 5, 2: 1, 3: 9}
	for i, n := range load {
		endpoint(t, b, i).inFlight = n
	}
	if got := picked(b, epoch, endpoint(t, b, 0)); got != "2" {
		t.Errorf("picked %s, want 2", got)
	}
}

func TestLeastRequestTakesTheLessLoadedAndThenTheLongerIdle(t *testing.T) {
	b := New("a/b:1", seeded())
	b.Update(spec(t, LeastRequest, "0 1"))
	endpoint(t, b, 0).inFlight = 3
	if got := picked(b, epoch); got != "1" {
		t.Errorf("picked %s, want 1", got)
	}
	endpoint(t, b, 0).inFlight = 0
	prev := -1
	for range 100 {
		e, err := b.Pick(epoch, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Done(epoch)
		if index(e) == prev {
			t.Fatal("the most recently picked of two idle endpoints was picked again")
		}
		prev = index(e)
	}
}

func TestRoundRobinVisitsEachOncePerRound(t *testing.T) {
	b := New("a/b:1", seeded())
	b.Update(specOf(17, RoundRobin))
	for range 10 {
		seen := map[netip.AddrPort]bool{}
		for range 17 {
			e, err := b.Pick(epoch, nil)
			if err != nil {
				t.Fatal(err)
			}
			if seen[e.Addr()] {
				t.Fatalf("%s twice in one round", e.Addr())
			}
			seen[e.Addr()] = true
		}
	}
}

func TestDeltaIsUsedOnlyOnItsBase(t *testing.T) {
	b := New("a/b:1", seeded())
	first := spec(t, LeastRequest, "0 1 2")
	first.Version = "1"
	b.Update(first)

	next := spec(t, LeastRequest, "1d 2 3")
	next.Version = "2"
	next.Delta = &Delta{
		Base:    "1",
		Upserts: []EndpointSpec{{Addr: endpointAddr(1), State: Draining}, {Addr: endpointAddr(3), State: Ready}},
		Removes: []netip.AddrPort{endpointAddr(0), endpointAddr(77)},
	}
	c := b.Update(next)
	if endpointsOf(c.Added) != "3" || endpointsOf(c.Removed) != "0" || endpointsOf(c.Moved) != "1" || b.Version() != "2" {
		t.Errorf("added %s, removed %s, moved %s, version %s", endpointsOf(c.Added), endpointsOf(c.Removed), endpointsOf(c.Moved), b.Version())
	}
	// The same again, and one that was built on a list that never came: the
	// whole list decides.
	if c = b.Update(next); c.Added != nil || c.Removed != nil || c.Moved != nil {
		t.Errorf("a repeated delta added %s, removed %s, moved %s", endpointsOf(c.Added), endpointsOf(c.Removed), endpointsOf(c.Moved))
	}
	late := spec(t, LeastRequest, "2 9")
	late.Version = "9"
	late.Delta = &Delta{Base: "8", Upserts: []EndpointSpec{{Addr: endpointAddr(50), State: Ready}}}
	b.Update(late)
	if got := endpointsOf(b.Endpoints()); got != "2 9" {
		t.Errorf("endpoints %s, want 2 9", got)
	}
}

func TestCounts(t *testing.T) {
	b := New("a/b:1", seeded())
	b.Update(spec(t, RoundRobin, "0 1w 2w 3d"))
	endpoint(t, b, 0).SetFailing(at(time.Hour))
	for s, want := range map[State]int{Ready: 1, Warming: 2, Draining: 1} {
		if got := b.Count(s); got != want {
			t.Errorf("%s: %d, want %d", s, got, want)
		}
	}
	if b.Policy() != RoundRobin || b.Service() != "a/b:1" {
		t.Error("policy or service is wrong")
	}
}

func TestParsePolicy(t *testing.T) {
	for in, want := range map[string]Policy{"": LeastRequest, "least_request": LeastRequest, "round_robin": RoundRobin} {
		if got, err := ParsePolicy(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	if _, err := ParsePolicy("fastest"); err == nil || !strings.Contains(err.Error(), `"fastest"`) {
		t.Errorf("error %v", err)
	}
}

// TestModel throws random operations at a balancer and compares it with the
// plainest description of what may be picked.
func TestModel(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := New("a/b:1", rand.New(rand.NewPCG(seed, 1)))
		now := epoch
		cur := map[netip.AddrPort]EndpointSpec{}
		until := map[netip.AddrPort]time.Time{}
		version := 0
		for range 120 {
			now = now.Add(time.Duration(rnd.IntN(50)) * time.Millisecond)
			a := endpointAddr(rnd.IntN(12))
			switch rnd.IntN(4) {
			case 0: // change one by delta
				d := &Delta{Base: fmt.Sprint(version)}
				if rnd.IntN(3) == 0 {
					d.Removes = append(d.Removes, a)
					delete(cur, a)
					delete(until, a)
				} else {
					e := EndpointSpec{Addr: a, State: State(rnd.IntN(3))}
					d.Upserts = append(d.Upserts, e)
					cur[a] = e
				}
				version++
				b.Update(listed(cur, version, d))
			case 1: // replace many
				for range rnd.IntN(6) {
					a := endpointAddr(rnd.IntN(12))
					if rnd.IntN(2) == 0 {
						delete(cur, a)
						delete(until, a)
					} else {
						cur[a] = EndpointSpec{Addr: a, State: State(rnd.IntN(3))}
					}
				}
				version++
				b.Update(listed(cur, version, nil))
			case 2:
				if e, ok := b.Endpoint(a); ok {
					until[a] = now.Add(time.Duration(rnd.IntN(200)) * time.Millisecond)
					e.SetFailing(until[a])
				}
			case 3:
				if e, ok := b.Endpoint(a); ok {
					delete(until, a)
					e.SetConnected()
				}
			}
			may := map[netip.AddrPort]bool{}
			for _, want := range []State{Ready, Draining} {
				for a, e := range cur {
					if e.State == want && !now.Before(until[a]) {
						may[a] = true
					}
				}
				if len(may) > 0 {
					break
				}
			}
			for range 8 {
				e, err := b.Pick(now, nil)
				if (err == nil) != (len(may) > 0) || err == nil && !may[e.Addr()] {
					t.Fatalf("seed %d: picked %v (%v), allowed %v", seed, e, err, may)
				}
				if err == nil {
					e.Done(now)
				}
			}
			if b.Len() != len(cur) {
				t.Fatalf("seed %d: %d endpoints, want %d", seed, b.Len(), len(cur))
			}
		}
	}
}

func listed(m map[netip.AddrPort]EndpointSpec, version int, d *Delta) *Spec {
	s := &Spec{Service: "a/b:1", Policy: Policy(version % 2), Version: fmt.Sprint(version), Delta: d}
	for _, e := range m {
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func TestPickDoesNotAllocate(t *testing.T) {
	policies(t, func(t *testing.T, p Policy) {
		b := New("a/b:1", seeded())
		b.Update(specOf(100, p))
		if n := testing.AllocsPerRun(100, func() {
			e, err := b.Pick(epoch, nil)
			if err != nil {
				t.Fatal(err)
			}
			e.Done(epoch)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// BenchmarkPick: the same for 10 and for 1,000 endpoints.
func BenchmarkPick(b *testing.B) {
	for _, p := range []Policy{LeastRequest, RoundRobin} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", p, n), func(b *testing.B) {
				bal := New("a/b:1", seeded())
				bal.Update(specOf(n, p))
				for b.Loop() {
					e, err := bal.Pick(epoch, nil)
					if err != nil {
						b.Fatal(err)
					}
					e.Done(epoch)
				}
			})
		}
	}
}

// BenchmarkUpdateOne: a change of one endpoint costs the same for 10 and for
// 1,000.
func BenchmarkUpdateOne(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bal := New("a/b:1", seeded())
			base := specOf(n, LeastRequest)
			bal.Update(base)
			specs := [2]*Spec{}
			for i, state := range []State{Draining, Ready} {
				s := *base
				s.Delta = &Delta{Base: "1", Upserts: []EndpointSpec{{Addr: endpointAddr(n / 2), State: state}}}
				specs[i] = &s
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				bal.Update(specs[i%2])
			}
		})
	}
}
