// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/rollout"
	"evenkeel.dev/xds/snapshot"
)

// replica is a control-plane replica that really serves: Server and Tracker.
type replica struct {
	t       testing.TB
	srv     *Server
	tracker *rollout.Tracker
	log     *logBuffer
	dial    func(context.Context) (net.Conn, error)
	stop    func()
}

// newReplica listens on a real socket of that network.
func newReplica(t testing.TB, network string, change func(*Config, *rollout.Config)) *replica {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	r := serveReplica(t, ln, change)
	r.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, ln.Addr().String())
	}
	return r
}

func serveReplica(t testing.TB, ln net.Listener, change func(*Config, *rollout.Config)) *replica {
	t.Helper()
	r := &replica{t: t, log: &logBuffer{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg, rc := Config{Logger: log}, rollout.Config{Logger: log, Replica: "xds-1", Settle: time.Millisecond}
	if change != nil {
		change(&cfg, &rc)
	}
	var err error
	if r.tracker, err = rollout.New(rc); err != nil {
		t.Fatal(err)
	}
	cfg.Observer, cfg.Tracker = r.tracker, r.tracker
	if r.srv, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- r.srv.Serve(ctx, ln, nil) }()
	go func() { done <- r.tracker.Run(ctx, r.srv) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("stopped with %v", err)
			}
		}
	}
	t.Cleanup(r.stop)
	return r
}

func (r *replica) apply(changes ...snapshot.Change) { r.srv.Apply(changes, time.Now()) }

// runningPod is a Pod whose app is ready, and its sidecar is not.
func runningPod(name string, number int) snapshot.Change {
	c := pod(name, "uid-"+name)
	c.Pod.AppReady = true
	c.Pod.IPs = append(c.Pod.IPs, endpointAddr(number))
	return c
}

// warming makes a slice's endpoints those of pods that are not ready yet.
func warming(c snapshot.Change) snapshot.Change {
	for i := range c.Slice.Endpoints {
		c.Slice.Endpoints[i].Ready, c.Slice.Endpoints[i].Serving = false, false
	}
	return c
}

// reporterClient is a sidecar's side of Track.
type reporterClient struct {
	t      testing.TB
	stream grpc.ClientStream
	cancel context.CancelFunc
	last   *api.PodStatus
	got    int
}

func (r *replica) track(n xds.Node, token string, opts ...grpc.DialOption) *reporterClient {
	r.t.Helper()
	cc, err := grpc.NewClient("passthrough:///replica", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) }))...)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(func() { cancel(); cc.Close() })
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, xds.MetadataKeyAuth, xds.AuthSchemeBearer+token)
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, api.RolloutTrack)
	if err != nil {
		r.t.Fatal(err)
	}
	return &reporterClient{t: r.t, stream: stream, cancel: cancel}
}

func sidecarOf(pod string) xds.Node {
	return xds.Node{Namespace: "shop", Pod: pod, UID: "uid-" + pod, Workload: "deployment/x", Node: "node1"}
}

// hello is a first Report.
func hello(n xds.Node, rest *api.Report) *api.Report {
	rest.Sidecar = &api.Sidecar{Namespace: n.Namespace, Pod: n.Pod, Uid: n.UID, Workload: n.Workload, Node: n.Node, Zone: n.Zone}
	return rest
}

func (r *replica) reporter(pod string, first *api.Report) *reporterClient {
	r.t.Helper()
	c := r.track(sidecarOf(pod), "")
	c.send(hello(sidecarOf(pod), first))
	return c
}

func (c *reporterClient) send(r *api.Report) {
	c.t.Helper()
	if err := c.stream.SendMsg(r); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *reporterClient) recv() error {
	s := &api.PodStatus{}
	if err := c.stream.RecvMsg(s); err != nil {
		return err
	}
	c.last = s
	c.got++
	return nil
}

// until receives until ok.
func (c *reporterClient) until(what string, ok func(s *api.PodStatus) bool) {
	c.t.Helper()
	watchdog := time.AfterFunc(15*time.Second, c.cancel)
	defer watchdog.Stop()
	for {
		if err := c.recv(); err != nil {
			c.t.Fatalf("waiting until %s: %v; the last status is %v", what, err, c.last)
		}
		if ok(c.last) {
			return
		}
	}
}

// fails receives until the stream ends, and wants its error to say all parts.
func (c *reporterClient) fails(parts ...string) {
	c.t.Helper()
	watchdog := time.AfterFunc(10*time.Second, c.cancel)
	defer watchdog.Stop()
	for {
		err := c.recv()
		if err == nil {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				c.t.Fatalf("the stream ended with %q, which does not say %q", err, p)
			}
		}
		return
	}
}

