// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

var epoch = time.Unix(1_000_000, 0)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// bench is a state with its outbox, and a sink that applies what it is told the
// way the data plane does, and checks the promises of Sink on the way.
type bench struct {
	t     *testing.T
	log   bytes.Buffer
	out   outbox
	state *state

	calls    []string
	table    *router.Table
	services map[string]*balancer.Balancer
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, services: map[string]*balancer.Balancer{}}
	b.state = newState(slog.New(slog.NewTextHandler(&b.log, nil)), "shop", &b.out)
	return b
}

func (b *bench) Routes(table *router.Table) {
	b.calls = append(b.calls, "routes")
	b.table = table
	for k, d := range table.Keys() {
		if d.Kind == router.Service && b.services[d.Service] == nil {
			b.t.Errorf("the table routes %s to %s, of which the sink has no endpoints", k, d.Service)
		}
	}
}

func (b *bench) Service(name string, spec *balancer.Spec) {
	if spec == nil {
		b.calls = append(b.calls, "gone "+name)
		for k, d := range b.table.Keys() {
			if d.Service == name {
				b.t.Errorf("%s is gone while %s is routed to it", name, k)
			}
		}
		if b.services[name] == nil {
			b.t.Errorf("%s is gone but never was", name)
		}
		delete(b.services, name)
		return
	}
	b.calls = append(b.calls, "service "+name)
	if b.services[name] == nil {
		b.services[name] = balancer.New(name, seeded())
	}
	bal := b.services[name]
	bal.Update(spec)
	if !slices.IsSortedFunc(spec.Endpoints, func(x, y balancer.EndpointSpec) int { return x.Addr.Compare(y.Addr) }) {
		b.t.Errorf("%s: the list is not sorted", name)
	}
	// Whatever way the balancer took, delta or list, the result is the list.
	if got, want := show(bal), list(spec.Endpoints); got != want {
		b.t.Errorf("%s: balancer has %s, the list says %s", name, got, want)
	}
}

func (b *bench) Warm(name string) {
	b.calls = append(b.calls, "warm "+name)
	if b.services[name] == nil {
		b.t.Errorf("%s is to be warm, but was not given", name)
	}
}

func list(specs []balancer.EndpointSpec) string {
	var parts []string
	for _, e := range specs {
		parts = append(parts, fmt.Sprintf("%s %s", e.Addr, e.State))
	}
	return strings.Join(parts, ", ")
}

func show(b *balancer.Balancer) string {
	var specs []balancer.EndpointSpec
	for _, e := range b.Endpoints() {
		specs = append(specs, *e.Spec())
	}
	return list(specs)
}

// said takes what the sink was told since the last time.
func (b *bench) said() string {
	s := strings.Join(b.calls, "; ")
	b.calls = nil
	return s
}

// requests takes what would be sent, one line per request.
func (b *bench) requests() string {
	var lines []string
	for req := b.out.next(); req != nil; req = b.out.next() {
		b.state.sent(req)
		lines = append(lines, requestLine(req))
	}
	return strings.Join(lines, "\n")
}

func requestLine(req *discoveryv3.DeltaDiscoveryRequest) string {
	typ := strings.TrimPrefix(req.GetTypeUrl(), "type.googleapis.com/")
	s := typ[strings.LastIndexByte(typ, '.')+1:]
	for _, n := range req.GetResourceNamesSubscribe() {
		s += " +" + n
	}
	for _, n := range req.GetResourceNamesUnsubscribe() {
		s += " -" + n
	}
	if v := req.GetInitialResourceVersions(); len(v) > 0 {
		var names []string
		for n, version := range v {
			names = append(names, n+"@"+version)
		}
		slices.Sort(names)
		s += " have " + strings.Join(names, " ")
	}
	if req.GetResponseNonce() != "" {
		s += " ack " + req.GetResponseNonce()
	}
	if req.GetErrorDetail() != nil {
		s += " error " + req.GetErrorDetail().GetMessage()
	}
	return s
}

