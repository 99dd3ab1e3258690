// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"slices"
	"testing"

	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

const barrier1 = "name/shop/barrier-1.evenkeel.invalid:1"

// TestListIsKeptUntilTheControlPlaneIsTold: a service that nobody wants any
// more, and then somebody, before a request has left: the subscription has never
// ended, so its list must neither be lost nor go stale.
func TestListIsKeptUntilTheControlPlaneIsTold(t *testing.T) {
	b := served(t)
	b.requests()
	b.state.forget(b.state.dests[clusterIP])
	b.state.flush(b)
	b.said()
	// What arrives meanwhile is still of the same subscription.
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointName(pricing, addr("10.244.1.8:50051"))))
	b.ask(webName)
	b.mustApply(dests(serviceDest("name/shop/web:50051", pricing)))
	if got, want := b.said(), "service shop/pricing:50051; routes"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	if got, want := show(b.services[pricing]), "10.244.1.7:50051 ready"; got != want {
		t.Errorf("endpoints %s, want %s", got, want)
	}
	if got, want := b.requests(), "Destination +name/shop/web:50051 -address/10.96.3.4:50051"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
}

// TestEndpointThatDepartedWhileNobodyAsked: within a round trip after the
// unsubscription, what was sent before it arrives; the answer to the next
// subscription does not take it back.
func TestEndpointThatDepartedWhileNobodyAsked(t *testing.T) {
	b := served(t)
	b.ask(webName)
	b.requests()
	b.state.forget(b.state.dests[clusterIP])
	if got, want := b.requests(), "Destination -address/10.96.3.4:50051\nLbEndpoint -endpoints/shop/pricing:50051/*"; got != want {
		t.Fatalf("requests\n%s\nwant\n%s", got, want)
	}
	if len(b.state.services) != 0 {
		t.Fatal("the list outlives the word that nobody wants it")
	}
	// The answer to another name, asked before, leads to the same service.
	b.mustApply(dests(serviceDest("name/shop/web:50051", pricing)))
	if got, want := b.requests(), "Destination +"+barrier1; got != want {
		t.Fatalf("requests\n%s\nwant\n%s", got, want)
	}
	// From before the unsubscription: an endpoint that will have gone, and the
	// marker of an earlier answer.
	b.mustApply(ends(ready(pricing, "10.244.1.9:50051"), marker(pricing)))
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointCollection(pricing)))
	if b.route(webName) != "nothing" {
		t.Error("an old list was taken for the new one")
	}
	b.mustApply(response(xds.DestinationType, nil, barrier1))
	if got, want := b.requests(), "Destination -"+barrier1+"\nLbEndpoint +endpoints/shop/pricing:50051/*"; got != want {
		t.Fatalf("requests\n%s\nwant\n%s", got, want)
	}
	b.mustApply(ends(ready(pricing, "10.244.1.7:50051"), marker(pricing)))
	if got, want := show(b.services[pricing]), "10.244.1.7:50051 ready"; got != want || b.route(webName) != "service "+pricing {
		t.Errorf("endpoints %s, want %s; route %s", got, want, b.route(webName))
	}
}

func TestBarrierOfAServiceThatNobodyWantsInTheEnd(t *testing.T) {
	b := served(t)
	b.ask(webName)
	b.state.forget(b.state.dests[clusterIP])
	b.requests()
	b.mustApply(dests(serviceDest("name/shop/web:50051", pricing)))
	b.requests()
	b.state.forget(b.state.dests[webName])
	b.mustApply(response(xds.DestinationType, nil, barrier1))
	if got, want := b.requests(), "Destination -"+barrier1+" -name/shop/web:50051"; got != want {
		t.Errorf("requests\n%s\nwant\n%s", got, want)
	}
	if len(b.state.services) != 0 {
		t.Errorf("services %v", b.state.services)
	}
}