// pricingReport is an active client of pricing that has said that of 10.244.0.1.
func pricingReport(change func(*api.EndpointReport)) *api.Report {
	s := &api.ServiceReport{Service: pricing, Active: true, Destinations: []string{pricingName}}
	if change != nil {
		e := &api.EndpointReport{Address: "10.244.0.1:50051", Uid: "uid-pricing-1"}
		change(e)
		s.Endpoints = []*api.EndpointReport{e}
	}
	return &api.Report{Services: []*api.ServiceReport{s}}
}

func isConnected(e *api.EndpointReport) { e.Answer = api.EndpointReport_CONNECTED }
func isDraining(e *api.EndpointReport)  { e.Draining = true }

// A pod's life, over real sockets.
func TestTrack(t *testing.T) {
	r := newReplica(t, "tcp", nil)
	r.apply(service("pricing", "10.96.0.4"), runningPod("pricing-1", 1), warming(slice("pricing", 1)))
	r.srv.Synced()
	client := r.reporter("web-1", pricingReport(nil))
	server := r.reporter("pricing-1", &api.Report{})
	server.until("it knows who is missing", func(s *api.PodStatus) bool {
		return s.GetAppReady() && s.GetSettled() && !s.GetPropagated() && s.GetClients() == 1 && len(s.GetMissing()) == 1 && s.GetMissing()[0] == "shop/web-1" && s.GetReplica() == "xds-1"
	})
	client.send(pricingReport(isConnected))
	start := time.Now()
	server.until("it is propagated", func(s *api.PodStatus) bool { return s.GetPropagated() })
	if took := time.Since(start); took > 3*time.Second { // 25 ms, on a machine that is not starved
		t.Errorf("told after %s", took)
	}
	v, err := r.tracker.View(t.Context(), "shop", "deployment/x")
	if err != nil || len(v.Pods) != 2 || v.Pods[0].Pod != "pricing-1" || v.Pods[0].State != "warming" || v.Pods[0].Answered != 1 {
		t.Errorf("seen from outside: %+v, %v", v, err)
	}

	// The hook is called: everybody's endpoint drains, though the slice says ready.
	ads := connectReplica(r, sidecarOf("web-2"))
	r.apply(slice("pricing", 1))
	ads.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	ads.wantEndpoints(pricing, ready(1)...)
	client2 := r.reporter("web-2", pricingReport(isConnected))
	server.send(&api.Report{Own: &api.OwnPod{Ready: true, Draining: true, DrainStreamsMs: 30000}})
	ads.wantEndpoints(pricing, "10.244.0.1:50051=DRAINING")
	server.until("it is told who holds", func(s *api.PodStatus) bool {
		return !s.GetDrained() && s.GetDrainClients() == 2 && s.GetDrainReleased() == 0
	})
	client.send(pricingReport(isDraining))
	client2.send(&api.Report{Leaving: true})
	server.until("it is drained", func(s *api.PodStatus) bool { return s.GetDrained() && s.GetDrainClients() == 1 })

	deleted := runningPod("pricing-1", 1)
	deleted.Pod.Terminating = true
	r.apply(deleted)
	server.until("it hears that it is deleted", func(s *api.PodStatus) bool { return s.GetTerminating() })
	if n := metricValue(t, r.srv.metrics.tracks); n != 3 {
		t.Errorf("%v streams of reports, want 3", n)
	}
}

func connectReplica(r *replica, n xds.Node) *client {
	r.t.Helper()
	cc, err := grpc.NewClient("passthrough:///replica", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) }))
	if err != nil {
		r.t.Fatal(err)
	}
	return connectOver(r.t, cc, n, "")
}