func (b *bench) ask(keys ...router.Key) {
	for _, k := range keys {
		b.state.ask(k, epoch)
	}
	b.state.flush(b)
}

func (b *bench) apply(res *discoveryv3.DeltaDiscoveryResponse) error {
	err := b.state.apply(res)
	b.state.flush(b)
	return err
}

func (b *bench) mustApply(res *discoveryv3.DeltaDiscoveryResponse) {
	b.t.Helper()
	if err := b.apply(res); err != nil {
		b.t.Fatal(err)
	}
}

// route is the table's word about a key.
func (b *bench) route(k router.Key) string {
	d, ok := b.table.Lookup(k)
	if !ok {
		return "nothing"
	}
	return strings.TrimSpace(d.Kind.String() + " " + cmp.Or(d.Service, strings.TrimPrefix(d.Endpoint.String(), "invalid AddrPort")))
}

// Resources as the control plane would make them.

func response(typ string, resources []*discoveryv3.Resource, removed ...string) *discoveryv3.DeltaDiscoveryResponse {
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ, Nonce: "n", Resources: resources, RemovedResources: removed}
}

func dests(resources ...*discoveryv3.Resource) *discoveryv3.DeltaDiscoveryResponse {
	return response(xds.DestinationType, resources)
}

func ends(resources ...*discoveryv3.Resource) *discoveryv3.DeltaDiscoveryResponse {
	return response(xds.EndpointType, resources)
}

func resource(name, version string, m proto.Message) *discoveryv3.Resource {
	packed, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return &discoveryv3.Resource{Name: name, Version: version, Resource: packed}
}

func serviceDest(name, service string) *discoveryv3.Resource {
	return resource(name, "v1", &api.Destination{Kind: api.Destination_SERVICE, Service: service})
}

func lbEndpoint(a string, health corev3.HealthStatus) *endpointv3.LbEndpoint {
	ap := addr(a)
	return &endpointv3.LbEndpoint{
		HealthStatus: health,
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address:       ap.Addr().String(),
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(ap.Port())},
			}}},
		}},
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			xds.EndpointMetadata: {Fields: map[string]*structpb.Value{
				xds.EndpointPod: structpb.NewStringValue("shop/p-" + a), xds.EndpointNode: structpb.NewStringValue("n1"), xds.EndpointZone: structpb.NewStringValue("z1"),
			}},
		}},
	}
}

func memberOf(service, a string, health corev3.HealthStatus) *discoveryv3.Resource {
	return resource(xds.EndpointName(service, addr(a)), "m"+fmt.Sprint(int(health)), lbEndpoint(a, health))
}

func ready(service, a string) *discoveryv3.Resource {
	return memberOf(service, a, corev3.HealthStatus_HEALTHY)
}

func marker(service string) *discoveryv3.Resource {
	return resource(xds.EndpointCollection(service), "w1", &endpointv3.LbEndpoint{})
}

var (
	clusterIP = router.Key{Addr: addr("10.96.3.4:50051")}
	podIP     = router.Key{Addr: addr("10.244.1.7:50051")}
	webName   = router.Key{Name: "web:50051"}
)

const (
	pricing = "shop/pricing:50051"
	web     = "shop/web:50051"
)

// served is a bench on which the ClusterIP leads to a service with two endpoints.
func served(t *testing.T) *bench {
	b := newBench(t)
	b.ask(clusterIP)
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	b.mustApply(ends(ready(pricing, "10.244.1.7:50051"), ready(pricing, "10.244.1.8:50051"), marker(pricing)))
	if got := b.route(clusterIP); got != "service "+pricing {
		t.Fatal(got)
	}
	b.requests()
	b.said()
	return b
}

func TestAskSubscribesOnce(t *testing.T) {
	b := newBench(t)
	b.ask(clusterIP, webName, clusterIP)
	b.ask(webName)
	if got, want := b.requests(), "Destination +address/10.96.3.4:50051 +name/shop/web:50051"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	b.ask(clusterIP)
	if got := b.requests(); got != "" {
		t.Errorf("asked again: %s", got)
	}
	if got := b.said(); got != "" {
		t.Errorf("the sink was told %s before any answer", got)
	}
}

