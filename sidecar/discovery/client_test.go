// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

const patience = 20 * time.Second

// server is a control plane over the real transport, whose every word is the
// test's. (The real one is met in cmd/internal/sidecarcmd's tests.)
type server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	t       *testing.T
	streams chan *serverStream
	tracks  chan *trackStream
	refuse  func(context.Context) error
}

type serverStream struct {
	t        *testing.T
	auth     []string
	requests chan *discoveryv3.DeltaDiscoveryRequest
	send     func(*discoveryv3.DeltaDiscoveryResponse) error
	end      chan error // ends the stream with this
	nonce    int
}

func (s *server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if s.refuse != nil {
		if err := s.refuse(stream.Context()); err != nil {
			return err
		}
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	st := &serverStream{
		t: s.t, auth: md.Get(xds.MetadataKeyAuth),
		requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 100), send: stream.Send, end: make(chan error, 1),
	}
	go func() {
		defer close(st.requests)
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			st.requests <- req
		}
	}()
	s.streams <- st
	select {
	case err := <-st.end:
		return err
	case <-stream.Context().Done():
		return nil
	}
}

// serve listens on target ("unix:…" or an address) until the test ends or stop
// is called.
func serve(t *testing.T, network, address string, opts ...grpc.ServerOption) (s *server, addr string, stop func()) {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s = &server{t: t, streams: make(chan *serverStream, 100), tracks: make(chan *trackStream, 100)}
	g := grpc.NewServer(opts...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	g.RegisterService(&rolloutDesc, s)
	var done sync.WaitGroup
	done.Go(func() { _ = g.Serve(ln) })
	stop = sync.OnceFunc(func() { g.Stop(); done.Wait() })
	t.Cleanup(stop)
	return s, ln.Addr().String(), stop
}

func (s *server) stream() *serverStream {
	s.t.Helper()
	select {
	case st := <-s.streams:
		return st
	case <-time.After(patience):
		s.t.Fatal("no stream came")
		return nil
	}
}

func (st *serverStream) next() *discoveryv3.DeltaDiscoveryRequest {
	st.t.Helper()
	select {
	case req, ok := <-st.requests:
		if !ok {
			st.t.Fatal("the client ended the stream")
		}
		return req
	case <-time.After(patience):
		st.t.Fatal("no request came")
		return nil
	}
}

func (st *serverStream) want(line string) {
	st.t.Helper()
	if got := requestLine(st.next()); got != line {
		st.t.Fatalf("request\n%s\nwant\n%s", got, line)
	}
}

// say sends a response and waits for its answer, an ACK.
func (st *serverStream) say(res *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	st.t.Helper()
	st.tell(res)
	for {
		req := st.next()
		if req.GetResponseNonce() == res.GetNonce() {
			return req
		}
	}
}

func (st *serverStream) tell(res *discoveryv3.DeltaDiscoveryResponse) {
	st.t.Helper()
	st.nonce++
	res.Nonce = fmt.Sprintf("nonce-%d", st.nonce)
	if err := st.send(res); err != nil {
		st.t.Fatal(err)
	}
}

// sink is the data plane, from another goroutine.
type sink struct {
	mu       sync.Mutex
	table    *router.Table
	services map[string]*balancer.Spec
	warmed   []string
	changed  chan struct{}
}

func (s *sink) Routes(t *router.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table = t
	s.wake()
}

func (s *sink) Service(name string, spec *balancer.Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services == nil {
		s.services = map[string]*balancer.Spec{}
	}
	if spec == nil {
		delete(s.services, name)
	} else {
		s.services[name] = spec
	}
	s.wake()
}

func (s *sink) Warm(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warmed = append(s.warmed, name)
	s.wake()
}

func (s *sink) wake() {
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

// waitFor waits until f holds.
func (s *sink) waitFor(t *testing.T, what string, f func(table *router.Table, services map[string]*balancer.Spec) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		ok, changed := f(s.table, s.services), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("never happened: %s", what)
		}
	}
}

