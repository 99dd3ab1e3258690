// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/sidecar/discovery"
	"evenkeel.dev/sidecar/hold"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// reports is what the control plane would be told.
type reports struct {
	mu   sync.Mutex
	own  []string
	ends []*api.HoldEnd
}

func (r *reports) SetOwn(o *api.OwnPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = append(r.own, fmt.Sprintf("ready=%t draining=%t drained=%t %d", o.GetReady(), o.GetDraining(), o.GetDrained(), o.GetDrainStreamsMs()))
}

func (r *reports) HoldEnded(e *api.HoldEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, e)
}

func (r *reports) end(name string) *api.HoldEnd {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Backward(r.ends) {
		if e.GetHold() == name {
			return e
		}
	}
	return nil
}

func (r *reports) lastOwn() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own[len(r.own)-1]
}

// podBench is the holds of a pod with their HTTP servers.
type podBench struct {
	t          *testing.T
	cfg        Config
	holds      *holds
	reports    *reports
	reg        *prometheus.Registry
	pod, debug *httptest.Server
}

func newPodBench(t *testing.T, configure func(*Config)) *podBench {
	t.Helper()
	cfg := Config{
		PodUID:       "u1",
		ReadyTimeout: 15 * time.Second, DrainTimeout: 30 * time.Second, DrainMin: floorAuto,
		DrainStreams: 30 * time.Second, AppGrace: 30 * time.Second,
		HoldSecret: secret, PodIP: "127.0.0.1", StateDir: t.TempDir(),
	}
	if configure != nil {
		configure(&cfg)
	}
	b := &podBench{t: t, cfg: cfg, reports: &reports{}, reg: prometheus.NewRegistry()}
	b.holds = newHolds(&b.cfg, quiet, b.reports, b.reg, time.Now())
	pod := podHandler(&b.cfg, quiet, b.holds, b.reg)
	b.pod = httptest.NewServer(pod)
	b.debug = httptest.NewServer(debugHandler(b.holds, pod, func(context.Context) (any, error) { return nil, nil }))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.holds.run(ctx) }()
	t.Cleanup(func() {
		b.pod.Close()
		b.debug.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// up is the usual begin: it serves, and the control plane is there.
func (b *podBench) up() {
	b.holds.learned(discovery.Learned{Complete: true})
	b.holds.synced()
	b.holds.post(func(m *hold.Machine, _ time.Time) { m.Serving() })
}

func (b *podBench) say(ps *api.PodStatus) { b.holds.pod("r1", ps) }

func (b *podBench) call(ctx context.Context, header string, query string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.pod.URL+xds.PathHold+query, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if header != "" {
		req.Header.Set(xds.HeaderHold, header)
	}
	res, err := b.pod.Client().Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, strings.TrimSpace(string(body))
}

func (b *podBench) latched(name string) bool {
	_, err := os.Stat(filepath.Join(b.cfg.StateDir, name))
	return err == nil
}

func TestReadinessProbe(t *testing.T) {
	b := newPodBench(t, nil)
	probe := func() string {
		t.Helper()
		code, body := get(t, b.pod.URL+"/ready")
		return strconv.Itoa(code) + " " + strings.TrimSpace(body)
	}
	want := func(want string) {
		t.Helper()
		if got := probe(); got != want {
			t.Errorf("probe: %s, want %s", got, want)
		}
	}
	want("503 not ready: the data plane does not run yet")
	b.up()
	want("503 not ready: waiting for the first word of the control plane")
	b.say(&api.PodStatus{Settled: true, Replica: "a"})
	want("503 not ready: waiting for the app's containers to be ready")
	b.say(&api.PodStatus{Settled: true, AppReady: true, Clients: 40, Answered: 37, Missing: []string{"shop/cart-7d9f", "shop/web-1"}})
	want("503 not ready: 37 of 40 clients connected; waiting for shop/cart-7d9f, shop/web-1 and 1 more")
	if b.latched(latchReady) {
		t.Error("latched before it was ready")
	}
	b.say(&api.PodStatus{Settled: true, AppReady: true, Propagated: true, Clients: 40, Answered: 40})
	eventually(t, "ready", func() bool { return probe() == "200 ready" })
	if !b.latched(latchReady) || b.reports.end("ready").GetReason() != "answered" {
		t.Errorf("latched %t, told %v", b.latched(latchReady), b.reports.end("ready"))
	}
	if got := b.reports.lastOwn(); got != "ready=true draining=false drained=false 30000" {
		t.Errorf("own pod: %s", got)
	}
	// It is never taken back.
	b.say(&api.PodStatus{Settled: true, AppReady: true, Clients: 40, Answered: 1})
	b.holds.pod("r1", nil)
	want("200 ready")
	// Nor by a restart.
	again := newPodBench(t, func(c *Config) { c.StateDir = b.cfg.StateDir })
	again.up()
	eventually(t, "ready again", func() bool { code, _ := get(t, again.pod.URL+"/ready"); return code == 200 })
	if e := again.reports.end("ready"); e.GetReason() != "latched" || e.GetWaitedMs() != 0 {
		t.Errorf("told %v", e)
	}
}

func TestReadyTimeoutNamesTheLaggards(t *testing.T) {
	b := newPodBench(t, func(c *Config) { c.ReadyTimeout = 150 * time.Millisecond; c.StateDir = "" })
	b.up()
	b.say(&api.PodStatus{Settled: true, AppReady: true, Clients: 2, Answered: 1, Missing: []string{"shop/cart-1"}})
	eventually(t, "ready", func() bool { code, _ := get(t, b.pod.URL+"/ready"); return code == 200 })
	e := b.reports.end("ready")
	if e.GetReason() != "timeout" || e.GetWaitedMs() < 150 || !slices.Equal(e.GetMissing(), []string{"shop/cart-1"}) {
		t.Errorf("told %v", e)
	}
	_, metrics := get(t, b.pod.URL+"/metrics")
	for _, want := range []string{
		`evenkeel_hold_timeouts_total{hold="ready"} 1`, `evenkeel_hold_timeouts_total{hold="drain"} 0`,
		`evenkeel_hold_seconds_count{hold="ready"} 1`, `evenkeel_hold_seconds_count{hold="start"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

func TestSilenceEndsTheReadyHold(t *testing.T) {
	b := newPodBench(t, nil)
	begin := time.Now()
	b.holds.post(func(m *hold.Machine, _ time.Time) { m.Serving() })
	eventually(t, "ready", func() bool { return done(b.holds.ready) })
	if d := time.Since(begin); d < hold.Silence-200*time.Millisecond {
		t.Errorf("after %s", d)
	}
	if e := b.reports.end("ready"); e.GetReason() != "silent" {
		t.Errorf("told %v", e)
	}
}

func TestStartHold(t *testing.T) {
	b := newPodBench(t, nil)
	ask := func(query string) (int, string) {
		t.Helper()
		code, body := get(t, b.debug.URL+"/wait"+query)
		return code, strings.TrimSpace(body)
	}
	for _, bad := range []string{"?timeout=soon", "?timeout=0s", "?timeout=-1s"} {
		if code, _ := ask(bad); code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, code)
		}
	}
	b.up()
	b.holds.learned(discovery.Learned{Missing: []string{"shop/pricing:50051 on shop/p1"}})
	b.say(&api.PodStatus{})
	if code, body := ask("?timeout=100ms"); code != statusUnanswered || !strings.HasPrefix(body, "the bound ended it after ") || !strings.HasSuffix(body, "without shop/pricing:50051 on shop/p1") {
		t.Errorf("%d %s", code, body)
	}
	if e := b.reports.end("start"); e.GetReason() != "timeout" || !b.latched(latchStarted) {
		t.Errorf("told %v", e)
	}
	// The app runs: whoever asks is let go, also of the next worker.
	if code, _ := ask(""); code != statusUnanswered {
		t.Errorf("asked again: %d", code)
	}
	again := newPodBench(t, func(c *Config) { c.StateDir = b.cfg.StateDir })
	again.holds.post(func(m *hold.Machine, _ time.Time) { m.Serving() })
	if code, body := get(t, again.debug.URL+"/wait"); code != 200 || !strings.Contains(body, "before this restart") {
		t.Errorf("%d %s", code, body)
	}

	fresh := newPodBench(t, nil)
	answered := make(chan time.Duration, 1)
	go func() {
		begin := time.Now()
		if code, body := get(t, fresh.debug.URL+"/wait?timeout=10s"); code != 200 || !strings.HasPrefix(body, "over after") {
			t.Errorf("%d %s", code, body)
		}
		answered <- time.Since(begin)
	}()
	time.Sleep(100 * time.Millisecond)
	fresh.up()
	fresh.say(&api.PodStatus{})
	if d := <-answered; d < 100*time.Millisecond || d > 5*time.Second {
		t.Errorf("after %s", d)
	}
}

// gone is a status of a pod that is being deleted.
func gone(drained bool) *api.PodStatus {
	ps := &api.PodStatus{
		Settled: true, AppReady: true, Terminating: true, DeletionGraceSeconds: 65, Exposure: api.PodStatus_NONE,
		Drained: drained, DrainClients: 1,
	}
	if drained {
		ps.DrainReleased = 1
	} else {
		ps.DrainMissing = []string{"shop/cart-1"}
	}
	return ps
}

func TestPreStopHook(t *testing.T) {
	b := newPodBench(t, nil)
	b.up()
	for _, header := range []string{"", "wrong", secret[1:], secret + "0"} {
		if code, _ := b.call(t.Context(), header, ""); code != http.StatusForbidden {
			t.Errorf("header %q: %d", header, code)
		}
	}
	if b.latched(latchDraining) || strings.Contains(b.reports.lastOwn(), "draining=true") {
		t.Error("a stranger has begun the drain")
	}
	// Two containers, and one whose caller goes away.
	type answer struct {
		code int
		body string
		took time.Duration
	}
	answers := make(chan answer, 3)
	begin := time.Now()
	for _, query := range []string{"?container=app", ""} {
		go func() {
			code, body := b.call(t.Context(), secret, query)
			answers <- answer{code, body, time.Since(begin)}
		}()
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if code, _ := b.call(short, secret, ""); code != 0 {
		t.Errorf("answered with %d before the drain was over", code)
	}
	eventually(t, "the control plane is told", func() bool { return strings.Contains(b.reports.lastOwn(), "draining=true drained=false") })
	if !b.latched(latchDraining) {
		t.Error("not latched")
	}
	b.say(gone(false))
	_, body := get(t, b.debug.URL+"/debug/holds")
	var v hold.View
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatal(err)
	}
	if d := v.Holds[hold.Drain]; d.State != "held" || d.Text != "0 of 1 clients have let go; waiting for shop/cart-1" || !v.Terminating {
		t.Errorf("/debug/holds: %s", body)
	}
	select {
	case a := <-answers:
		t.Errorf("released too early: %+v", a)
	case <-time.After(100 * time.Millisecond):
	}
	b.say(gone(true))
	for range 2 {
		if a := <-answers; a.code != 200 || !strings.HasPrefix(a.body, "drain: over after ") || a.took < 100*time.Millisecond {
			t.Errorf("%+v", a)
		}
	}
	if got := b.reports.lastOwn(); got != "ready=false draining=true drained=true 30000" {
		t.Errorf("own pod: %s", got)
	}
	// A late call is answered at once.
	if code, _ := b.call(t.Context(), secret, "?container=late"); code != 200 {
		t.Errorf("a late call: %d", code)
	}
	if e := b.reports.end("drain"); e.GetReason() != "answered" {
		t.Errorf("told %v", e)
	}
}

func TestNoSecretNoHook(t *testing.T) {
	b := newPodBench(t, func(c *Config) { c.HoldSecret = "" })
	if code, _ := b.call(t.Context(), secret, ""); code != http.StatusNotFound {
		t.Errorf("%d", code)
	}
}

func TestHoldOutlastsTheServersBounds(t *testing.T) {
	b := newPodBench(t, nil)
	b.up()
	b.say(gone(false))
	b.pod.Close()
	b.pod = httptest.NewUnstartedServer(b.pod.Config.Handler)
	b.pod.Config.ReadTimeout, b.pod.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	b.pod.Start()
	done := make(chan int, 1)
	go func() { code, _ := b.call(t.Context(), secret, ""); done <- code }()
	time.Sleep(300 * time.Millisecond)
	b.say(gone(true))
	if code := <-done; code != 200 {
		t.Errorf("%d", code)
	}
}

func TestDrainIsTakenBackWhenThePodLivesOn(t *testing.T) {
	b := newPodBench(t, nil)
	b.up()
	alive := &api.PodStatus{Settled: true, AppReady: true, Exposure: api.PodStatus_NONE, Drained: true}
	b.say(alive)
	for range 2 {
		if code, body := b.call(t.Context(), secret, ""); code != 200 {
			t.Errorf("%d %s", code, body)
		}
		// Its container is restarted.
		b.say(&api.PodStatus{Settled: true, Exposure: api.PodStatus_NONE, Drained: true})
		eventually(t, "the endpoint may come back", func() bool { return strings.Contains(b.reports.lastOwn(), "draining=false drained=false") })
		if b.latched(latchDraining) {
			t.Error("the latch is kept")
		}
		b.say(alive)
	}
}

func TestDrainGoesOnInTheNextWorker(t *testing.T) {
	dir := t.TempDir()
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, latchDraining), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(strconv.FormatInt(time.Now().Add(-29900*time.Millisecond).UnixNano(), 10))
	b := newPodBench(t, func(c *Config) { c.StateDir = dir })
	if got := b.reports.lastOwn(); got != "ready=false draining=true drained=false 30000" {
		t.Errorf("own pod, before anything is said: %s", got)
	}
	b.up()
	b.say(gone(false))
	begin := time.Now()
	if code, body := b.call(t.Context(), secret, ""); code != 200 || !strings.Contains(body, "the bound ended it after 30") {
		t.Errorf("%d %s", code, body)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("the bound began anew: %s", d)
	}
	for what, text := range map[string]string{
		"old":        strconv.FormatInt(time.Now().Add(-time.Hour).UnixNano(), 10),
		"the future": strconv.FormatInt(time.Now().Add(time.Hour).UnixNano(), 10),
		"junk":       "x",
		"empty":      "",
	} {
		put(text)
		l := latches{log: quiet, dir: dir}
		if at := l.draining(time.Now()); !at.IsZero() || l.has(latchDraining) {
			t.Errorf("%s: draining since %s", what, at)
		}
	}
}

func TestStateThatCannotBeKept(t *testing.T) {
	for _, dir := range []string{"", "/nonexistent/state"} {
		b := newPodBench(t, func(c *Config) { c.StateDir = dir })
		b.up()
		b.say(&api.PodStatus{Settled: true, Propagated: true})
		eventually(t, "ready", func() bool { return done(b.holds.ready) })
		if code, _ := b.call(t.Context(), secret, ""); code != 200 {
			t.Errorf("%q: %d", dir, code)
		}
	}
}
