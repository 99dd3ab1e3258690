// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"testing"
	"time"

	"golang.org/x/net/http2"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/upstream"
)

// An RPC begins when it is sent. One that has waited for that is younger than those which still wait,
// though it came before them.
func TestYoungestIsTheLastSent(t *testing.T) {
	r, l := tracked(t, sessions(func(c *upstream.Config) { c.MaxSessions = 1 }))
	f := newFakeServer(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	r.set(ep(f.addr, "a", balancer.Ready))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the first", "HEADERS 1 end…")
	app.request(3, true)
	app.request(5, true)
	eventually(t, "two wait", func() bool { return r.snapshot().Services[0].Endpoints[0].Queued == 2 })
	const wait = 500 * time.Millisecond
	time.Sleep(wait)
	srv.headers(1, true, grpcOK...)
	srv.want("the second", "HEADERS 3 end…")
	r.set(ep(f.addr, "a", balancer.Draining)) // and nothing else: what waits stays
	l.want(t, "both", f.addr, "a", "connected draining picked 2")
	if e, _ := l.endpoint(testService, f.addr, "a"); e.Youngest <= 0 || e.Youngest >= wait {
		t.Errorf("the youngest is said to be %s old, want less than %s", e.Youngest, wait)
	}
}

// A service that nobody calls any more picks nothing, so a pod that drains need not wait for it.
func TestIdleServicePicksNothing(t *testing.T) {
	r, l := tracked(t, func(c *Config) { c.ServiceIdle = 50 * time.Millisecond })
	f := newFakeServer(t)
	r.set(ep(f.addr, "a", balancer.Draining))
	app := r.app()
	app.request(1, true)
	srv := f.accept()
	srv.want("the request, as there is no other", "HEADERS 1 end…")
	srv.headers(1, true, grpcOK...)
	app.want("answered", "HEADERS 1 end…")
	l.want(t, "while it is in use", f.addr, "a", "connected draining picked")
	time.Sleep(100 * time.Millisecond)
	r.s.sweepNow(t)
	l.want(t, "when it is not", f.addr, "a", "connected draining")
	app.request(3, true)
	l.want(t, "and again", f.addr, "a", "connected draining picked 1")
}
