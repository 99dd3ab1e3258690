// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/sidecar/upstream"
)

// told is what the control plane would know: all batches, merged.
type told struct {
	mu       sync.Mutex
	services map[string]report.Service
	all      map[string]report.Endpoint // by "service addr uid"; those without a service by " addr "
	gone     map[string]int             // how often each was
	at       []time.Time                // of each batch
}

func newTold() *told {
	return &told{services: map[string]report.Service{}, all: map[string]report.Endpoint{}, gone: map[string]int{}}
}

// Report implements report.Sink.
func (l *told) Report(b report.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Now())
	for _, s := range b.Services {
		if s.Gone {
			l.gone[s.Name]++
			delete(l.services, s.Name)
			for k := range l.all {
				if strings.HasPrefix(k, s.Name+" ") {
					delete(l.all, k)
				}
			}
			continue
		}
		l.services[s.Name] = s
		l.endpoints(s.Name, s.Endpoints)
	}
	l.endpoints("", b.Direct)
}

func (l *told) endpoints(service string, all []report.Endpoint) {
	for _, e := range all {
		k := fmt.Sprint(service, " ", e.Addr, " ", e.UID)
		l.all[k] = e
		if e.Gone {
			l.gone[k]++
		}
	}
}

func (l *told) endpoint(service, addr, uid string) (report.Endpoint, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.all[fmt.Sprint(service, " ", addr, " ", uid)]
	return e, ok
}

func (l *told) timesGone(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[key]
}

func (l *told) active(service string) (active, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.services[service]
	return s.Active, ok
}

// tracked starts a Sidecar that reports.
func tracked(t testing.TB, edit ...func(*Config)) (*rig, *told) {
	l := newTold()
	r := newRig(t, append([]func(*Config){func(c *Config) { c.Reporter = l }}, edit...)...)
	return r.routed(), l
}

// want waits until what is known of an endpoint of testService is so.
func (l *told) want(t testing.TB, why, addr, uid, want string) {
	t.Helper()
	l.wantOf(t, why, testService, addr, uid, want)
}