func TestServiceIsShownWithItsWholeList(t *testing.T) {
	b := newBench(t)
	b.ask(clusterIP)
	b.requests()
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	if got := b.said(); got != "" {
		t.Errorf("the sink was told %s before the endpoints", got)
	}
	if got, want := b.requests(), "LbEndpoint +endpoints/shop/pricing:50051/*"; got != want {
		t.Errorf("requests %s, want %s", got, want)
	}
	b.mustApply(ends(ready(pricing, "10.244.1.7:50051")))
	if got := b.said(); got != "" {
		t.Errorf("the sink was told %s before the marker", got)
	}
	b.mustApply(ends(memberOf(pricing, "10.244.1.8:50051", corev3.HealthStatus_UNHEALTHY), memberOf(pricing, "[fd00::9]:50051", corev3.HealthStatus_DRAINING), marker(pricing)))
	if got, want := b.said(), "service shop/pricing:50051; routes"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	if got, want := show(b.services[pricing]), "10.244.1.7:50051 ready, 10.244.1.8:50051 warming, [fd00::9]:50051 draining"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
	e, _ := b.services[pricing].Endpoint(addr("10.244.1.7:50051"))
	if s := e.Spec(); s.Pod != "shop/p-10.244.1.7:50051" || s.Node != "n1" || s.Zone != "z1" {
		t.Errorf("spec %+v", s)
	}
}

func TestEmptyServiceIsToldFromAnUnansweredOne(t *testing.T) {
	b := newBench(t)
	b.ask(clusterIP)
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	b.mustApply(ends(marker(pricing)))
	if got := b.route(clusterIP); got != "service "+pricing || b.services[pricing].Len() != 0 {
		t.Errorf("route %s", got)
	}
}

func TestUnknownIsAnAnswerAndMayChange(t *testing.T) {
	b := newBench(t)
	b.ask(podIP)
	b.mustApply(response(xds.DestinationType, nil, "address/10.244.1.7:50051"))
	if got := b.route(podIP); got != "unknown" {
		t.Errorf("route %s", got)
	}
	b.requests()
	b.mustApply(dests(resource("address/10.244.1.7:50051", "v2", &api.Destination{Kind: api.Destination_POD, Endpoint: "10.244.1.7:50051", Pod: "shop/a"})))
	if got := b.route(podIP); got != "pod 10.244.1.7:50051" {
		t.Errorf("route %s", got)
	}
	if got := b.requests(); got != "" {
		t.Errorf("the subscription stays, yet %s", got)
	}
	b.mustApply(dests(resource("address/10.244.1.7:50051", "v3", &api.Destination{Kind: api.Destination_EXTERNAL, ExternalName: "x.example"})))
	if got := b.route(podIP); got != "external" {
		t.Errorf("route %s", got)
	}
	b.mustApply(response(xds.DestinationType, nil, "address/10.244.1.7:50051"))
	if got := b.route(podIP); got != "unknown" {
		t.Errorf("route %s", got)
	}
}

func TestUpdatesReachTheBalancerAsDeltas(t *testing.T) {
	b := served(t)
	b.mustApply(ends(memberOf(pricing, "10.244.1.7:50051", corev3.HealthStatus_DRAINING), ready(pricing, "10.244.1.9:50051")))
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointName(pricing, addr("10.244.1.8:50051"))))
	if got, want := show(b.services[pricing]), "10.244.1.7:50051 draining, 10.244.1.9:50051 ready"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
	if got, want := b.said(), "service shop/pricing:50051; service shop/pricing:50051"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	// The same again is no change.
	b.mustApply(ends(ready(pricing, "10.244.1.9:50051"), marker(pricing)))
	if got := b.said(); got != "" {
		t.Errorf("the sink was told %s for nothing", got)
	}
}