func (s *sink) waitKind(t *testing.T, k router.Key, kind router.Kind) {
	t.Helper()
	s.waitFor(t, fmt.Sprintf("%s is %s", k, kind), func(table *router.Table, _ map[string]*balancer.Spec) bool {
		d, ok := table.Lookup(k)
		return ok && d.Kind == kind
	})
}

func config(target string, s Sink) Config {
	return Config{
		Logger: slog.New(slog.DiscardHandler), Target: target, Sink: s,
		Node:       Node{Namespace: "shop", Pod: "client-1", UID: "u", NodeName: "n1", Workload: "client", Zone: "z1"},
		MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond,
		Rand: mrand.New(mrand.NewPCG(1, 2)),
	}
}

func run(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not end")
		}
		if c.Synced() {
			t.Error("synced after the end")
		}
	})
	return c
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

const probe = "name/shop/kubernetes.default:443"

// unix is a server on a socket and what the client wants as its target.
func socket(t *testing.T) (s *server, target string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "xds.sock")
	s, _, _ = serve(t, "unix", path)
	return s, "unix://" + path
}

func TestConversation(t *testing.T) {
	s, target := socket(t)
	var sink sink
	reg := prometheus.NewRegistry()
	cfg := config(target, &sink)
	cfg.Registerer = reg
	c := run(t, cfg)

	st := s.stream()
	first := st.next()
	if got, want := requestLine(first), "Destination +"+probe; got != want {
		t.Errorf("first request %s, want %s", got, want)
	}
	if n := first.GetNode(); n.GetId() != "shop/client-1" {
		t.Errorf("node %v", n)
	}
	for k, want := range map[string]string{
		xds.NodeNamespace: "shop", xds.NodePod: "client-1", xds.NodeUID: "u", xds.NodeNode: "n1", xds.NodeWorkload: "client", xds.NodeZone: "z1",
	} {
		if got := first.GetNode().GetMetadata().GetFields()[k].GetStringValue(); got != want {
			t.Errorf("node metadata %s: %q, want %q", k, got, want)
		}
	}
	if len(st.auth) != 0 {
		t.Error("a token in plain text")
	}
	if c.Synced() || c.Answered() {
		t.Error("synced before any answer")
	}
	st.say(response(xds.DestinationType, nil, probe))
	eventually(t, "synced", c.Synced)

	for range 100 {
		c.Resolve(clusterIP)
	}
	st.want("Destination +address/10.96.3.4:50051")
	st.tell(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	var lines []string
	lines = append(lines, requestLine(st.next()), requestLine(st.next()))
	slices.Sort(lines)
	if got, want := strings.Join(lines, "\n"), "Destination ack nonce-2\nLbEndpoint +endpoints/shop/pricing:50051/*"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	st.say(ends(ready(pricing, "10.244.1.7:50051"), marker(pricing)))
	sink.waitKind(t, clusterIP, router.Service)

	// A malformed one among good ones.
	bad := ready(pricing, "10.244.1.8:50051")
	bad.Resource.Value = []byte{0xff}
	nack := st.say(ends(bad, ready(pricing, "10.244.1.9:50051")))
	if e := nack.GetErrorDetail(); e.GetCode() != int32(codes.InvalidArgument) || !strings.Contains(e.GetMessage(), "10.244.1.8:50051") {
		t.Errorf("NACK %v", e)
	}
	sink.waitFor(t, "the good one is taken", func(_ *router.Table, s map[string]*balancer.Spec) bool {
		return len(s[pricing].Endpoints) == 2
	})

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if age := time.Since(time.Unix(0, int64(got["evenkeel_discovery_last_answer_timestamp_seconds"]*1e9))); age > patience || age < -time.Second {
		t.Errorf("last answer %s ago", age)
	}
	delete(got, "evenkeel_discovery_last_answer_timestamp_seconds")
	maps.DeleteFunc(got, func(name string, _ float64) bool { return strings.Contains(name, "_report") }) // this server takes none
	want := map[string]float64{
		"evenkeel_discovery_connected": 1, "evenkeel_discovery_disconnects_total": 0, "evenkeel_discovery_rejected_responses_total": 1,
		"evenkeel_discovery_replicas": 1, "evenkeel_discovery_resources destination": 1, "evenkeel_discovery_resources service": 1, "evenkeel_discovery_resources endpoint": 2,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

func TestLastGoodStateAndResubscription(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	s, _, stop := serve(t, "unix", path)
	var sink sink
	c := run(t, config("unix://"+path, &sink))
	c.Resolve(clusterIP)
	st := s.stream()
	st.say(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	st.say(ends(ready(pricing, "10.244.1.7:50051"), ready(pricing, "10.244.1.8:50051"), marker(pricing)))
	sink.waitKind(t, clusterIP, router.Service)

	stop()
	eventually(t, "the outage is noticed", func() bool { return !c.Synced() })
	if !c.Answered() {
		t.Error("it has answered once")
	}
	c.Resolve(webName) // meanwhile
	time.Sleep(50 * time.Millisecond)
	sink.waitKind(t, clusterIP, router.Service)
	sink.waitFor(t, "the endpoints stay", func(_ *router.Table, s map[string]*balancer.Spec) bool {
		return len(s[pricing].Endpoints) == 2
	})

	s, _, _ = serve(t, "unix", path)
	st = s.stream()
	st.want("Destination +address/10.96.3.4:50051 +" + probe + " +name/shop/web:50051 have address/10.96.3.4:50051@v1")
	st.want("LbEndpoint +endpoints/shop/pricing:50051/* have endpoints/shop/pricing:50051/*@w1 endpoints/shop/pricing:50051/10.244.1.7:50051@m1 endpoints/shop/pricing:50051/10.244.1.8:50051@m1")
	if c.Synced() {
		t.Error("synced before the answer")
	}
	// One endpoint went away during the outage.
	st.say(response(xds.EndpointType, nil, xds.EndpointName(pricing, addr("10.244.1.8:50051"))))
	eventually(t, "synced", c.Synced)
	sink.waitFor(t, "the endpoint is gone", func(_ *router.Table, s map[string]*balancer.Spec) bool {
		return len(s[pricing].Endpoints) == 1
	})
}

func TestServerThatRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xds.sock")
	s, _, _ := serve(t, "unix", path)
	var refusals sync.WaitGroup
	refusals.Add(3)
	n := 0
	s.refuse = func(context.Context) error {
		if n++; n <= 3 {
			refusals.Done()
			return status.Error(codes.PermissionDenied, "the token is of another pod")
		}
		return nil
	}
	var sink sink
	run(t, config("unix://"+path, &sink))
	refusals.Wait()
	s.stream() // it tries again and again
}

// TestAnswersThatWaitAreBounded: a server that sends and never reads.
func TestAnswersThatWaitAreBounded(t *testing.T) {
	var o outbox
	ok := true
	for range maxAcks {
		ok = ok && o.ack(xds.EndpointType, "n", "")
	}
	if !ok {
		t.Error("given up too early")
	}
	if o.ack(xds.EndpointType, "n", "") {
		t.Error("never given up")
	}
}

func TestResolveNeverBlocks(t *testing.T) {
	// Run is not running: nobody looks.
	var sink sink
	c, err := New(config("unix:///nowhere", &sink))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 1000 {
			c.Resolve(router.Key{Name: fmt.Sprintf("n%d:1", i%10)})
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("Resolve blocks")
	}
	if len(c.want) != 10 {
		t.Errorf("%d keys wait, want 10", len(c.want))
	}
}

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTLSAndTokenAreReadAtEachConnect(t *testing.T) {
	const name = "evenkeel-xds.evenkeel-system.svc"
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	old, fresh := newAuthority(t), newAuthority(t)
	var mu sync.Mutex
	cert := old.issue(t, name)
	use := func(c tls.Certificate) { mu.Lock(); cert = c; mu.Unlock() }
	s, address, _ := serve(t, "tcp", "127.0.0.1:0", grpc.Creds(credentials.NewTLS(&tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			c := cert
			return &c, nil
		},
	})))
	var sink sink
	cfg := config(address, &sink)
	cfg.CAFile, cfg.TokenFile, cfg.ServerName = ca, token, name
	log := &lockedLog{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	c := run(t, cfg)

	// Nothing is there yet: each attempt says which file.
	eventually(t, "the missing token is named", func() bool { return log.has(token) })
	write(t, token, []byte("  \n"))
	eventually(t, "the empty token is named", func() bool { return log.has("is empty") })
	write(t, token, []byte("token-1\n"))
	eventually(t, "the missing CA is named", func() bool { return log.has(ca) })
	write(t, ca, []byte("not PEM"))
	eventually(t, "the broken CA is named", func() bool { return log.has("holds no PEM certificate") })
	write(t, ca, old.pem)
	st := s.stream()
	if got := strings.Join(st.auth, ","); got != "Bearer token-1" {
		t.Errorf("authorization %q", got)
	}
	st.say(response(xds.DestinationType, nil, probe))
	eventually(t, "synced", c.Synced)

	// The root rotates: both are valid for a while, then the new one alone.
	write(t, token, []byte("token-2"))
	write(t, ca, append(slices.Clone(old.pem), fresh.pem...))
	use(fresh.issue(t, name))
	st.end <- status.Error(codes.Unavailable, "restart")
	st = s.stream()
	if got := strings.Join(st.auth, ","); got != "Bearer token-2" {
		t.Errorf("authorization %q", got)
	}
	// An impostor: another root, or another name.
	write(t, ca, fresh.pem)
	use(old.issue(t, name))
	st.end <- errors.New("restart")
	eventually(t, "another root is refused", func() bool { return log.has("certificate signed by unknown authority") })
	use(fresh.issue(t, "somebody.else"))
	eventually(t, "another name is refused", func() bool { return log.has("not " + name) })
	use(fresh.issue(t, name))
	s.stream()
}

type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lockedLog) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func TestConfigErrorsAllAtOnce(t *testing.T) {
	_, err := New(Config{Target: "nohost", MinBackoff: time.Hour, MaxBackoff: time.Second})
	for _, want := range []string{"Logger", "Sink", "Node.Namespace", "Node.Pod", `Target "nohost"`, "CAFile", "MinBackoff"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
	cfg := config("unix:///x", &sink{})
	cfg.TokenFile = "/token"
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "plain text") {
		t.Errorf("a token for a socket: %v", err)
	}
}

func TestPauses(t *testing.T) {
	p := pauses{min: 100 * time.Millisecond, max: 5 * time.Second, rnd: mrand.New(mrand.NewPCG(1, 2))}
	for failures, want := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 4: 800 * time.Millisecond, 7: 5 * time.Second, 1000: 5 * time.Second,
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := p.next(failures)
			if d < want/2 || d > want {
				t.Errorf("after %d failures: %s, want between %s and %s", failures, d, want/2, want)
			}
			seen[d] = true
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures: hardly any jitter", failures)
		}
	}
}

func TestOutageIsLoggedOnceAMinute(t *testing.T) {
	var log lockedLog
	l := slog.New(slog.NewTextHandler(&log, nil))
	var q complaint
	for i := range 120 {
		q.disconnected(t.Context(), l, epoch.Add(time.Duration(i)*time.Second), "x:1", errors.New("refused"), time.Second)
	}
	if n := strings.Count(log.text.String(), "no connection to the control plane"); n != 2 {
		t.Errorf("%d lines in two minutes, want 2", n)
	}
	q.connected(l, "x:1", "")
	q.disconnected(t.Context(), l, epoch.Add(121*time.Second), "x:1", errors.New("refused"), time.Second)
	if n := strings.Count(log.text.String(), "no connection to the control plane"); n != 3 {
		t.Errorf("%d lines, want 3: a new outage is news", n)
	}
}