func (l *told) wantOf(t testing.TB, why, service, addr, uid, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := "not reported"
		if e, ok := l.endpoint(service, addr, uid); ok {
			got = textOf(e)
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %s %s %s is\n     %s\nwant %s", why, service, addr, uid, got, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// textOf is "connected draining picked 2 failed=1".
func textOf(e report.Endpoint) string {
	var s []string
	add := func(is bool, text string) {
		if is {
			s = append(s, text)
		}
	}
	add(e.Gone, "gone")
	add(!e.Gone, e.Answer.String())
	add(e.Slow, "slow")
	add(e.Failing, "failing")
	add(e.Draining, "draining")
	add(e.Picked, "picked")
	add(e.InFlight > 0, fmt.Sprint(e.InFlight))
	add(e.Failed > 0, fmt.Sprint("failed=", e.Failed))
	add(e.Replayed > 0, fmt.Sprint("replayed=", e.Replayed))
	return strings.Join(s, " ")
}

// ep describes an endpoint: "addr uid d" with the letters of the balancer's tests.
func ep(addr, uid string, s balancer.State) balancer.EndpointSpec {
	return balancer.EndpointSpec{Addr: netip.MustParseAddrPort(addr), UID: uid, State: s}
}

func (r *rig) set(all ...balancer.EndpointSpec) {
	r.s.Service(testService, &balancer.Spec{Service: testService, Endpoints: all})
}

var grpcOK = []string{":status", "200", "content-type", "application/grpc", "grpc-status", "0"}

func TestAnswers(t *testing.T) {
	t.Run("none before the first RPC, then what came of it, for good", func(t *testing.T) {
		r, l := tracked(t)
		f, dead := newFakeServer(t), deadAddr(t).String()
		r.set(ep(f.addr, "a", balancer.Ready), ep(dead, "b", balancer.Warming))
		l.want(t, "receipt is acknowledged", f.addr, "a", "none")
		l.want(t, "receipt is acknowledged", dead, "b", "none")
		if active, ok := l.active(testService); active || !ok {
			t.Errorf("active %t, known %t: nobody calls it", active, ok)
		}
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the request", "HEADERS 1 end…")
		l.want(t, "a session", f.addr, "a", "connected")
		l.want(t, "refused, of one that is only warming", dead, "b", "failed failing")
		if active, _ := l.active(testService); !active {
			t.Error("it is called, and not active")
		}
		f.lis.Close()
		srv.conn.Close()
		l.want(t, "now it fails", f.addr, "a", "connected failing failed=1")
	})
	t.Run("a connect that hangs is slow, one that hangs again fails", func(t *testing.T) {
		r, l := tracked(t, sessions(func(c *upstream.Config) { c.SlowConnect = 20 * time.Millisecond }))
		hole := blackHole(t)
		r.set(ep(hole, "a", balancer.Ready))
		r.s.Warm(testService)
		l.want(t, "slow", hole, "a", "none slow")
	})
	t.Run("an address that is connected answers for each service at once", func(t *testing.T) {
		r, l := tracked(t)
		f := newFakeServer(t)
		r.set(ep(f.addr, "a", balancer.Ready))
		r.s.Warm(testService)
		f.accept()
		l.want(t, "connected", f.addr, "a", "connected")
		other := &balancer.Spec{Service: "shop/other:1", Endpoints: []balancer.EndpointSpec{ep(f.addr, "a", balancer.Ready)}}
		r.s.Service(other.Service, other)
		l.wantOf(t, "the same pod", other.Service, f.addr, "a", "connected")
	})
	t.Run("another pod at the address is dialled itself", func(t *testing.T) {
		r, l := tracked(t)
		f := newFakeServer(t)
		other := &balancer.Spec{Service: "shop/other:1", Endpoints: []balancer.EndpointSpec{ep(f.addr, "a", balancer.Ready)}}
		r.s.Service(other.Service, other)
		r.set(ep(f.addr, "a", balancer.Ready))
		app := r.app()
		app.request(1, true)
		old := f.accept()
		old.want("a stream on the old pod", "HEADERS 1 end…")
		l.want(t, "connected", f.addr, "a", "connected")
		r.set(ep(f.addr, "b", balancer.Ready))
		old.want("the old session takes no more", "GOAWAY …")
		l.want(t, "the old pod is not in the set any more", f.addr, "a", "connected draining 1")
		l.want(t, "the new one has not answered", f.addr, "b", "none")
		l.wantOf(t, "nor does a service that has yet to hear of it say so", other.Service, f.addr, "a", "connected")
		fresh := f.accept()
		l.want(t, "the new one", f.addr, "b", "connected")
		app.request(3, true)
		fresh.want("new RPCs", "HEADERS 1 end…")
		old.headers(1, true, grpcOK...)
		app.want("the old stream ends well", "HEADERS 1 end…")
		l.want(t, "then the old pod is gone", f.addr, "a", "gone")
		fresh.headers(1, true, grpcOK...)
		app.want("the new stream", "HEADERS 3 end…")
		other.Endpoints = []balancer.EndpointSpec{ep(f.addr, "b", balancer.Ready)}
		r.s.Service(other.Service, &balancer.Spec{Service: other.Service, Endpoints: other.Endpoints})
		l.wantOf(t, "the other service hears of it at last", other.Service, f.addr, "b", "connected")
		r.quiet()
		if n := r.s.upstreamSessions(t); n != 1 {
			t.Errorf("%d sessions, want the new one to stay alone", n)
		}
	})
	// A Service with slices of its own, without targetRef, beside one that selects the pod.
	t.Run("an endpoint without a UID shares the sessions", func(t *testing.T) {
		r, l := tracked(t)
		f := newFakeServer(t)
		const manual = "shop/manual:1"
		give := func(name string, all ...balancer.EndpointSpec) {
			r.s.Service(name, &balancer.Spec{Service: name, Endpoints: all})
		}
		give(testService, ep(f.addr, "a", balancer.Ready))
		give(manual, ep(f.addr, "", balancer.Ready))
		r.s.Warm(manual)
		f.accept()
		l.want(t, "the pod's", f.addr, "a", "connected")
		l.wantOf(t, "the other's", manual, f.addr, "", "connected")
		give("shop/late:1", ep(f.addr, "", balancer.Ready))
		l.wantOf(t, "one that comes later", "shop/late:1", f.addr, "", "connected")
		if n := r.s.upstreamSessions(t); n != 1 {
			t.Errorf("%d sessions, want one", n)
		}
	})
}

func TestDrainIsReported(t *testing.T) {
	r, l := tracked(t)
	f := newFakeServer(t)
	b := newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the first", "HEADERS 1 end…")
	time.Sleep(50 * time.Millisecond)
	app.request(3, true)
	srv.want("the second", "HEADERS 3 end…")
	l.want(t, "in flight is not told before", f.addr, "a", "connected")
	time.Sleep(100 * time.Millisecond)
	r.set(ep(f.addr, "a", balancer.Draining))
	l.want(t, "nothing else is ready", f.addr, "a", "connected draining picked 2")
	if d := r.snapshot().Services[0].Endpoints[0].Drain; d == nil || !d.Picked || d.Left || d.Youngest == "0s" {
		t.Errorf("the snapshot says %+v", d)
	}
	between := func(low, high time.Duration) {
		t.Helper()
		if e, _ := l.endpoint(testService, f.addr, "a"); e.Youngest < low || e.Youngest > high {
			t.Errorf("the youngest was %s old when the drain began, want %s to %s", e.Youngest, low, high)
		}
	}
	between(100*time.Millisecond, 140*time.Millisecond)
	app.request(5, true)
	srv.want("the third, begun later", "HEADERS 5 end…")
	l.want(t, "picked all the same", f.addr, "a", "connected draining picked 3")
	between(0, 0)

	r.set(ep(f.addr, "a", balancer.Draining), ep(b.addr, "b", balancer.Ready))
	second := b.accept()
	l.want(t, "another one is ready", f.addr, "a", "connected draining 3")
	app.request(7, true)
	second.want("which gets new RPCs", "HEADERS 1 end…")
	srv.headers(5, true, grpcOK...)
	app.want("the third", "HEADERS 5 end…")
	l.want(t, "one less", f.addr, "a", "connected draining 2")
	between(100*time.Millisecond, 140*time.Millisecond)
	srv.headers(3, true, grpcOK...)
	app.want("the second", "HEADERS 3 end…")
	l.want(t, "the first is left", f.addr, "a", "connected draining 1")
	between(150*time.Millisecond, 10*time.Second)

	r.set(ep(f.addr, "a", balancer.Ready))
	l.want(t, "back", f.addr, "a", "connected")
	app.request(9, true)
	srv.want("and picked again", "HEADERS 7 end…")

	r.set(ep(b.addr, "b", balancer.Ready))
	l.want(t, "it leaves the set with RPCs in flight", f.addr, "a", "connected draining 2")
	all := r.snapshot().Services[0].Endpoints
	if len(all) != 2 || all[1].Drain == nil || !all[1].Drain.Left || all[1].UID != "a" || all[1].Answer != "connected" || all[1].InFlight != 2 {
		t.Errorf("the snapshot says %+v", all)
	}
	second.headers(1, true, grpcOK...)
	app.want("the one on the other", "HEADERS 7 end…")
	for id, stream := range map[uint32]uint32{1: 1, 7: 9} {
		srv.headers(id, true, grpcOK...)
		app.want("each ends well", fmt.Sprintf("HEADERS %d end…", stream))
	}
	l.want(t, "then it is gone", f.addr, "a", "gone")
	r.quiet()
	time.Sleep(3 * reportEvery)
	if n := l.timesGone(fmt.Sprint(testService, " ", f.addr, " a")); n != 1 {
		t.Errorf("gone %d times, want once", n)
	}
}

func TestReadyThatAllFailCountAsNone(t *testing.T) {
	r, l := tracked(t)
	f, d := newFakeServer(t), newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready), ep(d.addr, "d", balancer.Draining))
	r.s.Warm(testService)
	f.accept()
	l.want(t, "who goes is not connected to", d.addr, "d", "none draining")
	lost := newFakeServer(t)
	lost.lis.Close()
	r.set(ep(lost.addr, "x", balancer.Ready), ep(d.addr, "d", balancer.Draining))
	l.want(t, "fails", lost.addr, "x", "failed failing")
	dr := d.accept() // unless there is no other
	if e, _ := l.endpoint(testService, d.addr, "d"); e.Picked {
		t.Error("picked, although the service is not active")
	}
	app := r.app()
	app.request(1, true)
	dr.want("the draining one is better than none", "HEADERS 1 end…")
	l.want(t, "active now", d.addr, "d", "connected draining picked 1")
	dr.headers(1, true, grpcOK...)
	app.want("answered", "HEADERS 1 end…")
	l.want(t, "still picked", d.addr, "d", "connected draining picked")
	r.set(ep(f.addr, "a", balancer.Ready), ep(d.addr, "d", balancer.Draining))
	f.accept()
	l.want(t, "one is back", d.addr, "d", "connected draining")
	r.quiet()
}