func TestMalformedResourcesAreNamedAndTheRestCounts(t *testing.T) {
	broken := func(f func(*endpointv3.LbEndpoint)) *discoveryv3.Resource {
		m := lbEndpoint("10.244.1.8:50051", corev3.HealthStatus_HEALTHY)
		f(m)
		return resource(xds.EndpointName(pricing, addr("10.244.1.8:50051")), "bad", m)
	}
	sock := func(m *endpointv3.LbEndpoint) *corev3.SocketAddress {
		return m.GetEndpoint().GetAddress().GetSocketAddress()
	}
	for what, tc := range map[string]struct {
		bad  *discoveryv3.Resource
		want []string
	}{
		"no address": {broken(func(m *endpointv3.LbEndpoint) { m.HostIdentifier = nil }), []string{"endpoint.address.socket_address", "is missing"}},
		"UDP":        {broken(func(m *endpointv3.LbEndpoint) { sock(m).Protocol = corev3.SocketAddress_UDP }), []string{"protocol", "UDP"}},
		"host name":  {broken(func(m *endpointv3.LbEndpoint) { sock(m).Address = "a.example" }), []string{"socket_address.address", "a.example"}},
		"port 0":     {broken(func(m *endpointv3.LbEndpoint) { sock(m).PortSpecifier = nil }), []string{"port_value", "0 is not a port"}},
		"port 70000": {broken(func(m *endpointv3.LbEndpoint) {
			sock(m).PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: 70000}
		}), []string{"port_value", "70000"}},
		"other address": {broken(func(m *endpointv3.LbEndpoint) { sock(m).Address = "10.0.0.1" }), []string{"socket_address", "10.0.0.1:50051", "not the address in the name"}},
		"health":        {broken(func(m *endpointv3.LbEndpoint) { m.HealthStatus = corev3.HealthStatus_DEGRADED }), []string{"health_status", "DEGRADED"}},
		"weight":        {broken(func(m *endpointv3.LbEndpoint) { m.LoadBalancingWeight = wrapperspb.UInt32(0) }), []string{"load_balancing_weight", "0 is not a weight"}},
		"no body":       {&discoveryv3.Resource{Name: xds.EndpointName(pricing, addr("10.244.1.8:50051"))}, []string{"resource", "is missing"}},
		"other type":    {resource(xds.EndpointName(pricing, addr("10.244.1.8:50051")), "bad", &api.Destination{}), []string{"resource.type_url", "evenkeel.v1.Destination"}},
		"not a message": {&discoveryv3.Resource{Name: xds.EndpointName(pricing, addr("10.244.1.8:50051")), Resource: &anypb.Any{TypeUrl: xds.EndpointType, Value: []byte{0xff}}}, []string{"resource.value"}},
		"name":          {resource("endpoints/shop/pricing:50051/10.244.1.8", "bad", lbEndpoint("10.244.1.8:50051", 0)), []string{"malformed resource name", "want <ip>:<port>"}},
	} {
		t.Run(what, func(t *testing.T) {
			b := served(t)
			err := b.apply(ends(tc.bad, ready(pricing, "10.244.1.9:50051")))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(tc.want, tc.bad.GetName()) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			// The good one counts, and the last good version of the bad one stays.
			if got, want := show(b.services[pricing]), "10.244.1.7:50051 ready, 10.244.1.8:50051 ready, 10.244.1.9:50051 ready"; got != want {
				t.Errorf("endpoints %s, want %s", got, want)
			}
		})
	}
}

