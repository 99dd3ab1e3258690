// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

const (
	pricing     = "shop/pricing:50051"
	pricingAddr = "address/10.96.0.4:50051"
	pricingName = "name/shop/pricing:50051"
)

func TestSubscribe(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1, 2))
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, pricingAddr, pricingName)
	c.until("both destinations are known", func() bool { return len(c.resources) == 2 })
	for _, n := range []string{pricingAddr, pricingName} {
		if d := c.destination(n); d.GetKind() != api.Destination_SERVICE || d.GetService() != pricing || d.GetPolicy() != xds.PolicyLeastRequest {
			t.Errorf("%s is %v", n, d)
		}
	}
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(1, 2)...)

	w.apply(slice("pricing", 2, 3))
	c.wantEndpoints(pricing, ready(2, 3)...)
	if want := xds.EndpointName(pricing, mustAddrPort("10.244.0.1:50051")); !slices.Contains(c.removed, want) {
		t.Errorf("removed %v; want %s in it", c.removed, want)
	}
}

// One endpoint's change must cost its own bytes.
func TestChangeIsSmall(t *testing.T) {
	w := newWorld(t, nil)
	many := make([]int, 1000)
	for i := range many {
		many[i] = i
	}
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", many...))
	c := w.connect("web-1")
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(many...)...)

	w.apply(slice("pricing", append(many, 1000)...))
	r, err := c.recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetResources()) != 1 || len(r.GetRemovedResources()) != 0 {
		t.Fatalf("%d resources and %d removed for one new endpoint", len(r.GetResources()), len(r.GetRemovedResources()))
	}
}

func TestUnknownBecomesKnownAndGone(t *testing.T) {
	w := newWorld(t, nil)
	w.synced()
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, pricingAddr)
	c.until("the address is said to be unknown", func() bool { return slices.Contains(c.removed, pricingAddr) })
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.until("the collection is said to be unknown", func() bool { return slices.Contains(c.removed, xds.EndpointCollection(pricing)) })

	w.apply(service("pricing", "10.96.0.4"))
	c.until("it is known", func() bool { return c.resources[pricingAddr] != nil })
	c.wantEndpoints(pricing) // an empty service has its marker
	w.apply(slice("pricing", 7))
	c.wantEndpoints(pricing, ready(7)...)

	c.removed = nil
	w.apply(gone(service("pricing", "10.96.0.4")))
	c.until("everything of it is removed", func() bool { return len(c.resources) == 0 })
	for _, n := range []string{pricingAddr, xds.EndpointCollection(pricing), xds.EndpointName(pricing, mustAddrPort("10.244.0.7:50051"))} {
		if !slices.Contains(c.removed, n) {
			t.Errorf("%s is not in removed_resources %v", n, c.removed)
		}
	}
	// And back, with the marker again.
	w.apply(service("pricing", "10.96.0.4"))
	c.wantEndpoints(pricing, ready(7)...)
}

// A sidecar that reconnects, perhaps to another replica, is sent what differs.
func TestReconnect(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1, 2, 3))
	first := w.connect("web-1")
	first.subscribe(xds.DestinationType, pricingAddr, pricingName)
	first.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	first.until("it knows the destination", func() bool { return first.resources[pricingAddr] != nil })
	first.wantEndpoints(pricing, ready(1, 2, 3)...)
	versions := map[string]string{}
	for name, r := range first.resources {
		versions[name] = r.GetVersion()
	}
	first.cancel()

	other := newWorld(t, nil) // another replica
	changed := slice("pricing", 2, 3, 4)
	changed.Slice.Endpoints[1].Ready = false
	changed.Slice.Endpoints[1].Terminating = true
	svc := service("pricing", "10.96.0.4")
	other.synced(svc, changed)
	second := other.connect("web-1")
	destinations := maps.Clone(versions)
	maps.DeleteFunc(destinations, func(n, _ string) bool { return strings.HasPrefix(n, "endpoints/") })
	destinations["address/10.96.0.9:50051"] = "gone meanwhile"
	second.send(&discoverypb.DeltaDiscoveryRequest{
		TypeUrl:                xds.DestinationType,
		ResourceNamesSubscribe: []string{pricingAddr, pricingName, "address/10.96.0.9:50051"}, InitialResourceVersions: destinations,
	})
	r, err := second.recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetResources()) != 0 || !slices.Equal(r.GetRemovedResources(), []string{"address/10.96.0.9:50051"}) {
		t.Errorf("destinations on reconnect: %v", r)
	}
	maps.DeleteFunc(versions, func(n, _ string) bool { return !strings.HasPrefix(n, "endpoints/") })
	second.send(&discoverypb.DeltaDiscoveryRequest{
		TypeUrl: xds.EndpointType, ResourceNamesSubscribe: []string{xds.EndpointCollection(pricing)}, InitialResourceVersions: versions,
	})
	if r, err = second.recv(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, res := range r.GetResources() {
		names = append(names, strings.TrimPrefix(res.GetName(), "endpoints/"+pricing+"/"))
	}
	// 2 is as it was; 3 is draining, 4 is new, 1 is gone; the marker is last.
	if !slices.Equal(names, []string{"10.244.0.3:50051", "10.244.0.4:50051", "*"}) {
		t.Errorf("endpoints on reconnect: %v", names)
	}
	if !slices.Equal(r.GetRemovedResources(), []string{"endpoints/" + pricing + "/10.244.0.1:50051"}) {
		t.Errorf("removed on reconnect: %v", r.GetRemovedResources())
	}
}