// A server that drains and ends is not dialled again until its endpoint is taken away: its address is about to be
// another's. One that comes back is.
func TestDrainedServerIsNotDialled(t *testing.T) {
	r, l := tracked(t)
	f, g := newFakeServer(t), newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready), ep(g.addr, "b", balancer.Ready))
	r.s.Warm(testService)
	old := f.accept()
	g.accept()
	l.want(t, "connected", f.addr, "a", "connected")
	l.want(t, "connected", g.addr, "b", "connected")
	r.set(ep(f.addr, "a", balancer.Draining), ep(g.addr, "b", balancer.Ready))
	l.want(t, "drains", f.addr, "a", "connected draining")
	old.conn.Close()
	_ = f.lis.(*net.TCPListener).SetDeadline(time.Now().Add(400 * time.Millisecond))
	if c, err := f.lis.Accept(); err == nil {
		c.Close()
		t.Error("it was dialled again")
	}
	r.set(ep(f.addr, "a", balancer.Ready), ep(g.addr, "b", balancer.Ready))
	f.accept().conn.Close()
	// Alone it is kept, as RPCs go to it.
	r.set(ep(f.addr, "a", balancer.Draining))
	f.accept().conn.Close()
	f.accept()
}

// An endpoint that leaves and returns while an RPC runs on it is one endpoint.
func TestEndpointComesBack(t *testing.T) {
	r, l := tracked(t)
	f, b := newFakeServer(t), newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	r.set(ep(b.addr, "b", balancer.Ready))
	b.accept()
	l.want(t, "left", f.addr, "a", "connected draining 1")
	r.set(ep(b.addr, "b", balancer.Ready), ep(f.addr, "a", balancer.Draining))
	l.want(t, "back, and draining from now on", f.addr, "a", "connected draining 1")
	if n := r.snapshot().Services[0].Endpoints; len(n) != 2 {
		t.Errorf("endpoints %+v, want two", n)
	}
	srv.headers(1, true, grpcOK...)
	app.want("ends well", "HEADERS 1 end…")
	l.want(t, "not gone", f.addr, "a", "connected draining")
	r.quiet()
}