func TestMalformedDestinations(t *testing.T) {
	const name = "address/10.96.3.4:50051"
	for what, tc := range map[string]struct {
		msg  *api.Destination
		want []string
	}{
		"no kind":      {&api.Destination{}, []string{"kind", "KIND_UNSPECIFIED"}},
		"newer kind":   {&api.Destination{Kind: 99}, []string{"kind", "99"}},
		"no service":   {&api.Destination{Kind: api.Destination_SERVICE}, []string{"service"}},
		"bad service":  {&api.Destination{Kind: api.Destination_SERVICE, Service: "shop/pricing"}, []string{"service", "no port"}},
		"pod nowhere":  {&api.Destination{Kind: api.Destination_POD}, []string{"endpoint"}},
		"pod anywhere": {&api.Destination{Kind: api.Destination_POD, Endpoint: "0.0.0.0:80"}, []string{"endpoint", "cannot be connected to"}},
		"pod port 0":   {&api.Destination{Kind: api.Destination_POD, Endpoint: "10.0.0.1:0"}, []string{"endpoint", "port 0"}},
		"pod zone":     {&api.Destination{Kind: api.Destination_POD, Endpoint: "[fe80::1%eth0]:80"}, []string{"endpoint", "zone"}},
	} {
		t.Run(what, func(t *testing.T) {
			b := served(t)
			err := b.apply(dests(resource(name, "v2", tc.msg)))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(tc.want, name) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if got := b.route(clusterIP); got != "service "+pricing {
				t.Errorf("the last good word is lost: %s", got)
			}
		})
	}
}

func TestNACKIsBounded(t *testing.T) {
	b := newBench(t)
	var bad []*discoveryv3.Resource
	for range 1000 {
		bad = append(bad, &discoveryv3.Resource{Name: strings.Repeat("\xff", 5000)})
	}
	err := b.apply(ends(bad...))
	if err == nil || len(err.Error()) > 32<<10 || !strings.Contains(err.Error(), "and 992 more") {
		t.Fatalf("%d bytes: %.300v", len(err.Error()), err)
	}
	if _, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: err.Error()}); err != nil {
		t.Error(err)
	}
}

func TestUnknownPolicyIsUsedAsTheDefault(t *testing.T) {
	b := newBench(t)
	b.ask(clusterIP)
	b.mustApply(dests(resource("address/10.96.3.4:50051", "v1", &api.Destination{Kind: api.Destination_SERVICE, Service: pricing, Policy: "weighted_round_robin"})))
	b.mustApply(ends(marker(pricing)))
	if got := b.services[pricing].Policy(); got != balancer.LeastRequest {
		t.Errorf("policy %s", got)
	}
	if !strings.Contains(b.log.String(), "weighted_round_robin") {
		t.Error("nothing was logged")
	}
	b.mustApply(dests(resource("address/10.96.3.4:50051", "v2", &api.Destination{Kind: api.Destination_SERVICE, Service: pricing, Policy: "round_robin"})))
	if got := b.services[pricing].Policy(); got != balancer.RoundRobin {
		t.Errorf("policy %s after the change", got)
	}
}

func TestUnsubscribedTypeIsRefused(t *testing.T) {
	b := newBench(t)
	if err := b.apply(response("type.googleapis.com/envoy.config.cluster.v3.Cluster", nil)); err == nil || !strings.Contains(err.Error(), "type_url") {
		t.Error(err)
	}
}

func TestLateAnswersAreIgnored(t *testing.T) {
	b := newBench(t)
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	b.mustApply(ends(ready(pricing, "10.244.1.7:50051"), marker(pricing)))
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointCollection(pricing)))
	b.mustApply(response(xds.DestinationType, nil, "address/10.96.3.4:50051"))
	if b.said() != "" || b.requests() != "" {
		t.Error("something came of answers that nobody waits for")
	}
}

// TestDeletedServiceKeepsItsRoute: an app's connection outlives the Service.
func TestDeletedServiceKeepsItsRoute(t *testing.T) {
	b := served(t)
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointCollection(pricing)))
	b.mustApply(response(xds.DestinationType, nil, "address/10.96.3.4:50051"))
	if got := b.route(clusterIP); got != "service "+pricing {
		t.Errorf("route %s", got)
	}
	if n := b.services[pricing].Len(); n != 0 {
		t.Errorf("%d endpoints", n)
	}
	// Made again, with another ClusterIP: the old connection follows.
	b.mustApply(ends(ready(pricing, "10.244.1.9:50051"), marker(pricing)))
	if got, want := show(b.services[pricing]), "10.244.1.9:50051 ready"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
	// Another Service gets the address: then that is what it means.
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", web)))
	if got := b.route(clusterIP); got != "service "+pricing {
		t.Errorf("before the new endpoints are known: %s", got)
	}
	b.said()
	b.mustApply(ends(marker(web)))
	if got := b.route(clusterIP); got != "service "+web {
		t.Errorf("route %s", got)
	}
	if got, want := b.said(), "service shop/web:50051; routes; gone shop/pricing:50051"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
}

