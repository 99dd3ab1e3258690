// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"evenkeel.dev/sidecar/report"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

// pod is a member with a UID.
func pod(service, a, uid string, health corev3.HealthStatus) *discoveryv3.Resource {
	ep := lbEndpoint(a, health)
	ep.GetMetadata().GetFilterMetadata()[xds.EndpointMetadata].GetFields()[xds.EndpointUID] = structpb.NewStringValue(uid)
	return resource(xds.EndpointName(service, addr(a)), uid+health.String(), ep)
}

// class is a bench with what learns on it.
type class struct {
	*bench
	learning
	ledger *ledger
	text   bytes.Buffer
}

func newClass(t *testing.T) *class {
	c := &class{bench: newBench(t), ledger: newLedger()}
	c.learning = learning{
		log: slog.New(slog.NewTextHandler(&c.text, nil)), namespace: "shop", ownUID: "own",
		taken: map[string]struct{}{}, last: Learned{Complete: true},
	}
	return c
}

func (c *class) learn(names ...string) bool {
	ok := c.take(names, c.state, epoch)
	c.state.flush(c.bench)
	return ok
}

// look is how far it is.
func (c *class) look() string {
	l, _ := c.advance(c.state, c.ledger.answered)
	if l.Complete != (len(l.Missing) == 0) {
		c.t.Errorf("%+v", l)
	}
	return strings.Join(l.Missing, "; ")
}

func (c *class) want(what string) {
	c.t.Helper()
	if got := c.look(); got != what {
		c.t.Errorf("missing %q, want %q", got, what)
	}
}

func (c *class) report(service string, endpoints ...report.Endpoint) {
	c.ledger.report(report.Batch{Services: []report.Service{{Name: service, Endpoints: endpoints}}})
}

func TestLearnedUpstreams(t *testing.T) {
	c := newClass(t)
	const name = "name/shop/pricing:50051"
	if !c.learn(name) || c.learn(name) {
		t.Error("a name is new once")
	}
	if got := c.requests(); got != "Destination +"+name {
		t.Errorf("requests %s", got)
	}
	c.want("pricing:50051")
	c.mustApply(dests(serviceDest(name, pricing)))
	c.want("pricing:50051")
	c.mustApply(ends(
		pod(pricing, "10.244.1.1:50051", "a", corev3.HealthStatus_HEALTHY),
		pod(pricing, "10.244.1.2:50051", "b", corev3.HealthStatus_UNHEALTHY), // warming: it can be connected to
		pod(pricing, "10.244.1.3:50051", "c", corev3.HealthStatus_HEALTHY),
		pod(pricing, "10.244.1.4:50051", "d", corev3.HealthStatus_HEALTHY),
		pod(pricing, "10.244.1.5:50051", "e", corev3.HealthStatus_DRAINING),
		pod(pricing, "10.244.1.6:50051", "own", corev3.HealthStatus_UNHEALTHY),
		marker(pricing)))
	if got, want := c.said(), "service "+pricing+"; warm "+pricing+"; routes"; got != want {
		t.Errorf("the sink was told %s, want %s", got, want)
	}
	on := func(is ...int) string {
		var all []string
		for _, i := range is {
			all = append(all, fmt.Sprintf("%s on shop/p-10.244.1.%d:50051", pricing, i))
		}
		return strings.Join(all, "; ")
	}
	c.want(on(1, 2, 3, 4))
	c.report(pricing, report.Endpoint{Addr: addr("10.244.1.1:50051"), UID: "a", Answer: report.Connected})
	c.want(on(2, 3, 4))
	c.report(pricing,
		report.Endpoint{Addr: addr("10.244.1.2:50051"), UID: "b", Answer: report.Failed},
		report.Endpoint{Addr: addr("10.244.1.3:50051"), UID: "another", Answer: report.Connected}, // a word about the pod before it
		report.Endpoint{Addr: addr("10.244.1.4:50051"), UID: "d", Slow: true})
	c.want(on(3))
	// Who comes later is not waited for; who goes is not either.
	c.mustApply(ends(pod(pricing, "10.244.1.7:50051", "f", corev3.HealthStatus_HEALTHY)))
	c.want(on(3))
	c.mustApply(response(xds.EndpointType, nil, xds.EndpointName(pricing, addr("10.244.1.3:50051"))))
	c.want("")
	if l, news := c.advance(c.state, c.ledger.answered); news || !l.Complete {
		t.Errorf("%+v is told twice", l)
	}
}