func TestNewStreamNeedsNoBarrier(t *testing.T) {
	b := served(t)
	b.ask(webName)
	b.state.forget(b.state.dests[clusterIP])
	b.requests()
	b.mustApply(dests(serviceDest("name/shop/web:50051", pricing)))
	held := b.state.held()
	if got := held[xds.EndpointType].names; !slices.Equal(got, []string{"endpoints/shop/pricing:50051/*"}) || len(held[xds.EndpointType].versions) != 0 {
		t.Errorf("subscribed to %v with %v", got, held[xds.EndpointType].versions)
	}
	if got := held[xds.DestinationType].names; !slices.Equal(got, []string{"name/shop/web:50051"}) {
		t.Errorf("subscribed to %v", got)
	}
	b.out.reset(nil, held)
	b.requests()
	b.mustApply(ends(ready(pricing, "10.244.1.7:50051"), marker(pricing)))
	if b.route(webName) != "service "+pricing {
		t.Errorf("route %s", b.route(webName))
	}
	// And what was only waiting for its word is not asked for at all.
	b.state.forget(b.state.dests[webName])
	if got := b.state.held()[xds.EndpointType].names; len(got) != 0 || len(b.state.services) != 0 {
		t.Errorf("subscribed to %v", got)
	}
}

func TestReplicasAreOursAlone(t *testing.T) {
	const self = "evenkeel-system/evenkeel-xds:15950"
	key := router.Key{Name: "evenkeel-xds.evenkeel-system.svc:15950"}
	name := xds.HostName("shop", key.Name)
	b := newBench(t)
	b.state.findReplicas(key, epoch)
	targets := func() []string {
		t, known := b.state.replicaTargets("target")
		if !known {
			return nil
		}
		return t
	}
	want := func(want ...string) {
		t.Helper()
		if got := targets(); !slices.Equal(got, want) {
			t.Errorf("replicas %v, want %v", got, want)
		}
	}
	if got := b.requests(); got != "Destination +"+name {
		t.Errorf("requests %s", got)
	}
	want()
	b.mustApply(dests(serviceDest(name, self)))
	want()
	b.mustApply(ends(ready(self, "10.0.0.2:15950"), ready(self, "10.0.0.1:15950"), memberOf(self, "10.0.0.3:15950", 2), memberOf(self, "10.0.0.4:15950", 3), marker(self)))
	// 2: UNHEALTHY, not ready; 3: DRAINING.
	want("10.0.0.1:15950", "10.0.0.2:15950", "10.0.0.4:15950")
	if got := b.said(); got != "" {
		t.Errorf("the sink was told %s", got)
	}
	if n := b.state.names(); len(n) != 0 {
		t.Errorf("it is reported: %v", n)
	}
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointName(self, addr("10.0.0.1:15950"))))
	want("10.0.0.2:15950", "10.0.0.4:15950")
	// The app dials the address of that Service: then the sink has it too.
	b.ask(clusterIP)
	b.mustApply(dests(serviceDest("address/10.96.3.4:50051", self)))
	if got, want := b.said(), "service "+self+"; routes"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	// … and no more, when it is done with it; the replicas stay.
	b.state.forget(b.state.dests[clusterIP])
	b.state.flush(b)
	if got, want := b.said(), "routes; gone "+self; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	want("10.0.0.2:15950", "10.0.0.4:15950")
	// By the very name, too.
	b.ask(key)
	if got, want := b.said(), "service "+self+"; routes"; got != want || b.route(key) != "service "+self {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	b.state.sweep(epoch.Add(1e15), 1, 100, never)
	want("10.0.0.2:15950", "10.0.0.4:15950")
	// Nobody is there: who answers there is the only one.
	b.mustApply(response(xds.EndpointType, nil, xds.EndpointName(self, addr("10.0.0.2:15950")), xds.EndpointName(self, addr("10.0.0.4:15950"))))
	want("target")

	unknown := newBench(t)
	unknown.state.findReplicas(key, epoch)
	unknown.mustApply(response(xds.DestinationType, nil, name))
	if got, known := unknown.state.replicaTargets("target"); !known || !slices.Equal(got, []string{"target"}) {
		t.Errorf("an unknown name: %v %t", got, known)
	}
}

func TestTargetKey(t *testing.T) {
	for target, want := range map[string]string{
		"unix:///x": "", "evenkeel-xds.evenkeel-system.svc:15950": "evenkeel-xds.evenkeel-system.svc:15950", "XDS.Example:1": "xds.example:1",
	} {
		k, ok := (&Config{Target: target}).targetKey()
		if k.Name != want || ok != (want != "") {
			t.Errorf("%s: %v %t", target, k, ok)
		}
	}
}