func TestDeletedHeadlessNameIsUnknown(t *testing.T) {
	b := newBench(t)
	b.ask(webName)
	b.mustApply(dests(resource("name/shop/web:50051", "v1", &api.Destination{Kind: api.Destination_SERVICE, Service: web, Headless: true})))
	b.mustApply(ends(marker(web)))
	b.requests()
	b.mustApply(response(xds.DestinationType, nil, "name/shop/web:50051"))
	if got := b.route(webName); got != "unknown" {
		t.Errorf("route %s", got)
	}
	if got, want := b.requests(), "LbEndpoint -endpoints/shop/web:50051/*"; got != want {
		t.Errorf("requests %s, want %s", got, want)
	}
	if b.services[web] != nil {
		t.Error("the sink still has the service")
	}
}

func TestServiceIsSharedByItsDestinations(t *testing.T) {
	b := served(t)
	name := router.Key{Name: "pricing:50051"}
	b.ask(name)
	b.requests()
	b.mustApply(dests(serviceDest("name/shop/pricing:50051", pricing)))
	if got := b.requests(); got != "" {
		t.Errorf("subscribed again: %s", got)
	}
	if got := b.route(name); got != "service "+pricing {
		t.Errorf("route %s: the endpoints are here", got)
	}
	b.state.forget(b.state.dests[clusterIP])
	b.state.flush(b)
	if b.services[pricing] == nil {
		t.Error("the service is gone although a name leads to it")
	}
	b.state.forget(b.state.dests[name])
	b.state.flush(b)
	if b.services[pricing] != nil {
		t.Error("the service is still there although nothing leads to it")
	}
	if got, want := b.requests(), "Destination -address/10.96.3.4:50051 -name/shop/pricing:50051\nLbEndpoint -endpoints/shop/pricing:50051/*"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	if len(b.state.services) != 0 || len(b.state.byName) != 0 || len(b.state.dirty) != 0 {
		t.Error("something is left of them")
	}
}

func TestNewStreamSubscribesToEverythingHeld(t *testing.T) {
	b := served(t)
	b.ask(podIP) // not answered
	b.out.reset(nodeMessage(Node{Namespace: "shop", Pod: "a"}), b.state.held())
	want := "Destination +address/10.244.1.7:50051 +address/10.96.3.4:50051 have address/10.96.3.4:50051@v1\n" +
		"LbEndpoint +endpoints/shop/pricing:50051/* have endpoints/shop/pricing:50051/*@w1 endpoints/shop/pricing:50051/10.244.1.7:50051@m1 endpoints/shop/pricing:50051/10.244.1.8:50051@m1"
	first := b.out.next()
	if id := first.GetNode().GetId(); id != "shop/a" {
		t.Errorf("the first request is from %q", id)
	}
	if got := requestLine(first) + "\n" + b.requests(); got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	// Nothing is held: nothing may be asked, for that would be a wildcard.
	empty := newBench(t)
	empty.out.reset(nodeMessage(Node{}), empty.state.held())
	if got := empty.requests(); got != "" {
		t.Errorf("requests %q", got)
	}
}

func TestImpossibleNameIsAnsweredHere(t *testing.T) {
	b := newBench(t)
	k := router.Key{Name: "UPPER:50051"} // the router asks for nothing of the kind
	b.ask(k)
	if got := b.route(k); got != "unknown" || b.requests() != "" {
		t.Errorf("route %s", got)
	}
}