// With nothing to tell, the first request of each type is answered all the same.
func TestReconnectWithEverything(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1))
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, pricingAddr)
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(1)...)
	c.until("it knows the destination", func() bool { return c.resources[pricingAddr] != nil })
	versions := map[string]string{}
	for name, r := range c.resources {
		versions[name] = r.GetVersion()
	}

	again := w.connect("web-1")
	for typeURL, name := range map[string]string{xds.DestinationType: pricingAddr, xds.EndpointType: xds.EndpointCollection(pricing)} {
		again.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{name}, InitialResourceVersions: versions})
		r, err := again.recv()
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		if typeURL == xds.EndpointType {
			want = 1 // the marker
		}
		if len(r.GetResources()) != want || len(r.GetRemovedResources()) != 0 {
			t.Errorf("%s: %v; want %d resources", typeURL, r, want)
		}
	}
}

func TestResubscribeSendsAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1, 2))
	c := w.connect("web-1")
	for range 3 {
		clear(c.resources)
		c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		c.wantEndpoints(pricing, ready(1, 2)...)
		clear(c.resources)
		c.subscribe(xds.DestinationType, pricingAddr)
		c.until("the destination is sent again", func() bool { return c.resources[pricingAddr] != nil })
	}
}

func TestUnsubscribe(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1), service("stock", "10.96.0.5"), slice("stock", 9))
	c := w.connect("web-1")
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing), xds.EndpointCollection("shop/stock:50051"))
	c.wantEndpoints(pricing, ready(1)...)
	c.wantEndpoints("shop/stock:50051", ready(9)...)
	c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: xds.EndpointType, ResourceNamesUnsubscribe: []string{xds.EndpointCollection(pricing)}})
	eventually(t, "the subscription is gone", func() bool {
		return metricValue(t, w.srv.metrics.subscriptions.WithLabelValues("endpoint")) == 1
	})
	w.apply(slice("pricing", 1, 2), slice("stock", 9, 10))
	c.wantEndpoints("shop/stock:50051", ready(9, 10)...)
	if got, _ := c.endpoints(pricing); len(got) != 1 {
		t.Errorf("still told about pricing: %v", got)
	}
	c.cancel()
	eventually(t, "nothing is kept for a closed stream", func() bool {
		w.srv.hub.mu.Lock()
		defer w.srv.hub.mu.Unlock()
		return len(w.srv.hub.entries) == 0 && len(w.srv.hub.topics) == 0 && metricValue(t, w.srv.metrics.streams) == 0
	})
}

func TestMalformedNames(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1))
	c := w.connect("web-1")
	bad := []string{"*", "name/shop/Pricing:50051", "address/10.96.0.4"}
	c.subscribe(xds.DestinationType, append(bad, pricingAddr)...)
	c.until("the good one is answered", func() bool { return c.resources[pricingAddr] != nil })
	for _, n := range bad {
		if !slices.Contains(c.removed, n) {
			t.Errorf("malformed name %q is not answered; removed %v", n, c.removed)
		}
	}
	one := xds.EndpointName(pricing, mustAddrPort("10.244.0.1:50051"))
	c.subscribe(xds.EndpointType, one)
	c.until("a single endpoint is refused", func() bool { return slices.Contains(c.removed, one) })
	log := w.log.String()
	for _, part := range []string{"malformed name", "sidecar=shop/web-1", "Pricing:50051", "subscribe to endpoints/shop/pricing:50051/*"} {
		if !strings.Contains(log, part) {
			t.Errorf("the log does not say %q:\n%s", part, log)
		}
	}
	if n := metricValue(t, w.srv.metrics.malformed); n != 4 {
		t.Errorf("malformed names counted: %v", n)
	}
}

