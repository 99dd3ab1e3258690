// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// rolloutDesc is the service as the control plane registers it.
var rolloutDesc = grpc.ServiceDesc{
	ServiceName: api.RolloutService,
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Track", ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*server).track(stream) },
	}},
}

// trackStream is one stream of reports at the server.
type trackStream struct {
	t       *testing.T
	reports chan *api.Report // closed when the client has
	stream  grpc.ServerStream
	auth    []string
	end     chan error
	hang    atomic.Bool // not even its end is noticed
}

func (s *server) track(stream grpc.ServerStream) error {
	ts := &trackStream{t: s.t, reports: make(chan *api.Report, 1000), stream: stream, end: make(chan error, 1)}
	md, _ := metadata.FromIncomingContext(stream.Context())
	ts.auth = md.Get(xds.MetadataKeyAuth)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(ts.reports)
		for {
			r := new(api.Report)
			if stream.RecvMsg(r) != nil {
				if ts.hang.Load() {
					<-stream.Context().Done()
				}
				return
			}
			ts.reports <- r
		}
	}()
	s.tracks <- ts
	select {
	case err := <-ts.end:
		return err
	case <-ended:
		return nil
	}
}

func (s *server) tracked() *trackStream {
	s.t.Helper()
	select {
	case ts := <-s.tracks:
		return ts
	case <-time.After(patience):
		s.t.Fatal("no stream of reports came")
		return nil
	}
}

func (ts *trackStream) next() *api.Report {
	ts.t.Helper()
	select {
	case r, ok := <-ts.reports:
		if !ok {
			ts.t.Fatal("the client ended the stream of reports")
		}
		return r
	case <-time.After(patience):
		ts.t.Fatal("no report came")
		return nil
	}
}

// until takes reports until one is as wanted.
func (ts *trackStream) until(what string, is func(*api.Report) bool) *api.Report {
	ts.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if r := ts.next(); is(r) {
			return r
		}
	}
	ts.t.Fatalf("never reported: %s", what)
	return nil
}

func (ts *trackStream) tell(ps *api.PodStatus) {
	ts.t.Helper()
	if err := ts.stream.SendMsg(ps); err != nil {
		ts.t.Fatal(err)
	}
}

// told is what Config's callbacks were given, in order.
type told struct {
	mu    sync.Mutex
	calls []string
}

func (o *told) add(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, fmt.Sprintf(format, args...))
}

func (o *told) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.calls, "; ")
}

func (o *told) config(cfg *Config) {
	cfg.Synced = func() { o.add("synced") }
	cfg.Learned = func(l Learned) { o.add("learned %t %v", l.Complete, l.Missing) }
	cfg.Pod = func(replica string, ps *api.PodStatus) {
		if ps == nil {
			o.add("lost %s", replica)
			return
		}
		o.add("pod %s %s", replica, ps.GetReplica())
	}
}