func TestIdleDestinationsAreUnsubscribed(t *testing.T) {
	b := served(t)
	later := func(d time.Duration) time.Time { return epoch.Add(d) }
	sweep := func(now time.Time, active func(string) bool) {
		if active == nil {
			active = never
		}
		b.state.sweep(now, 30*time.Minute, 100, active)
		b.state.flush(b)
	}
	sweep(later(29*time.Minute), nil)
	if b.route(clusterIP) == "nothing" {
		t.Fatal("unsubscribed too early")
	}
	// Routing by it keeps it, without a word to discovery.
	b.table.Route(clusterIP.Addr, "")
	sweep(later(30*time.Minute), nil)
	sweep(later(59*time.Minute), nil)
	if b.route(clusterIP) == "nothing" {
		t.Fatal("unsubscribed although it was used 29 minutes ago")
	}
	sweep(later(60*time.Minute), func(service string) bool { return service == pricing })
	if b.route(clusterIP) == "nothing" {
		t.Fatal("unsubscribed although an RPC runs")
	}
	// Asking again keeps it too.
	b.state.ask(clusterIP, later(80*time.Minute))
	sweep(later(100*time.Minute), nil)
	if b.route(clusterIP) == "nothing" {
		t.Fatal("unsubscribed although it was asked for")
	}
	b.said()
	sweep(later(110*time.Minute), func(string) bool { return false })
	if got, want := b.said(), "routes; gone shop/pricing:50051"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	if got, want := b.requests(), "Destination -address/10.96.3.4:50051\nLbEndpoint -endpoints/shop/pricing:50051/*"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	// And back.
	b.ask(clusterIP)
	if got, want := b.requests(), "Destination +address/10.96.3.4:50051"; got != want {
		t.Errorf("requests %s, want %s", got, want)
	}
}

func TestFloodOfNamesIsBounded(t *testing.T) {
	b := served(t)
	for i := range 5000 {
		k := router.Key{Name: fmt.Sprintf("n%d:50051", i)}
		b.ask(k)
		b.mustApply(response(xds.DestinationType, nil, "name/shop/"+k.Name))
		if len(b.state.dests) > 100 {
			b.state.sweep(epoch, time.Hour, 100, never)
			b.state.flush(b)
		}
	}
	if n := len(b.state.dests); n > 100 {
		t.Errorf("%d destinations", n)
	}
	if b.route(clusterIP) != "service "+pricing {
		t.Error("what is known was dropped for what is not")
	}
}

func TestSubscribeAfterUnsubscribeInOneBreath(t *testing.T) {
	b := served(t)
	b.state.forget(b.state.dests[clusterIP])
	b.ask(clusterIP)
	// The server may still hold the subscription: it answers a repeated one anew.
	if got, want := b.requests(), "Destination +address/10.96.3.4:50051\nLbEndpoint -endpoints/shop/pricing:50051/*"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
}

func TestMergeAgainstAMap(t *testing.T) {
	rnd := seeded()
	for range 500 {
		svc := &service{name: pricing, members: map[netip.AddrPort]member{}, changed: map[netip.AddrPort]struct{}{}}
		for range 8 {
			for range rnd.IntN(6) {
				a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(8))}), 1)
				svc.changed[a] = struct{}{}
				if rnd.IntN(2) == 0 {
					delete(svc.members, a)
				} else {
					svc.members[a] = member{spec: balancer.EndpointSpec{Addr: a, State: balancer.State(rnd.IntN(3))}}
				}
			}
			before := slices.Clone(svc.list)
			given := svc.list
			spec := svc.spec()
			if !slices.Equal(given, before) {
				t.Fatal("a list that was given away was written to")
			}
			if len(spec.Endpoints) != len(svc.members) {
				t.Fatalf("%d endpoints, want %d", len(spec.Endpoints), len(svc.members))
			}
			for _, e := range spec.Endpoints {
				if svc.members[e.Addr].spec != e {
					t.Fatalf("%s is %v", e.Addr, e)
				}
			}
		}
	}
}

func never(string) bool { return false }

func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
