// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"evenkeel.dev/sidecar/balancer"
)

// consistent looks inside the loop: what is counted twice must agree.
func (s *Sidecar) consistent(t testing.TB) {
	t.Helper()
	if err := s.inLoop(nil, func(time.Time) {
		for _, svc := range s.services {
			connected := 0
			all := map[*endpoint]bool{}
			for _, be := range svc.b.Endpoints() {
				e := endpointOf(be)
				all[e] = true
				if e.t.pool.Sessions() > 0 {
					connected++
				}
				if e.left || e.gone || e.draining != (be.Spec().State == balancer.Draining) {
					t.Errorf("%s is in the set: %+v", be.Addr(), e.track)
				}
			}
			if connected != svc.connected {
				t.Errorf("%d endpoints are connected, counted %d", connected, svc.connected)
			}
			left := 0
			for _, e := range svc.draining {
				if e.left {
					left++
					all[e] = true
				}
				if !e.draining || e.gone || e.left && e.flights.n == 0 || e.svc != svc {
					t.Errorf("%s drains: %+v, %d in flight", e.be.Addr(), e.track, e.flights.n)
				}
			}
			if left != svc.leaving {
				t.Errorf("%d endpoints have left, counted %d", left, svc.leaving)
			}
			for e := range all {
				n, at := 0, time.Time{}
				for r := range e.flights.all() {
					n++
					if r.ep != e || r.attemptAt.Before(at) {
						t.Errorf("an RPC of %s is at the wrong place", e.be.Addr())
					}
					at = r.attemptAt
				}
				if n != e.flights.n || n != e.be.InFlight() {
					t.Errorf("%s has %d RPCs, counted %d and %d", e.be.Addr(), n, e.flights.n, e.be.InFlight())
				}
			}
		}
		for _, tg := range s.targets {
			if len(tg.users) == 0 && tg.lastUse.IsZero() {
				t.Errorf("nobody uses %s", tg.addr)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// Sets, states and pods change at random while RPCs run: none fails, what is counted agrees, and in
// the end the control plane knows what is.
func TestRandomUpdates(t *testing.T) {
	const other = "shop/other:1"
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r, l := tracked(t)
	var addrs []string
	for i := range 5 {
		addrs = append(addrs, newBackend(t, fmt.Sprint(i)).addr)
	}
	pods := make([]int, len(addrs)) // generations: which pod is at each address
	uid := func(i int) string { return fmt.Sprintf("pod-%d-%d", i, pods[i]) }
	states := []balancer.State{balancer.Ready, balancer.Ready, balancer.Draining, balancer.Warming}
	set := func(name string) []balancer.EndpointSpec {
		var all []balancer.EndpointSpec
		sure := rnd.IntN(len(addrs)) // there is always one
		for i, a := range addrs {
			if i == sure {
				all = append(all, ep(a, uid(i), balancer.Ready))
			} else if rnd.IntN(3) > 0 {
				all = append(all, ep(a, uid(i), states[rnd.IntN(len(states))]))
			}
		}
		r.s.Service(name, &balancer.Spec{Service: name, Endpoints: all})
		return all
	}
	set(testService)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done atomic.Int64
	for range 8 {
		c := r.client()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := call(t, c, 20*time.Second); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	var now []balancer.EndpointSpec
	for range 400 {
		switch rnd.IntN(10) {
		case 0:
			pods[rnd.IntN(len(pods))]++
		case 1:
			r.s.Service(testService, nil)
		case 2:
			r.s.Service(other, nil)
		case 3:
			r.s.Warm(other)
		}
		set(other)
		now = set(testService)
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
		}
		if rnd.IntN(8) == 0 {
			r.s.consistent(t)
		}
	}
	close(stop)
	wg.Wait()
	r.quiet()
	r.s.consistent(t)
	if n := done.Load(); n < 100 {
		t.Errorf("only %d RPCs", n)
	} else {
		t.Logf("%d RPCs", n)
	}

	if _, err := call(t, r.client(), 20*time.Second); err != nil { // the service may be new
		t.Error(err)
	}
	want := map[string]string{}
	for _, e := range now {
		w := "connected"
		if e.State == balancer.Draining {
			w += " draining"
		}
		want[fmt.Sprint(testService, " ", e.Addr, " ", e.UID)] = w
	}
	var diff string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if diff = l.differs(testService, want); diff == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("what is known in the end is not what is there:\n" + diff)
		}
	}
}

// differs holds what is known of a service's endpoints against want.
func (l *told) differs(service string, want map[string]string) (diff string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := 0
	for k, e := range l.all {
		if e.Gone || !strings.HasPrefix(k, service+" ") {
			continue
		}
		e.Slow = false // the machine may be
		if got := textOf(e); got != want[k] {
			diff += fmt.Sprintf("%s is %q, want %q\n", k, got, want[k])
		}
		seen++
	}
	if seen != len(want) {
		diff += fmt.Sprintf("%d endpoints, want %d", seen, len(want))
	}
	return diff
}