func TestServiceGoneIsReported(t *testing.T) {
	r, l := tracked(t)
	f := newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	l.want(t, "connected", f.addr, "a", "connected")
	r.s.Service(testService, nil)
	l.want(t, "the RPC goes on", f.addr, "a", "connected draining 1")
	// Given again meanwhile, and taken away again.
	r.set(ep(f.addr, "a", balancer.Ready))
	l.want(t, "the same endpoint of a new service", f.addr, "a", "connected")
	r.s.Service(testService, nil)
	l.want(t, "as before", f.addr, "a", "connected draining 1")
	if n := l.timesGone(testService); n != 0 {
		t.Errorf("the service was reported gone with an RPC in flight")
	}
	srv.headers(1, true, grpcOK...)
	app.want("ends well", "HEADERS 1 end…")
	eventually(t, "the service is gone", func() bool { return l.timesGone(testService) == 1 })
	if _, known := l.active(testService); known {
		t.Error("and known")
	}
	r.quiet()
}

func TestDirectIsReported(t *testing.T) {
	r, l := tracked(t, func(c *Config) { c.RouteWait = time.Millisecond })
	f := newFakeServer(t)
	addr := mustAddr(f.addr)
	r.orig.Store(&addr)
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	l.wantOf(t, "the first at once", "", f.addr, "", "none 1")
	app.request(3, true)
	srv.want("the second", "HEADERS 3 end…")
	l.wantOf(t, "the second soon", "", f.addr, "", "none 2")
	srv.headers(1, true, grpcOK...)
	srv.headers(3, true, grpcOK...)
	app.want("one", "HEADERS 1 end…")
	app.want("two", "HEADERS 3 end…")
	l.wantOf(t, "over", "", f.addr, "", "none")
	r.quiet()
}