func TestLearnedPodThatIsReplacedOrStartsToDrain(t *testing.T) {
	for what, then := range map[string]*discoveryv3.Resource{
		"another pod has the address": pod(pricing, "10.244.1.1:50051", "b", corev3.HealthStatus_HEALTHY),
		"it drains":                   pod(pricing, "10.244.1.1:50051", "a", corev3.HealthStatus_DRAINING),
	} {
		c := newClass(t)
		c.learn("name/shop/pricing:50051")
		c.mustApply(dests(serviceDest("name/shop/pricing:50051", pricing)))
		c.mustApply(ends(pod(pricing, "10.244.1.1:50051", "a", corev3.HealthStatus_HEALTHY), marker(pricing)))
		c.want(pricing + " on shop/p-10.244.1.1:50051")
		c.mustApply(ends(then))
		if got := c.look(); got != "" {
			t.Errorf("%s: missing %s", what, got)
		}
	}
}

func TestLearnedNamesOfEveryKind(t *testing.T) {
	c := newClass(t)
	c.learn(
		"address/10.96.3.4:50051", "name/shop/web:50051", "name/shop/empty:50051", "name/shop/nothing:50051",
		"name/other/pricing:50051", "nonsense", "endpoints/shop/web:50051/*", "name/shop/UPPER:50051")
	if n := len(c.pending); n != 4 {
		t.Errorf("%d are waited for", n)
	}
	if n := strings.Count(c.text.String(), "no destination of this namespace"); n != 4 {
		t.Errorf("%d complaints:\n%s", n, c.text.String())
	}
	c.want("10.96.3.4:50051; web:50051; empty:50051; nothing:50051")
	c.mustApply(response(xds.DestinationType, nil, "name/shop/nothing:50051"))
	c.mustApply(dests(
		serviceDest("address/10.96.3.4:50051", pricing), serviceDest("name/shop/web:50051", pricing), // one service, by two names
		serviceDest("name/shop/empty:50051", web)))
	c.mustApply(ends(marker(web)))
	c.mustApply(ends(pod(pricing, "10.244.1.1:50051", "own", corev3.HealthStatus_HEALTHY), marker(pricing)))
	c.want("")
	if n := strings.Count(c.said(), "warm "); n != 2 {
		t.Errorf("%d services are warmed, want each once", n)
	}
}

func TestLearnedNamesAreBounded(t *testing.T) {
	c := newClass(t)
	for i := range 3 * maxLearned {
		c.learn(fmt.Sprintf("name/shop/n%d:1", i))
	}
	if len(c.pending) != maxLearned || len(c.state.dests) != maxLearned {
		t.Errorf("%d names, %d destinations", len(c.pending), len(c.state.dests))
	}
	if strings.Count(c.text.String(), "too many upstreams") != 1 {
		t.Errorf("said:\n%s", c.text.String())
	}
	if l, _ := c.advance(c.state, c.ledger.answered); len(l.Missing) != 10 {
		t.Errorf("%d are named", len(l.Missing))
	}
	// Those that are dropped are not waited for.
	c.state.sweep(epoch, 0, 1, never)
	c.want("")
}

// TestLearnedIsNotPassedOn: a name that is told to a pod must not live on only
// because pods are told it.
func TestLearnedIsNotPassedOn(t *testing.T) {
	c := newClass(t)
	names := func() string { return strings.Join(c.state.names()[pricing], " ") }
	c.learn("name/shop/pricing:50051", "address/10.96.3.4:50051")
	c.mustApply(dests(serviceDest("name/shop/pricing:50051", pricing), serviceDest("address/10.96.3.4:50051", pricing)))
	c.mustApply(ends(marker(pricing)))
	if all := c.state.names(); len(all) != 1 || names() != "" {
		t.Errorf("%v is used by nobody", all)
	}
	// Routed by one of them.
	c.table.Route(clusterIP.Addr, "")
	c.state.seeUse(epoch)
	if got := names(); got != "address/10.96.3.4:50051" || !c.state.namesDirty {
		t.Errorf("names %s", got)
	}
	// Asked for the other.
	c.ask(router.Key{Name: "pricing:50051"})
	if got := names(); got != "address/10.96.3.4:50051 name/shop/pricing:50051" {
		t.Errorf("names %s", got)
	}
	// What the app had asked for before it was learned was always its own.
	own := newClass(t)
	own.ask(clusterIP)
	own.learn("address/10.96.3.4:50051")
	own.mustApply(dests(serviceDest("address/10.96.3.4:50051", pricing)))
	own.mustApply(ends(marker(pricing)))
	if got := own.state.names()[pricing]; !slices.Equal(got, []string{"address/10.96.3.4:50051"}) {
		t.Errorf("names %v", got)
	}
}