func TestTrackAuthentication(t *testing.T) {
	i := newIssuer(t, "k1")
	token := func(pod string) string { return i.sign("k1", i.keys["k1"], i.claims(pod)) }
	r := newReplica(t, "tcp", func(c *Config, _ *rollout.Config) {
		c.Authenticator, c.PodWait = i.verifier(nil), 100*time.Millisecond
	})
	r.apply(runningPod("web-1", 1), pod("web-2", "other"))
	r.srv.Synced()
	for name, tt := range map[string]struct {
		node  xds.Node
		token string
		parts []string
	}{
		"no token":                  {sidecarOf("web-1"), "", []string{"Unauthenticated", "authorization"}},
		"nonsense":                  {sidecarOf("web-1"), "nonsense", []string{"Unauthenticated", "not a signed JWT"}},
		"another pod's token":       {sidecarOf("web-1"), token("web-3"), []string{"PermissionDenied", "shop/web-3", "shop/web-1"}},
		"another UID":               {xds.Node{Namespace: "shop", Pod: "web-1", UID: "x"}, token("web-1"), []string{"PermissionDenied", "UID x"}},
		"a pod that does not exist": {sidecarOf("web-9"), token("web-9"), []string{"Unauthenticated", "does not exist"}},
		"a pod that was replaced":   {sidecarOf("web-2"), token("web-2"), []string{"Unauthenticated", "uid-web-2", "does not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.track(tt.node, tt.token)
			c.send(hello(tt.node, &api.Report{}))
			c.fails(tt.parts...)
		})
	}
	c := r.track(sidecarOf("web-1"), token("web-1"))
	c.send(hello(xds.Node{Namespace: "shop", Pod: "web-1", Node: "elsewhere"}, &api.Report{}))
	c.until("it is told of itself", func(s *api.PodStatus) bool { return s.GetAppReady() })
	r.apply(gone(pod("web-1", "")))
	c.fails("Unauthenticated", "is gone")
	v, err := r.tracker.View(t.Context(), "shop", "")
	if err != nil || len(v.Pods) != 1 || v.Pods[0].State != "gone" || v.Pods[0].UID != "uid-web-1" {
		t.Errorf("afterwards: %+v, %v", v, err)
	}
}

func TestMalformedReports(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second *api.Report
		parts         []string
	}{
		"nobody says who it is":     {&api.Report{}, nil, []string{"InvalidArgument", "sidecar"}},
		"no name":                   {&api.Report{Sidecar: &api.Sidecar{Namespace: "shop"}}, nil, []string{"InvalidArgument", "sidecar", "<namespace>/<pod>"}},
		"who it is, twice":          {hello(sidecarOf("web-1"), &api.Report{}), hello(sidecarOf("web-1"), &api.Report{}), []string{"InvalidArgument", "sidecar", "first"}},
		"the first cannot be read":  {hello(sidecarOf("web-1"), &api.Report{Services: []*api.ServiceReport{{Service: "x"}}}), nil, []string{"InvalidArgument", "services[0].service"}},
		"the second cannot be read": {hello(sidecarOf("web-1"), &api.Report{}), &api.Report{Direct: []*api.EndpointReport{{Address: "x"}}}, []string{"InvalidArgument", "direct[0].address"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplica(t, "unix", nil)
			r.srv.Synced()
			c := r.track(sidecarOf("web-1"), "")
			c.send(tt.first)
			if tt.second != nil {
				c.send(tt.second)
			}
			c.fails(tt.parts...)
			if tt.first.GetSidecar().GetPod() == "" || tt.second.GetSidecar() != nil {
				return
			}
			eventually(t, "it is counted and logged", func() bool {
				return metricValue(t, r.srv.metrics.badReports) == 1 && strings.Contains(r.log.String(), "sidecar=shop/web-1")
			})
		})
	}
}

// The server says something each ReportInterval, and a sidecar that says nothing
// keeps its stream; only its lease is over.
func TestTrackHeartbeatAndLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 16)
		r := serveReplica(t, lis, func(_ *Config, rc *rollout.Config) { rc.Settle = 0 })
		r.dial = lis.DialContext
		r.apply(service("pricing", "10.96.0.4"), runningPod("pricing-1", 1), warming(slice("pricing", 1)))
		r.srv.Synced()
		client := r.reporter("web-1", pricingReport(nil))
		server := r.reporter("pricing-1", &api.Report{})
		beats, stopBeats := time.NewTicker(xds.ReportInterval), make(chan struct{})
		go func() {
			defer beats.Stop()
			for {
				select {
				case <-beats.C:
					server.send(&api.Report{})
				case <-stopBeats:
					return
				}
			}
		}()
		start := time.Now()
		server.until("it is settled", func(s *api.PodStatus) bool { return s.GetSettled() })
		if took := time.Since(start); took < xds.Settle || took > xds.Settle+time.Second {
			t.Errorf("settled after %s", took)
		}
		if !server.last.GetPropagated() || server.last.GetClients() != 0 {
			t.Errorf("a client that has said nothing for a while is waited for: %v", server.last)
		}
		if n := int(time.Since(start) / xds.ReportInterval); server.got < n {
			t.Errorf("%d statuses in %s", server.got, time.Since(start))
		}
		client.send(&api.Report{})
		server.until("the client is back", func(s *api.PodStatus) bool { return !s.GetPropagated() && s.GetClients() == 1 })
		back := time.Now()
		server.until("its lease is over again", func(s *api.PodStatus) bool { return s.GetPropagated() })
		if took := time.Since(back); took < xds.Lease || took > xds.Lease+500*time.Millisecond {
			t.Errorf("the lease was over after %s", took)
		}
		close(stopBeats)
		client.cancel()
		server.cancel()
		r.stop()
	})
}

