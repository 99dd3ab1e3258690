// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"strings"
	"testing"

	"evenkeel.dev/xds"
)

var grpc = []string{"grpc=50051"}

func TestCollection(t *testing.T) {
	cart := clusterIP("cart", "10.96.0.1", "grpc=50051>50051")
	for name, tt := range map[string]struct {
		changes []Change
		service string
		node    string
		want    string
	}{
		"no service": {nil, "shop/cart:50051", "", "none"},
		"no such port": {
			[]Change{cart, slice("a", "cart", grpc, "10.0.0.1 ready")}, "shop/cart:8080", "", "none",
		},
		"no endpoints": {[]Change{cart}, "shop/cart:50051", "", ""},
		"slice without its service": {
			[]Change{slice("a", "cart", grpc, "10.0.0.1 ready")}, "shop/cart:50051", "", "none",
		},
		"manual slice without pods": {
			[]Change{cart, slice("a", "cart", grpc, "192.168.0.9 ready zone=z9")},
			"shop/cart:50051", "", "192.168.0.9:50051 HEALTHY zone=z9",
		},
		"slice of another namespace": {
			[]Change{cart, slice("bank/a", "cart", grpc, "10.0.0.1 ready")}, "shop/cart:50051", "", "",
		},
		"several slices": {
			[]Change{cart, slice("a", "cart", grpc, "10.0.0.1 ready"), slice("b", "cart", grpc, "10.0.0.2 ready")},
			"shop/cart:50051", "", "10.0.0.1:50051 HEALTHY\n10.0.0.2:50051 HEALTHY",
		},
		"moved between slices, in both for a moment": {
			[]Change{
				cart, pod("c-1#u1", "10.0.0.1"),
				slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"), slice("b", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"),
			},
			"shop/cart:50051", "", "10.0.0.1:50051 HEALTHY pod=shop/c-1",
		},
		"moved while it ends: the one that knows of the end is newer": {
			[]Change{cart, slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"), slice("b", "cart", grpc, "10.0.0.1 drain pod=c-1#u1")},
			"shop/cart:50051", "", "10.0.0.1:50051 DRAINING pod=shop/c-1",
		},
		"named target port with two numbers": {
			[]Change{
				clusterIP("cart", "10.96.0.1", "grpc=80>0"),
				slice("old", "cart", []string{"grpc=8080"}, "10.0.0.1 ready"), slice("new", "cart", []string{"grpc=9090"}, "10.0.0.2 ready"),
			},
			"shop/cart:80", "", "10.0.0.1:8080 HEALTHY\n10.0.0.2:9090 HEALTHY",
		},
		"several ports: only its own": {
			[]Change{
				clusterIP("cart", "10.96.0.1", "grpc=50051>50051", "admin=8080>9901"),
				slice("a", "cart", []string{"grpc=50051", "admin=9901"}, "10.0.0.1 ready"),
			},
			"shop/cart:8080", "", "10.0.0.1:9901 HEALTHY",
		},
		"headless by target port": {
			[]Change{clusterIP("cart", "None", "grpc=80>50051"), slice("a", "cart", grpc, "10.0.0.1 ready")},
			"shop/cart:50051", "", "10.0.0.1:50051 HEALTHY",
		},
		"headless with a named target port, known by the slices": {
			[]Change{
				clusterIP("cart", "None", "grpc=80>0"),
				slice("old", "cart", []string{"grpc=8080"}, "10.0.0.1 ready"), slice("new", "cart", []string{"grpc=9090"}, "10.0.0.2 ready"),
			},
			"shop/cart:8080", "", "10.0.0.1:8080 HEALTHY\n10.0.0.2:9090 HEALTHY",
		},
		"headless by its own port when no target port matches": {
			[]Change{clusterIP("cart", "None", "grpc=80>50051"), slice("a", "cart", grpc, "10.0.0.1 ready")},
			"shop/cart:80", "", "10.0.0.1:50051 HEALTHY",
		},
		"headless without any port": {
			[]Change{
				svc("cart", func(s *Service) { s.Headless, s.AnyPort = true, true }),
				slice("a", "cart", nil, "10.0.0.1 ready"),
			},
			"shop/cart:1234", "", "10.0.0.1:1234 HEALTHY",
		},
		"external name has no endpoints": {
			[]Change{svc("cart", func(s *Service) { s.ExternalName = "cart.example.com" })}, "shop/cart:50051", "", "none",
		},
		"dual stack: one endpoint for a pod, of the preferred family": {
			[]Change{
				clusterIP("cart", "10.96.0.1,fd00::1", "grpc=50051>50051"),
				slice("v4", "cart", grpc, "10.0.0.1 ready pod=c-1#u1", "10.0.0.3 ready pod=c-3#u3"),
				slice("v6", "cart", grpc, "fd00::a ready pod=c-1#u1", "fd00::b ready pod=c-2#u2"),
			},
			"shop/cart:50051", "", "10.0.0.1:50051 HEALTHY pod=shop/c-1\n10.0.0.3:50051 HEALTHY pod=shop/c-3\n[fd00::b]:50051 HEALTHY pod=shop/c-2",
		},
		"dual stack, IPv6 first": {
			[]Change{
				svc("cart", func(s *Service) {
					s.PreferIPv6, s.Ports = true, []ServicePort{{"grpc", 50051, 50051}}
				}),
				slice("v4", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"), slice("v6", "cart", grpc, "fd00::a ready pod=c-1#u1"),
			},
			"shop/cart:50051", "", "[fd00::a]:50051 HEALTHY pod=shop/c-1",
		},
		"zone of the slice, else of the node": {
			[]Change{cart, node("n1", "z1"), slice("a", "cart", grpc, "10.0.0.1 ready zone=z7", "10.0.0.2 ready")},
			"shop/cart:50051", "", "10.0.0.1:50051 HEALTHY zone=z7\n10.0.0.2:50051 HEALTHY zone=z1",
		},
		"internal traffic policy Local": {
			[]Change{
				svc("cart", func(s *Service) { s.LocalOnly, s.Ports = true, []ServicePort{{"grpc", 50051, 50051}} }),
				slice("a", "cart", grpc, "10.0.0.1 ready node=n1", "10.0.0.2 ready node=n2"),
			},
			"shop/cart:50051", "n2", "10.0.0.2:50051 HEALTHY",
		},
		"internal traffic policy Local, nothing on the node": {
			[]Change{
				svc("cart", func(s *Service) { s.LocalOnly, s.Ports = true, []ServicePort{{"grpc", 50051, 50051}} }),
				slice("a", "cart", grpc, "10.0.0.1 ready node=n1"),
			},
			"shop/cart:50051", "n3", "",
		},
		"a headless Service knows no traffic policy": {
			[]Change{
				svc("cart", func(s *Service) {
					s.Headless, s.LocalOnly, s.Ports = true, true, []ServicePort{{"grpc", 50051, 50051}}
				}),
				slice("a", "cart", grpc, "10.0.0.1 ready node=n1"),
			},
			"shop/cart:50051", "n3", "10.0.0.1:50051 HEALTHY",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := members(t, storeOf(tt.changes...), tt.service, tt.node); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// The table of the package's documentation, row by row.
func TestEndpointState(t *testing.T) {
	cart := clusterIP("cart", "10.96.0.1", "grpc=50051>50051")
	for name, tt := range map[string]struct {
		slice string
		pod   []Change
		want  string
	}{
		"ready":                            {"ready", []Change{pod("c-1#u1", "10.0.0.1", "app")}, "HEALTHY"},
		"ready, pod not seen yet":          {"ready", nil, "HEALTHY"},
		"not ready, pod not seen yet":      {"not", nil, ""},
		"not ready, app starting":          {"not", []Change{pod("c-1#u1", "10.0.0.1")}, ""},
		"only our sidecar is missing":      {"not", []Change{pod("c-1#u1", "10.0.0.1", "app")}, "UNHEALTHY"},
		"pod ready, slice behind":          {"not", []Change{pod("c-1#u1", "10.0.0.1", "ready")}, "HEALTHY"},
		"pod ready and ends, slice behind": {"not", []Change{pod("c-1#u1", "10.0.0.1", "ready", "term")}, "DRAINING"},
		"slice ends, pod still ready":      {"end", []Change{pod("c-1#u1", "10.0.0.1", "ready")}, ""},
		"pod not ready any more":           {"not", []Change{pod("c-1#u1", "10.0.0.1", "ready"), pod("c-1#u1", "10.0.0.1", "app")}, "UNHEALTHY"},
		"terminating, serving":             {"drain", []Change{pod("c-1#u1", "10.0.0.1", "app", "term")}, "DRAINING"},
		"terminating, not serving":         {"end", []Change{pod("c-1#u1", "10.0.0.1", "term")}, ""},
		"pod deleted, slice behind":        {"ready", []Change{pod("c-1#u1", "10.0.0.1", "app", "term")}, "DRAINING"},
		"warming pod deleted":              {"not", []Change{pod("c-1#u1", "10.0.0.1", "app", "term")}, ""},
		"slice knows first":                {"drain", []Change{pod("c-1#u1", "10.0.0.1", "app")}, "DRAINING"},
		"publishNotReadyAddresses":         {"published", []Change{pod("c-1#u1", "10.0.0.1")}, "HEALTHY"},
		"publishNotReadyAddresses, ends":   {"published-end", []Change{pod("c-1#u1", "10.0.0.1", "term")}, "DRAINING"},
		"pod gone, slice behind": {
			"ready", []Change{pod("c-1#u1", "10.0.0.1", "app"), gone(pod("c-1#u1", ""))}, "",
		},
		"pod replaced by one of its name, slice behind": {
			"ready", []Change{pod("c-1#u1", "10.0.0.1", "app"), pod("c-1#u2", "10.0.0.2", "app")}, "",
		},
		"another pod of that name does not make it warm": {
			"not", []Change{pod("c-1#u0", "10.0.0.1", "app")}, "",
		},
		"pod shown again after its end was reported": {
			"ready", []Change{pod("c-1#u1", "10.0.0.1", "app"), gone(pod("c-1#u1", "")), pod("c-1#u1", "10.0.0.1", "app")}, "HEALTHY",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := storeOf(cart, slice("a", "cart", grpc, "10.0.0.1 "+tt.slice+" pod=c-1#u1"))
			for _, c := range tt.pod {
				s.Apply(c)
			}
			got := members(t, s, "shop/cart:50051", "")
			want := tt.want
			if want != "" {
				want = "10.0.0.1:50051 " + want + " pod=shop/c-1"
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// Within a second, a new Pod may have the address of one that has just ended.
func TestAddressIsReused(t *testing.T) {
	s := storeOf(
		clusterIP("cart", "10.96.0.1", "grpc=50051>50051"),
		pod("c-1#u1", "10.0.0.1", "app", "age=1"), slice("a", "cart", grpc, "10.0.0.1 ready pod=c-1#u1"),
	)
	steps := []struct {
		what    string
		change  Change
		want    string
		address string
	}{
		{"the old one ends", pod("c-1#u1", "10.0.0.1", "app", "term", "age=1"), "10.0.0.1:50051 DRAINING pod=shop/c-1", "pod 10.0.0.1:50051 shop/c-1"},
		{"a new one has its address", pod("c-2#u2", "10.0.0.1", "app", "age=2"), "10.0.0.1:50051 DRAINING pod=shop/c-1", "pod 10.0.0.1:50051 shop/c-2"},
		{"and is in another slice", slice("b", "cart", grpc, "10.0.0.1 not pod=c-2#u2"), "10.0.0.1:50051 UNHEALTHY pod=shop/c-2", "pod 10.0.0.1:50051 shop/c-2"},
		{"the old one is gone", gone(pod("c-1#u1", "")), "10.0.0.1:50051 UNHEALTHY pod=shop/c-2", "pod 10.0.0.1:50051 shop/c-2"},
		{"the new one is ready", slice("b", "cart", grpc, "10.0.0.1 ready pod=c-2#u2"), "10.0.0.1:50051 HEALTHY pod=shop/c-2", "pod 10.0.0.1:50051 shop/c-2"},
		{"the old slice is gone", gone(slice("a", "cart", nil)), "10.0.0.1:50051 HEALTHY pod=shop/c-2", "pod 10.0.0.1:50051 shop/c-2"},
	}
	for _, st := range steps {
		s.Apply(st.change)
		if got := members(t, s, "shop/cart:50051", ""); got != st.want {
			t.Errorf("%s: %q, want %q", st.what, got, st.want)
		}
		if got := destination(t, s, "address/10.0.0.1:50051"); got != st.address {
			t.Errorf("%s: the address is %q, want %q", st.what, got, st.address)
		}
	}
	if len(s.gone) != 0 || len(s.byUID["u1"]) != 0 {
		t.Errorf("the end of u1 is still remembered: %v, %v", s.gone, s.byUID)
	}
}

// What stayed the same is the same object, so that nothing is encoded or sent.
func TestCollectionKeepsWhatStayed(t *testing.T) {
	cart := xds.Service{Namespace: "shop", Name: "cart", Port: 50051}
	s := storeOf(clusterIP("cart", "10.96.0.1", "grpc=50051>50051"), slice("a", "cart", grpc, "10.0.0.1 ready", "10.0.0.2 ready"))
	before := s.Collection(cart, nil)
	s.Apply(node("n9", "z9"))
	s.Apply(svc("cart", func(x *Service) { *x = *s.services[key("cart")]; x.Policy = xds.PolicyRoundRobin }))
	if after := s.Collection(cart, before); after != before {
		t.Error("a change that is not the endpoints' made another collection")
	}
	s.Apply(slice("a", "cart", grpc, "10.0.0.1 ready", "10.0.0.2 drain"))
	after := s.Collection(cart, before)
	if after == before {
		t.Fatal("the change was not seen")
	}
	changed, removed := after.View("").Diff(before.View(""))
	if len(changed) != 1 || !strings.HasSuffix(changed[0].Name, "/10.0.0.2:50051") || len(removed) != 0 {
		t.Errorf("changed %v, removed %v", changed, removed)
	}
	if after.View("").Members[0] != before.View("").Members[0] {
		t.Error("10.0.0.1 was encoded again")
	}
	// Taken back: another pointer, but the version that clients have already.
	s.Apply(slice("a", "cart", grpc, "10.0.0.1 ready", "10.0.0.2 ready"))
	if changed, removed := s.Collection(cart, nil).View("").Diff(before.View("")); len(changed)+len(removed) != 0 {
		t.Errorf("versions are not those of the content: changed %v, removed %v", changed, removed)
	}
}

// A node's view that stayed the same is the same object, too.
func TestLocalViewsKeepWhatStayed(t *testing.T) {
	cart := xds.Service{Namespace: "shop", Name: "cart", Port: 50051}
	s := storeOf(
		svc("cart", func(s *Service) { s.LocalOnly, s.Ports = true, []ServicePort{{"grpc", 50051, 50051}} }),
		slice("a", "cart", grpc, "10.0.0.1 ready node=n1", "10.0.0.2 ready node=n2"),
	)
	before := s.Collection(cart, nil)
	s.Apply(slice("a", "cart", grpc, "10.0.0.1 ready node=n1", "10.0.0.2 drain node=n2"))
	after := s.Collection(cart, before)
	if after.View("n1") != before.View("n1") {
		t.Error("n1's view changed though nothing on it did")
	}
	if after.View("n3") != before.View("n3") {
		t.Error("the empty view of n3 changed")
	}
	if after.View("n2") == before.View("n2") {
		t.Error("n2's view did not change")
	}
}