func TestUnknownType(t *testing.T) {
	w := newWorld(t, nil)
	w.synced()
	c := w.connect("web-1")
	c.subscribe("type.googleapis.com/envoy.config.cluster.v3.Cluster", "x")
	c.fails("InvalidArgument", "envoy.config.cluster.v3.Cluster", xds.DestinationType)
}

func TestNack(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1))
	c := w.connect("web-1")
	c.noAck = true
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	r, err := c.recv()
	if err != nil {
		t.Fatal(err)
	}
	c.nack(r, "endpoints/x: no address")
	c.noAck = false
	// The stream goes on, and what was refused is not sent again by itself.
	w.apply(slice("pricing", 1, 2))
	c.wantEndpoints(pricing, ready(1, 2)...)
	if c.responses != 2 {
		t.Errorf("%d responses; want 2", c.responses)
	}
	eventually(t, "the NACK is counted", func() bool { return metricValue(t, w.srv.metrics.nacks.WithLabelValues("endpoint")) == 1 })
	// The counter moves before the line is written.
	eventually(t, "the NACK is logged", func() bool { return strings.Contains(w.log.String(), "NACK") })
	if log := w.log.String(); !strings.Contains(log, "endpoints/x: no address") || !strings.Contains(log, "sidecar=shop/web-1") {
		t.Errorf("the log does not name the sidecar and its error:\n%s", log)
	}
}

func TestLargeCollectionIsSplit(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxResponseBytes = 4 << 10 })
	many := make([]int, 200)
	for i := range many {
		many[i] = i
	}
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", many...))
	c := w.connect("web-1")
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(many...)...) // also that the marker comes with or after the last
	if c.responses < 5 {
		t.Errorf("%d responses for %d endpoints in pieces of 4 KiB", c.responses, len(many))
	}
}

func TestTooManySubscriptions(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxSubscriptions = 3 })
	w.synced()
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, "address/10.0.0.1:1", "address/10.0.0.1:2", "address/10.0.0.1:3", "address/10.0.0.1:4")
	c.fails("ResourceExhausted", "3 subscriptions")
}

func TestLocalTrafficPolicy(t *testing.T) {
	w := newWorld(t, nil)
	local := service("pricing", "10.96.0.4")
	local.Service.LocalOnly = true
	w.synced(local, slice("pricing", 1, 2, 3, 4)) // 1 and 4 are on node1
	c := w.connect("web-1")
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(1, 4)...)
	w.apply(slice("pricing", 2, 3, 4))
	c.wantEndpoints(pricing, ready(4)...)
	w.apply(service("pricing", "10.96.0.4"))
	c.wantEndpoints(pricing, ready(2, 3, 4)...)
	w.apply(local)
	c.wantEndpoints(pricing, ready(4)...)
}

// Streams opened before the watch is synced wait: "unknown" would be a lie.
func TestWaitsForSync(t *testing.T) {
	w := newWorld(t, nil)
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, pricingAddr)
	time.Sleep(50 * time.Millisecond)
	w.apply(service("pricing", "10.96.0.4"))
	w.srv.Synced()
	r, err := c.recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetResources()) != 1 || len(r.GetRemovedResources()) != 0 {
		t.Errorf("first answer: %v", r)
	}
}

func TestShutdown(t *testing.T) {
	w := newWorld(t, nil)
	w.synced()
	c := w.connect("web-1")
	c.subscribe(xds.DestinationType, pricingAddr)
	if _, err := c.recv(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.srv.endStreams()
	c.fails("Unavailable", "shutting down")
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
}

func TestNodeIsRequired(t *testing.T) {
	for name, n := range map[string]struct {
		node  xds.Node
		parts []string
	}{
		"no node":      {xds.Node{}, []string{"InvalidArgument", "<namespace>/<pod>"}},
		"no namespace": {xds.Node{Pod: "web-1"}, []string{"InvalidArgument", `"/web-1"`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.synced()
			c := connect(t, w.lis, n.node, "")
			c.subscribe(xds.DestinationType, pricingAddr)
			c.fails(n.parts...)
		})
	}
}

func TestPropagationIsMeasured(t *testing.T) {
	w := newWorld(t, nil)
	w.synced(service("pricing", "10.96.0.4"), slice("pricing", 1))
	c := w.connect("web-1")
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(1)...)
	before := histogramCount(t, w.srv)
	w.srv.Apply([]snapshot.Change{slice("pricing", 1, 2)}, time.Now().Add(-time.Second))
	c.wantEndpoints(pricing, ready(1, 2)...)
	eventually(t, "it is measured", func() bool { return histogramCount(t, w.srv) == before+1 })
}