// A sidecar that does not read is closed after StallTimeout; it holds nobody up,
// and what it reports still counts until then.
func TestTrackSlowReader(t *testing.T) {
	r := newReplica(t, "tcp", func(c *Config, _ *rollout.Config) { c.StallTimeout = 300 * time.Millisecond })
	r.apply(service("pricing", "10.96.0.4"), runningPod("pricing-1", 1), warming(slice("pricing", 1)), runningPod("pricing-2", 2))
	r.srv.Synced()
	n := sidecarOf("pricing-1")
	slow := r.track(n, "", grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16), grpc.WithStaticStreamWindowSize(1<<16))
	slow.send(hello(n, &api.Report{}))
	other := r.reporter("web-1", pricingReport(nil))
	fast := r.reporter("pricing-2", &api.Report{})
	// Its statuses grow and change: its workload's other pod uses ever other names.
	long := strings.Repeat("x", 60)
	deadline := time.Now().Add(15 * time.Second)
	for i := 0; metricValue(t, r.srv.metrics.slow) == 0; i++ {
		if time.Now().After(deadline) {
			t.Fatal("it is not closed")
		}
		rep := pricingReport(nil)
		rep.Services[0].Destinations = nil
		for j := range 60 {
			rep.Services[0].Destinations = append(rep.Services[0].Destinations, fmt.Sprintf("name/shop/%s.%s.n%d:%d", long, long, i, j+1))
		}
		other.send(rep)
		sent := time.Now()
		fast.until("the others are told", func(s *api.PodStatus) bool {
			return slices.ContainsFunc(s.GetUpstreams(), func(u string) bool { return strings.Contains(u, fmt.Sprintf(".n%d:", i)) })
		})
		if took := time.Since(sent); took > 2*time.Second {
			t.Errorf("a slow sidecar held the others up for %s", took)
		}
	}
	eventually(t, "the log names it", func() bool {
		log := r.log.String()
		return strings.Contains(log, "left statuses unread") && strings.Contains(log, "sidecar=shop/pricing-1")
	})
}

func TestTrackShutdownAndRestart(t *testing.T) {
	objects := []snapshot.Change{service("pricing", "10.96.0.4"), runningPod("pricing-1", 1), warming(slice("pricing", 1))}
	r := newReplica(t, "unix", nil)
	r.apply(objects...)
	r.srv.Synced()
	server := r.reporter("pricing-1", &api.Report{})
	server.until("propagated", func(s *api.PodStatus) bool { return s.GetPropagated() })
	r.srv.endStreams()
	server.fails("Unavailable", "shutting down")
	r.stop()
	if _, err := r.tracker.View(t.Context(), "shop", ""); !errors.Is(err, rollout.ErrStopped) {
		t.Errorf("View of one that has stopped: %v", err)
	}

	// It comes back and claims nothing until it is settled.
	r = newReplica(t, "unix", func(_ *Config, rc *rollout.Config) { rc.Settle = 500 * time.Millisecond })
	r.apply(objects...)
	r.srv.Synced()
	began := time.Now()
	server = r.reporter("pricing-1", &api.Report{})
	client := r.reporter("web-1", pricingReport(nil))
	server.until("it is settled", func(s *api.PodStatus) bool {
		if !s.GetSettled() && (s.GetPropagated() || s.GetDrained()) {
			t.Errorf("it claims something: %v", s)
		}
		return s.GetSettled()
	})
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("settled after %s", took)
	}
	if s := server.last; s.GetPropagated() || s.GetClients() != 1 {
		t.Errorf("settled: %v", s)
	}
	client.send(pricingReport(isConnected))
	server.until("propagated again", func(s *api.PodStatus) bool { return s.GetPropagated() })
}

// Without a Tracker there is no such service.
func TestNoTracker(t *testing.T) {
	w := newWorld(t, nil)
	w.synced()
	r := &replica{t: t, dial: w.lis.DialContext}
	c := r.track(sidecarOf("web-1"), "")
	c.send(hello(sidecarOf("web-1"), &api.Report{}))
	c.fails("Unimplemented", api.RolloutService)
}