func TestReportsAndWordsOfAReplica(t *testing.T) {
	s, target := socket(t)
	var sink sink
	var told told
	reg := prometheus.NewRegistry()
	cfg := config(target, &sink)
	cfg.Registerer = reg
	told.config(&cfg)
	c := run(t, cfg)
	c.SetOwn(&api.OwnPod{DrainStreamsMs: 30_000})

	st, ts := s.stream(), s.tracked()
	first := ts.next()
	if got := first.GetSidecar(); !proto.Equal(got, &api.Sidecar{Namespace: "shop", Pod: "client-1", Uid: "u", Workload: "client", Node: "n1", Zone: "z1"}) {
		t.Errorf("sidecar %v", got)
	}
	if first.GetOwn() == nil {
		first = ts.until("own pod", func(r *api.Report) bool { return r.GetOwn() != nil })
	}
	if first.GetOwn().GetDrainStreamsMs() != 30_000 {
		t.Errorf("own %v", first.GetOwn())
	}

	// The app uses a service; discovery and the data plane each say their part.
	c.Resolve(clusterIP)
	st.say(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	st.say(ends(ready(pricing, "10.244.1.7:50051"), marker(pricing)))
	r := ts.until("the service", func(r *api.Report) bool { return len(r.GetServices()) > 0 }).GetServices()[0]
	if !proto.Equal(r, &api.ServiceReport{Service: pricing, Destinations: []string{"address/10.96.3.4:50051"}}) {
		t.Errorf("%v", r)
	}
	c.Report(report.Batch{Services: []report.Service{{Name: pricing, Active: true, Endpoints: []report.Endpoint{{Addr: podIP.Addr, UID: "p", Answer: report.Connected}}}}})
	r = ts.until("the endpoint", func(r *api.Report) bool { return len(r.GetServices()) > 0 }).GetServices()[0]
	if e := r.GetEndpoints(); !r.GetActive() || len(e) != 1 || e[0].GetAnswer() != api.EndpointReport_CONNECTED || e[0].GetAddress() != podIP.String() {
		t.Errorf("%v", r)
	}
	// Many changes within a moment are few reports.
	time.Sleep(2 * coalesce)
	for i := range 1000 {
		c.Report(report.Batch{Direct: []report.Endpoint{{Addr: podIP.Addr, InFlight: i + 1}}})
	}
	n := 0
	ts.until("the last change", func(r *api.Report) bool {
		n++
		return len(r.GetDirect()) == 1 && r.GetDirect()[0].GetInFlight() == 1000
	})
	if n > 20 {
		t.Errorf("%d reports of 1000 changes", n)
	}
	// Nothing changes: the lease is renewed.
	quiet := time.Now()
	ts.until("a heartbeat", func(r *api.Report) bool { return proto.Equal(r, &api.Report{}) })
	if d := time.Since(quiet); d > xds.Lease {
		t.Errorf("a heartbeat after %s", d)
	}

	// It speaks, with an upstream to connect to.
	c.HoldEnded(&api.HoldEnd{Hold: "start", Reason: "answered"})
	ts.tell(&api.PodStatus{Replica: "xds-a", Upstreams: []string{"name/shop/web:50051"}})
	if h := ts.until("the end of a hold", func(r *api.Report) bool { return len(r.GetHolds()) > 0 }).GetHolds(); len(h) != 1 || !h[0].GetRecord() {
		t.Errorf("%v", h)
	}
	wanted := ""
	for range 20 {
		if wanted = requestLine(st.next()); strings.Contains(wanted, "web") {
			break
		}
	}
	if wanted != "Destination +name/shop/web:50051" {
		t.Errorf("request %s", wanted)
	}
	st.say(dests(serviceDest("name/shop/web:50051", web)))
	st.say(ends(ready(web, "10.244.1.9:50051"), marker(web)))
	eventually(t, "the data plane is told to connect", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		return slices.Equal(sink.warmed, []string{web})
	})
	c.Report(report.Batch{Services: []report.Service{{Name: web, Endpoints: []report.Endpoint{{Addr: addr("10.244.1.9:50051"), Answer: report.Failed}}}}})
	const heard = "learned true []; synced; learned false [the learned upstreams]; learned false [web:50051]; pod "
	eventually(t, "the learned upstream has answered", func() bool { return strings.HasSuffix(told.String(), "; learned true []") })
	if got := told.String(); !strings.HasPrefix(got, heard+target+" xds-a; learned false [shop/web:50051 on shop/p-10.244.1.9:50051]") {
		t.Errorf("told %s", got)
	}
	gathered := func(name string) float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "evenkeel_discovery_"+name {
				return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return -1
	}
	if gathered("report_streams") != 1 || gathered("reports_sent_total") < 5 || gathered("report_stream_ends_total") != 0 {
		t.Errorf("metrics %v %v %v", gathered("report_streams"), gathered("reports_sent_total"), gathered("report_stream_ends_total"))
	}

	// It ends the stream: lost, and a new one begins with everything.
	ts.end <- status.Error(codes.Unavailable, "restart")
	eventually(t, "the loss is told", func() bool { return strings.HasSuffix(told.String(), "; lost "+target) })
	ts = s.tracked()
	all := ts.next()
	if all.GetSidecar() == nil || len(all.GetServices()) != 2 || len(all.GetDirect()) != 1 || all.GetOwn() == nil || len(all.GetHolds()) != 1 || all.GetHolds()[0].GetRecord() {
		t.Errorf("first report of the second stream: %v", all)
	}
	if gathered("report_stream_ends_total") != 1 {
		t.Errorf("stream ends %v", gathered("report_stream_ends_total"))
	}
	// A connection that never spoke is not lost once more.
	ts.end <- status.Error(codes.Unavailable, "restart")
	ts = s.tracked()
	if n := strings.Count(told.String(), "lost"); n != 1 {
		t.Errorf("lost %d times", n)
	}
	ts.tell(&api.PodStatus{Replica: "xds-b"})
	eventually(t, "it speaks", func() bool { return strings.HasSuffix(told.String(), " xds-b") })

	// The worker ends for good.
	begin := time.Now()
	c.Leave(t.Context())
	if d := time.Since(begin); d > farewell {
		t.Errorf("leaving took %s", d)
	}
	ts.until("leaving", func(r *api.Report) bool { return r.GetLeaving() })
	select {
	case <-s.tracks:
		t.Error("it came back")
	case <-time.After(10 * cfg.MaxBackoff):
	}
}