func TestFailedAndReplayedAreCounted(t *testing.T) {
	r, l := tracked(t)
	f := newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	srv.do(srv.fr.WriteGoAway(0, http2.ErrCodeNo, nil))
	srv = f.accept()
	srv.want("again", "HEADERS 1 end…")
	l.want(t, "replayed", f.addr, "a", "connected replayed=1")
	srv.do(srv.fr.WriteRSTStream(1, http2.ErrCodeRefusedStream))
	app.want("no other", "HEADERS 1 end"+grpcHeaders+" grpc-status=14…")
	l.want(t, "failed", f.addr, "a", "connected failed=1 replayed=2")
	app.request(3, true)
	srv.want("the next", "HEADERS 3 end…")
	srv.headers(3, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "14")
	app.want("the server's own word", "HEADERS 3 end…")
	app.request(5, true, "grpc-timeout", "1S")
	srv.want("the last", "HEADERS 5 end…")
	app.do(app.fr.WriteRSTStream(5, http2.ErrCodeCancel))
	srv.want("cancelled", "RST 5 CANCEL")
	r.quiet()
	time.Sleep(2 * reportEvery)
	l.want(t, "neither is our failure", f.addr, "a", "connected failed=1 replayed=2")
}

func TestReportsAreNotTooMany(t *testing.T) {
	r, l := tracked(t)
	b := newBackend(t, "a")
	r.set(ep(b.addr, "a", balancer.Draining))
	c := r.client()
	begin := time.Now()
	for time.Since(begin) < 300*time.Millisecond {
		if _, err := call(t, c, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	l.want(t, "the end is told", b.addr, "a", "connected draining picked")
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 1; i < len(l.at); i++ {
		// Times are taken in the sink, the loop's are those of its turns.
		if d := l.at[i].Sub(l.at[i-1]); d < reportEvery/2 {
			t.Errorf("two reports within %s", d)
		}
	}
	if len(l.at) < 5 {
		t.Errorf("%d reports in 300 ms of changes", len(l.at))
	}
}

func TestWarm(t *testing.T) {
	r, l := tracked(t, func(c *Config) { c.ServiceIdle = 100 * time.Millisecond })
	f := newFakeServer(t)
	r.s.Warm(testService)
	r.set(ep(f.addr, "a", balancer.Ready))
	f.accept()
	l.want(t, "endpoints that come later are connected too", f.addr, "a", "connected")
	if active, known := l.active(testService); active || !known {
		t.Errorf("active %t, known %t: it is only kept warm", active, known)
	}
	if s := r.snapshot().Services[0]; !s.InUse || s.Active {
		t.Errorf("in use %t, active %t", s.InUse, s.Active)
	}
	time.Sleep(200 * time.Millisecond)
	r.s.sweepNow(t)
	if s := r.snapshot().Services[0]; s.InUse {
		t.Error("kept connected after ServiceIdle")
	}
	// What is never answered is not kept for ever.
	r.s.Warm("shop/nobody:1")
	eventually(t, "known", func() bool { _, known := l.active("shop/nobody:1"); return known })
	time.Sleep(200 * time.Millisecond)
	r.s.sweepNow(t)
	eventually(t, "forgotten", func() bool { return l.timesGone("shop/nobody:1") == 1 })
}

func TestActiveEnds(t *testing.T) {
	r, l := tracked(t, func(c *Config) { c.ServiceIdle = 50 * time.Millisecond })
	f := newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request", "HEADERS 1 end…")
	time.Sleep(100 * time.Millisecond)
	r.s.sweepNow(t)
	time.Sleep(2 * reportEvery)
	if active, _ := l.active(testService); !active {
		t.Error("not active with an RPC in flight")
	}
	srv.headers(1, true, grpcOK...)
	app.want("its end", "HEADERS 1 end…")
	time.Sleep(100 * time.Millisecond)
	r.s.sweepNow(t)
	eventually(t, "not active any more", func() bool { active, _ := l.active(testService); return !active })
	app.request(3, true)
	srv.want("the session is still there", "HEADERS 3 end…")
	eventually(t, "active again", func() bool { active, _ := l.active(testService); return active })
}

// Streams that wait for a place at an endpoint which begins to drain go elsewhere: nothing of them was sent.
func TestQueuedStreamsLeaveADrainingEndpoint(t *testing.T) {
	for name, after := range map[string][]balancer.State{
		"draining": {balancer.Draining}, "removed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r, l := tracked(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 }))
			f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
			b := newFakeServer(t)
			r.set(ep(f.addr, "a", balancer.Ready))
			app := r.app()
			app.request(1, true)
			srv := f.accept()
			srv.want("the first", "HEADERS 1 end…")
			app.request(3, true)
			app.request(5, true)
			eventually(t, "two wait", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 2 })
			all := []balancer.EndpointSpec{ep(b.addr, "b", balancer.Ready)}
			for _, s := range after {
				all = append(all, ep(f.addr, "a", s))
			}
			r.set(all...)
			other := b.accept()
			other.want("the one that waited first", "HEADERS 1 end…")
			other.want("and the other", "HEADERS 3 end…")
			l.want(t, "only what was sent stays", f.addr, "a", "connected draining 1")
			srv.headers(1, true, grpcOK...)
			app.want("and ends well", "HEADERS 1 end…")
			for _, id := range []uint32{1, 3} {
				other.headers(id, true, grpcOK...)
				app.want("as do the others", fmt.Sprintf("HEADERS %d end…", id+2))
			}
			r.quiet()
		})
	}
	t.Run("not where there is nothing else", func(t *testing.T) {
		r, l := tracked(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 }))
		f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		r.set(ep(f.addr, "a", balancer.Ready))
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the first", "HEADERS 1 end…")
		app.request(3, true)
		eventually(t, "one waits", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 1 })
		r.set(ep(f.addr, "a", balancer.Draining))
		l.want(t, "both", f.addr, "a", "connected draining picked 2")
		srv.headers(1, true, grpcOK...)
		srv.want("it keeps its place", "HEADERS 3 end…")
		app.want("the first", "HEADERS 1 end…")
		eventually(t, "what was sent after the drain began is younger than it", func() bool {
			e, _ := l.endpoint(testService, f.addr, "a")
			return e.InFlight == 1 && e.Youngest == 0
		})
	})
}
