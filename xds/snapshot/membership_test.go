// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"evenkeel.dev/xds"
)

// labelled gives a Service its selector or a Pod its labels, as "k=v,k=v".
func labelled(c Change, pairs string) Change {
	m := map[string]string{}
	for p := range strings.SplitSeq(pairs, ",") {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	if c.Kind == KindService {
		c.Service.Selector = NewLabels(m)
	} else {
		c.Pod.Labels = NewLabels(m)
	}
	return c
}

func external(c Change) Change {
	c.Service.External = true
	return c
}

// membership renders what is known of a pod: the flags, then each service.
func membership(s *Store, pod string) string {
	m, ok := s.Membership(key(pod))
	if !ok {
		return "unknown"
	}
	lines := []string{[]string{"none", "service", "external"}[m.Exposure]}
	if m.Draining {
		lines[0] += " draining"
	}
	for _, ps := range m.Services {
		line := ps.Service.String()
		if ps.Addr.IsValid() {
			line += " " + ps.Addr.String()
		}
		line += " " + ps.State.String()
		if ps.LocalOnly {
			line += " local"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestMembership(t *testing.T) {
	cart := labelled(clusterIP("cart", "10.96.0.1", "grpc=50051>50051"), "app=cart")
	c1 := labelled(pod("c-1#u1", "10.0.0.1", "app"), "app=cart,hash=7")
	for name, tt := range map[string]struct {
		changes []Change
		want    string
	}{
		"no such pod":                     {[]Change{cart}, "unknown"},
		"no service":                      {[]Change{c1}, "none"},
		"selected, in no slice yet":       {[]Change{cart, c1}, "service\nshop/cart:50051 UNKNOWN"},
		"selected in another namespace":   {[]Change{labelled(clusterIP("bank/cart", "10.96.0.1", "grpc=1>1"), "app=cart"), c1}, "none"},
		"one pair of two":                 {[]Change{labelled(clusterIP("cart", "10.96.0.1", "grpc=1>1"), "app=cart,tier=x"), c1}, "none"},
		"a pair's other value":            {[]Change{labelled(clusterIP("cart", "10.96.0.1", "grpc=1>1"), "app=car"), c1}, "none"},
		"every pair":                      {[]Change{labelled(clusterIP("cart", "10.96.0.1", "grpc=1>1"), "app=cart,hash=7"), c1}, "service\nshop/cart:1 UNKNOWN"},
		"no selector, no slice":           {[]Change{clusterIP("cart", "10.96.0.1", "grpc=1>1"), c1}, "none"},
		"a Service without TCP ports":     {[]Change{labelled(clusterIP("cart", "10.96.0.1"), "app=cart"), c1}, "service"},
		"warming":                         {[]Change{cart, c1, slice("a", "cart", grpc, "10.0.0.1 not pod=c-1#u1")}, "service\nshop/cart:50051 10.0.0.1:50051 UNHEALTHY"},
		"listed, app starting":            {[]Change{cart, pod("c-1#u1", "10.0.0.1"), slice("a", "cart", grpc, "10.0.0.1 not pod=c-1#u1")}, "service\nshop/cart:50051 10.0.0.1:50051 UNKNOWN"},
		"not selected but listed by hand": {[]Change{clusterIP("cart", "10.96.0.1", "grpc=1>1"), c1, slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1")}, "service\nshop/cart:1 10.0.0.1:50051 HEALTHY"},
		"the slice lists its predecessor": {
			[]Change{cart, c1, slice("a", "cart", grpc, "10.0.0.9 ready pod=c-1#u0")}, "service\nshop/cart:50051 UNKNOWN",
		},
		"the slice lists its predecessor, no selector": {
			[]Change{clusterIP("cart", "10.96.0.1", "grpc=1>1"), c1, slice("a", "cart", grpc, "10.0.0.9 ready pod=c-1#u0")}, "none",
		},
		"another pod has the address": {
			[]Change{
				cart, pod("c-0#u0", "10.0.0.1", "ready"), labelled(pod("c-1#u1", "10.0.0.1", "app", "term"), "app=cart"),
				slice("a", "cart", grpc, "10.0.0.1 ready pod=c-0#u0", "10.0.0.1 drain pod=c-1#u1"),
			},
			"service draining\nshop/cart:50051 10.0.0.1:50051 UNKNOWN",
		},
		"several Services, several ports, sorted": {
			[]Change{
				labelled(clusterIP("b", "10.96.0.2", "grpc=80>50051", "admin=90>9901"), "hash=7"), cart, c1,
				slice("s1", "b", []string{"grpc=50051", "admin=9901"}, "10.0.0.1 ready pod=c-1#u1"),
				slice("s2", "cart", grpc, "10.0.0.1 not pod=c-1#u1"),
			},
			"service\nshop/b:80 10.0.0.1:50051 HEALTHY\nshop/b:90 10.0.0.1:9901 HEALTHY\nshop/cart:50051 10.0.0.1:50051 UNHEALTHY",
		},
		"headless: by every number that it is dialled on": {
			[]Change{
				labelled(clusterIP("cart", "None", "grpc=80>8080", "admin=90>0"), "app=cart"), c1,
				slice("a", "cart", []string{"grpc=8080", "admin=9901"}, "10.0.0.1 ready pod=c-1#u1"),
			},
			"service\nshop/cart:80 10.0.0.1:8080 HEALTHY\nshop/cart:90 10.0.0.1:9901 HEALTHY\nshop/cart:8080 10.0.0.1:8080 HEALTHY\nshop/cart:9901 10.0.0.1:9901 HEALTHY",
		},
		"ExternalName": {
			[]Change{svc("cart", func(s *Service) { s.ExternalName = "x.example" }), c1, slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1")}, "service",
		},
		"internal traffic policy Local": {
			[]Change{
				labelled(svc("cart", func(s *Service) { s.LocalOnly, s.Ports = true, []ServicePort{{"grpc", 1, 50051}} }), "app=cart"), c1,
				slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"),
			},
			"service\nshop/cart:1 10.0.0.1:50051 HEALTHY local",
		},
		"dual stack: the address that is sent": {
			[]Change{
				cart, labelled(pod("c-1#u1", "10.0.0.1,fd00::1", "ready"), "app=cart"), slice("v4", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"),
				slice("v6", "cart", grpc, "fd00::1 ready pod=c-1#u1"),
			},
			"service\nshop/cart:50051 10.0.0.1:50051 HEALTHY",
		},
		"in two slices for a moment": {
			[]Change{cart, c1, slice("a", "cart", grpc, "10.0.0.1 not pod=c-1#u1"), slice("b", "cart", grpc, "10.0.0.1 ready pod=c-1#u1")},
			"service\nshop/cart:50051 10.0.0.1:50051 HEALTHY",
		},
		"one of two is a LoadBalancer": {
			[]Change{cart, c1, external(labelled(clusterIP("lb", "10.96.0.2", "grpc=1>1"), "app=cart"))},
			"external\nshop/cart:50051 UNKNOWN\nshop/lb:1 UNKNOWN",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := membership(storeOf(tt.changes...), "c-1"); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestMembershipOfThePod(t *testing.T) {
	c := pod("c-1#u1", "10.0.0.1,fd00::1", "ready", "term")
	c.Pod.DeletionGrace = 30 * time.Second
	m, _ := storeOf(c).Membership(key("c-1"))
	if got, want := fmt.Sprintf("%+v", m), "{UID:u1 Node:n1 AppReady:true Ready:true Terminating:true Draining:true DeletionGrace:30s IPs:[10.0.0.1 fd00::1] Exposure:0 Services:[]}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A changed label or selector moves the pod, and is told.
func TestMembershipFollowsLabels(t *testing.T) {
	s := storeOf(labelled(clusterIP("cart", "10.96.0.1", "grpc=1>1"), "a=1,b=2"), labelled(pod("c-1#u1", "10.0.0.1"), "a=1,b=2,c=3"))
	for _, st := range []struct {
		change Change
		want   string
	}{
		{labelled(pod("c-1#u1", "10.0.0.1"), "a=1,b=x,c=3"), "none"},
		{labelled(clusterIP("cart", "10.96.0.1", "grpc=1>1"), "a=1,c=3"), "service\nshop/cart:1 UNKNOWN"},
		{clusterIP("cart", "10.96.0.1", "grpc=1>1"), "none"},
	} {
		s.Drain()
		s.Apply(st.change)
		if got := membership(s, "c-1"); got != st.want {
			t.Errorf("%+v: %q, want %q", st.change, got, st.want)
		}
		if len(s.Drain().Topics) == 0 {
			t.Errorf("%+v: nothing was told", st.change)
		}
	}
}

func TestSetDraining(t *testing.T) {
	s := storeOf(
		clusterIP("cart", "10.96.0.1", "grpc=50051>50051"), clusterIP("web", "10.96.0.2", "grpc=80>50051"),
		pod("c-1#u1", "10.0.0.1", "ready"), pod("c-2#u2", "10.0.0.2", "ready"),
		slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1", "10.0.0.2 ready pod=c-2#u2"), slice("b", "web", grpc, "10.0.0.1 ready pod=c-1"),
	)
	s.Drain()
	state := func() string {
		return members(t, s, "shop/cart:50051", "") + "\n" + members(t, s, "shop/web:80", "")
	}
	ready := state()
	draining := strings.ReplaceAll(ready, "10.0.0.1:50051 HEALTHY", "10.0.0.1:50051 DRAINING")

	s.SetDraining("u9", DrainOn)
	s.SetDraining("", DrainOn)
	s.SetDraining("u1", DrainOff)
	if d := s.Drain(); len(d.Topics) != 0 || len(s.draining) != 0 {
		t.Errorf("of pods that are not known or do not drain, %v was told and %v is kept", d.Topics, s.draining)
	}
	s.SetDraining("u1", DrainOn)
	if got := state(); got != draining || strings.Count(got, "DRAINING") != 2 {
		t.Errorf("on: got\n%s\nwant\n%s", got, draining)
	}
	d := s.Drain()
	for _, svc := range []string{"cart", "web"} {
		if _, ok := d.Topics[Topic{kind: topicEndpoints, key: key(svc)}]; !ok {
			t.Errorf("the endpoints of %s were not told to change", svc)
		}
	}
	if m, _ := s.Membership(key("c-1")); !m.Draining || m.Terminating {
		t.Errorf("%+v", m)
	}
	s.SetDraining("u1", DrainOn)
	if d := s.Drain(); len(d.Topics) != 0 {
		t.Errorf("on again told %v", d.Topics)
	}
	// It serves no more: not sent, as of a pod that is being deleted.
	s.Apply(pod("c-1#u1", "10.0.0.1"))
	s.Apply(slice("b", "web", grpc, "10.0.0.1 not pod=c-1"))
	if got := members(t, s, "shop/web:80", ""); got != "" {
		t.Errorf("not serving, but sent: %s", got)
	}
	s.Apply(pod("c-1#u1", "10.0.0.1", "ready"))
	s.Apply(slice("b", "web", grpc, "10.0.0.1 ready pod=c-1"))
	s.SetDraining("u1", DrainOff)
	if got := state(); got != ready {
		t.Errorf("off: got\n%s\nwant\n%s", got, ready)
	}
	// Gone, and a StatefulSet's next one is there.
	s.SetDraining("u1", DrainOn)
	s.Apply(pod("c-1#u3", "10.0.0.1", "ready"))
	if len(s.draining) != 0 {
		t.Errorf("%v is remembered to drain", s.draining)
	}
	if m, _ := s.Membership(key("c-1")); m.Draining {
		t.Error("the successor drains")
	}
}

// A reused address is another resource version, also for the pod of the same name.
func TestEndpointUID(t *testing.T) {
	cart := xds.Service{Namespace: "shop", Name: "cart", Port: 50051}
	uidOf := func(s *Store) (uid, version string) {
		r := s.Collection(cart, nil).View("").Members[0]
		ep := &endpointpb.LbEndpoint{}
		unwrap(t, r, ep)
		return ep.GetMetadata().GetFilterMetadata()[xds.EndpointMetadata].GetFields()[xds.EndpointUID].GetStringValue(), r.Version
	}
	s := storeOf(clusterIP("cart", "10.96.0.1", "grpc=50051>50051"), pod("c-1#u1", "10.0.0.1", "ready"), slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"))
	uid, before := uidOf(s)
	if uid != "u1" {
		t.Errorf("uid %q", uid)
	}
	s.Apply(pod("c-1#u2", "10.0.0.1", "ready"))
	s.Apply(slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u2"))
	if uid, after := uidOf(s); uid != "u2" || after == before {
		t.Errorf("uid %q, version %s before and %s after", uid, before, after)
	}
	s.Apply(slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1"))
	if uid, _ := uidOf(s); uid != "u2" {
		t.Errorf("a slice without UIDs: uid %q", uid)
	}
}

func TestServicesAt(t *testing.T) {
	s := storeOf(
		clusterIP("cart", "10.96.0.1", "grpc=80>50051"), clusterIP("bank/cart", "None", "grpc=80>50051"),
		slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"), slice("bank/a", "cart", []string{"grpc=50051", "x=7"}, "10.0.0.1 ready"),
		slice("b", "orphan", grpc, "10.0.0.1 ready"),
		svc("any", func(s *Service) { s.Headless, s.AnyPort = true, true }), slice("c", "any", nil, "10.0.0.2 ready"),
		pod("n#u9", "10.0.0.3", "ready"),
	)
	for dst, want := range map[string]string{
		"10.96.0.1:80": "[shop/cart]", "10.0.0.1:50051": "[bank/cart shop/cart]", "[::ffff:10.0.0.1]:50051": "[bank/cart shop/cart]",
		"10.0.0.1:7": "[bank/cart]", "10.0.0.1:8": "[]", "10.0.0.2:8": "[shop/any]", "10.0.0.3:50051": "[]", "10.0.0.9:1": "[]",
	} {
		if got := fmt.Sprint(s.ServicesAt(netip.MustParseAddrPort(dst))); got != want {
			t.Errorf("%s: %s, want %s", dst, got, want)
		}
	}
}

func TestLabels(t *testing.T) {
	l := NewLabels(map[string]string{"b": "2", "a": "", "nul": "\x00"})
	var got []string
	for k, v := range l.All() {
		got = append(got, k+"="+v)
	}
	if fmt.Sprint(got) != "[a= b=2]" {
		t.Errorf("%q", got)
	}
	if l != NewLabels(map[string]string{"a": "", "b": "2"}) || l == NewLabels(map[string]string{"a": "", "b": "3"}) {
		t.Error("not compared by content")
	}
	if !NewLabels(nil).IsZero() || l.IsZero() {
		t.Error("IsZero")
	}
	for selector, want := range map[string]bool{"a=": true, "b=2": true, "a=,b=2": true, "b=": false, "a=,c=": false, "c=": false} {
		if c := labelled(clusterIP("x", "None"), selector); c.Service.Selector.selects(l) != want {
			t.Errorf("%s: want %v", selector, want)
		}
	}
	if (Labels{}).selects(l) {
		t.Error("an empty selector selects")
	}
}