func TestLeavingAReplicaThatHangs(t *testing.T) {
	s, target := socket(t)
	cfg := config(target, &sink{})
	heard := make(chan struct{}, 10)
	cfg.Pod = func(string, *api.PodStatus) { heard <- struct{}{} }
	c := run(t, cfg)
	ts := s.tracked()
	ts.tell(&api.PodStatus{})
	<-heard
	// The fixture ends a stream when the client does; this one reads no more.
	ts.hang.Store(true)
	begin := time.Now()
	c.Leave(t.Context())
	if d := time.Since(begin); d < farewell || d > farewell+5*time.Second {
		t.Errorf("leaving took %s, want about %s", d, farewell)
	}
}

// TestEveryReplicaIsReportedTo follows the replicas through ADS, over TLS with a token.
func TestEveryReplicaIsReportedTo(t *testing.T) {
	const name = "evenkeel-xds.evenkeel-system.svc"
	const self = "evenkeel-system/evenkeel-xds:15950"
	ca := newAuthority(t)
	cert := ca.issue(t, name)
	creds := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}}))
	dir := t.TempDir()
	caFile, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	write(t, caFile, ca.pem)
	write(t, token, []byte("token-1"))
	ads, target, _ := serve(t, "tcp", "127.0.0.1:0", creds)
	r1, addr1, stop1 := serve(t, "tcp", "127.0.0.2:0", creds)
	r2, addr2, _ := serve(t, "tcp", "127.0.0.3:0", creds)

	var told told
	cfg := config(target, &sink{})
	cfg.CAFile, cfg.TokenFile, cfg.ServerName = caFile, token, name
	told.config(&cfg)
	c := run(t, cfg)
	st := ads.stream()
	st.want("Destination +name/shop/" + target + " +" + probe)
	select {
	case <-ads.tracks:
		t.Fatal("reports before the replicas are known")
	case <-time.After(50 * time.Millisecond):
	}
	st.say(dests(serviceDest("name/shop/"+target, self)))
	st.say(ends(ready(self, addr1), ready(self, addr2), marker(self)))
	t1, t2 := r1.tracked(), r2.tracked()
	for _, ts := range []*trackStream{t1, t2} {
		if ts.next().GetSidecar().GetPod() != "client-1" || !slices.Equal(ts.auth, []string{"Bearer token-1"}) {
			t.Errorf("authorization %v", ts.auth)
		}
	}
	t1.tell(&api.PodStatus{Replica: "a"})
	eventually(t, "a speaks", func() bool { return strings.Contains(told.String(), "pod "+addr1+" a") })
	t2.tell(&api.PodStatus{Replica: "b"})
	eventually(t, "b speaks", func() bool { return strings.Contains(told.String(), "pod "+addr2+" b") })
	c.HoldEnded(&api.HoldEnd{Hold: "ready", Reason: "timeout"})
	records := 0
	for _, ts := range []*trackStream{t1, t2} {
		if ts.until("the end of a hold", func(r *api.Report) bool { return len(r.GetHolds()) == 1 }).GetHolds()[0].GetRecord() {
			records++
		}
	}
	if records != 1 {
		t.Errorf("%d replicas are to write it down", records)
	}
	// One is killed: it is lost at once, the other stays, and it is tried again.
	stop1()
	eventually(t, "a is lost", func() bool { return strings.HasSuffix(told.String(), "lost "+addr1) })
	r1, _, _ = serve(t, "tcp", addr1, creds)
	t1 = r1.tracked()
	t1.tell(&api.PodStatus{Replica: "a2"})
	eventually(t, "it is back", func() bool { return strings.HasSuffix(told.String(), "pod "+addr1+" a2") })
	// It leaves the collection: lost, and not tried again.
	st.say(response(xds.EndpointType, nil, xds.EndpointName(self, addr(addr1))))
	eventually(t, "a is lost for good", func() bool { return strings.HasSuffix(told.String(), "pod "+addr1+" a2; lost "+addr1) })
	select {
	case <-r1.tracks:
		t.Error("a replica that is gone is reported to")
	case <-time.After(10 * cfg.MaxBackoff):
	}
	// Nobody is left in it: who answers there is.
	st.say(response(xds.EndpointType, nil, xds.EndpointName(self, addr(addr2))))
	if ts := ads.tracked(); ts.next().GetSidecar() == nil {
		t.Error("no report to the target")
	}
}

func TestControlPlaneThatTakesNoReports(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, streams: make(chan *serverStream, 100)}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(ln) })
	t.Cleanup(func() { g.Stop(); done.Wait() })

	log := &lockedLog{}
	var told told
	cfg := config("unix://"+path, &sink{})
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	told.config(&cfg)
	c := run(t, cfg)
	s.stream().say(response(xds.DestinationType, nil, probe))
	eventually(t, "synced", c.Synced)
	eventually(t, "it is said", func() bool { return log.has("is older than this sidecar") })
	time.Sleep(10 * cfg.MaxBackoff)
	if n := strings.Count(log.String(), "is older than this sidecar"); n != 1 {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
	if got := told.String(); got != "learned true []; synced" {
		t.Errorf("told %s", got)
	}
}
