// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package router

import (
	"net/netip"
	"strings"
	"testing"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// noOrig is what the relay passes for a connection that was not redirected.
var noOrig = netip.AddrPortFrom(netip.Addr{}, 50051)

// world is a small cluster as seen from namespace shop.
func world() *Table {
	service := func(name string) Destination { return Destination{Kind: Service, Service: name} }
	headless := func(name string) Destination { return Destination{Kind: Service, Service: name, Headless: true} }
	pod := func(a string) Destination { return Destination{Kind: Pod, Endpoint: addr(a)} }
	return NewTable(map[Key]Destination{
		{Addr: addr("10.96.3.4:50051")}:    service("shop/pricing:50051"),
		{Addr: addr("[fd00:96::4]:50051")}: service("shop/pricing:50051"),
		{Addr: addr("10.244.1.7:50051")}:   pod("10.244.1.7:50051"),
		{Addr: addr("10.244.1.8:50051")}:   pod("10.244.1.8:50051"),
		{Addr: addr("[fd00::7]:50051")}:    pod("[fd00::7]:50051"),
		{Addr: addr("10.244.9.9:50051")}:   {},
		{Addr: addr("203.0.113.5:50051")}:  {Kind: External},

		{Name: "pricing:50051"}:                             service("shop/pricing:50051"),
		{Name: "pricing.shop.svc.cluster.local:50051"}:      service("shop/pricing:50051"),
		{Name: "web:50051"}:                                 headless("shop/web:50051"),
		{Name: "web.shop:50051"}:                            headless("shop/web:50051"),
		{Name: "web.shop.svc:50051"}:                        headless("shop/web:50051"),
		{Name: "web.shop.svc.cluster.local:50051"}:          headless("shop/web:50051"),
		{Name: "web-0.web:50051"}:                           pod("10.244.1.7:50051"),
		{Name: "web-0.web.shop.svc.cluster.local:50051"}:    pod("10.244.1.7:50051"),
		{Name: "web-1.web.shop.svc.cluster.local:50051"}:    {}, // not there now
		{Name: "api.example.com:50051"}:                     {},
		{Name: "partner:50051"}:                             {Kind: External},
		{Name: strings.Repeat("a", 63) + ".shop.svc:50051"}: service("shop/long:50051"),
	})
}

func TestRules(t *testing.T) {
	table := world()
	for _, tc := range []struct {
		rule      string
		orig      netip.AddrPort
		authority string
		want      string
	}{
		// 1: ClusterIP:port of a Service, whatever :authority says.
		{"1 name", addr("10.96.3.4:50051"), "pricing.shop:50051", "balance shop/pricing:50051"},
		{"1 another name", addr("10.96.3.4:50051"), "web.shop:50051", "balance shop/pricing:50051"},
		{"1 never heard of", addr("10.96.3.4:50051"), "what.ever:1", "balance shop/pricing:50051"},
		{"1 garbage", addr("10.96.3.4:50051"), "\x00@:::", "balance shop/pricing:50051"},
		{"1 empty", addr("10.96.3.4:50051"), "", "balance shop/pricing:50051"},
		{"1 IPv6", addr("[fd00:96::4]:50051"), "pricing", "balance shop/pricing:50051"},
		{"1 IPv4-mapped", addr("[::ffff:10.96.3.4]:50051"), "pricing", "balance shop/pricing:50051"},
		{"1 another port is another destination", addr("10.96.3.4:50052"), "\x00", "ask 10.96.3.4:50052"},

		// 2: a headless Service by any of its names, whatever pod was dialled.
		{"2 short", addr("10.244.1.8:50051"), "web:50051", "balance shop/web:50051"},
		{"2 namespace", addr("10.244.1.8:50051"), "web.shop:50051", "balance shop/web:50051"},
		{"2 svc", addr("10.244.1.8:50051"), "web.shop.svc:50051", "balance shop/web:50051"},
		{"2 full", addr("10.244.1.8:50051"), "web.shop.svc.cluster.local:50051", "balance shop/web:50051"},
		{"2 trailing dot", addr("10.244.1.8:50051"), "web.shop.svc.cluster.local.:50051", "balance shop/web:50051"},
		{"2 upper case", addr("10.244.1.8:50051"), "WEB.Shop.svc.CLUSTER.local:50051", "balance shop/web:50051"},
		{"2 port from orig", addr("10.244.1.8:50051"), "web.shop", "balance shop/web:50051"},
		{"2 empty port", addr("10.244.1.8:50051"), "web.shop:", "balance shop/web:50051"},
		{"2 trailing dot, port from orig", addr("10.244.1.8:50051"), "web.shop.", "balance shop/web:50051"},
		{"2 pod is gone", addr("10.244.9.9:50051"), "web.shop:50051", "balance shop/web:50051"},
		{"2 pod never heard of", addr("10.244.7.7:50051"), "web.shop:50051", "balance shop/web:50051 missing 10.244.7.7:50051"},
		{"2 mapped pod", addr("[::ffff:10.244.1.8]:50051"), "web.shop:50051", "balance shop/web:50051"},
		{"2 another port", addr("10.244.1.8:50051"), "web.shop:8080", "ask web.shop:8080"},

		// 3: one pod.
		{"3 StatefulSet", addr("10.244.1.7:50051"), "web-0.web:50051", "pin 10.244.1.7:50051"},
		{"3 StatefulSet, full", addr("10.244.1.7:50051"), "web-0.web.shop.svc.cluster.local:50051", "pin 10.244.1.7:50051"},
		{"3 StatefulSet, moved since it was resolved", addr("10.244.9.9:50051"), "web-0.web:50051", "pin 10.244.1.7:50051"},
		{"3 IP literal", addr("10.244.1.7:50051"), "10.244.1.7:50051", "pin 10.244.1.7:50051"},
		{"3 IP literal without port", addr("10.244.1.7:50051"), "10.244.1.7", "pin 10.244.1.7:50051"},
		{"3 IPv6 literal", addr("[fd00::7]:50051"), "[fd00::7]:50051", "pin [fd00::7]:50051"},
		{"3 IPv6 literal without port", addr("[fd00::7]:50051"), "[fd00::7]", "pin [fd00::7]:50051"},
		{"3 orig beats another literal", addr("10.244.1.7:50051"), "10.244.1.8:50051", "pin 10.244.1.7:50051"},
		{"3 a pod by a name that is not the cluster's", addr("10.244.1.7:50051"), "api.example.com:50051", "pin 10.244.1.7:50051"},
		{"3 a pod picked by a client-side balancer", addr("10.244.1.7:50051"), "pricing:50051", "pin 10.244.1.7:50051"},
		{"3 no authority", addr("10.244.1.7:50051"), "", "pin 10.244.1.7:50051"},

		// 4: not known.
		{"4 both", addr("10.1.1.1:50051"), "new.shop:50051", "ask 10.1.1.1:50051 new.shop:50051"},
		{"4 both, normalised", addr("[::ffff:10.1.1.1]:50051"), "NEW.shop.", "ask 10.1.1.1:50051 new.shop:50051"},
		{"4 name only", addr("10.244.9.9:50051"), "new.shop:50051", "ask new.shop:50051"},
		{"4 address only", addr("10.1.1.1:50051"), "api.example.com:50051", "ask 10.1.1.1:50051"},
		{"4 literal asks for the address alone", addr("10.1.1.1:50051"), "10.1.1.1:50051", "ask 10.1.1.1:50051"},
		{"4 userinfo is garbage", addr("10.1.1.1:50051"), "user@new.shop:50051", "ask 10.1.1.1:50051"},
		{"4 known to be unknown", addr("10.244.9.9:50051"), "api.example.com:50051", "relay 10.244.9.9:50051"},
		{"4 external", addr("203.0.113.5:50051"), "partner:50051", "relay 203.0.113.5:50051"},
		{"4 StatefulSet pod that is away", addr("10.244.9.9:50051"), "web-1.web.shop.svc.cluster.local:50051", "relay 10.244.9.9:50051"},
		{"4 named Service, foreign address", addr("203.0.113.5:50051"), "pricing:50051", "relay 203.0.113.5:50051"},
		{"4 link-local is not asked about", addr("[fe80::1%eth0]:50051"), "api.example.com:50051", "relay [fe80::1%eth0]:50051"},

		// 6: no original destination.
		{"6 Service", noOrig, "pricing:50051", "balance shop/pricing:50051"},
		{"6 Service, default port", noOrig, "pricing", "balance shop/pricing:50051"},
		{"6 headless", noOrig, "web.shop:50051", "balance shop/web:50051"},
		{"6 pod", noOrig, "web-0.web:50051", "pin 10.244.1.7:50051"},
		{"6 ClusterIP literal", noOrig, "10.96.3.4:50051", "balance shop/pricing:50051"},
		{"6 pod literal", noOrig, "10.244.1.7:50051", "pin 10.244.1.7:50051"},
		{"6 IPv6 literal", noOrig, "[fd00::7]:50051", "pin [fd00::7]:50051"},
		{"6 mapped literal", noOrig, "[::ffff:10.244.1.7]:50051", "pin 10.244.1.7:50051"},
		{"6 new", noOrig, "New.shop", "ask new.shop:50051"},
		{"6 new literal", noOrig, "10.1.1.1", "ask 10.1.1.1:50051"},
		{"6 unknown", noOrig, "api.example.com:50051", "refuse names no Service and no pod"},
		{"6 unknown literal", noOrig, "10.244.9.9:50051", "refuse names no Service and no pod"},
		{"6 external", noOrig, "partner:50051", "refuse outside the cluster"},
		{"6 the listener itself", noOrig, "127.0.0.1:15951", "refuse is this pod itself"},
		{"6 the listener itself, IPv6", noOrig, "[::1]:15951", "refuse is this pod itself"},
		{"6 empty", noOrig, "", "refuse is not a host with a port"},
		{"6 no port at all", netip.AddrPort{}, "pricing", "refuse is not a host with a port"},
		{"6 port of its own", netip.AddrPort{}, "pricing:50051", "balance shop/pricing:50051"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			got := describe(table.Route(tc.orig, tc.authority))
			if strings.HasPrefix(tc.want, "refuse") {
				if !matches(got, tc.want) {
					t.Errorf("Route(%s, %q) = %s, want %s", tc.orig, tc.authority, got, tc.want)
				}
				return
			}
			if got != tc.want {
				t.Errorf("Route(%s, %q) = %s, want %s", tc.orig, tc.authority, got, tc.want)
			}
		})
	}
}

func describe(r Route) string {
	s := r.Verdict.String()
	switch r.Verdict {
	case Balance:
		s += " " + r.Service
	case Pin, Relay:
		s += " " + r.Endpoint.String()
	case Refuse:
		s += " " + r.Reason
	case Ask:
	}
	for i := range r.N {
		if r.Verdict != Ask {
			s += " missing"
		}
		s += " " + r.Missing[i].String()
	}
	return s
}

func matches(got, want string) bool {
	return strings.HasPrefix(got, "refuse evenkeel: :authority ") && strings.Contains(got, strings.TrimPrefix(want, "refuse "))
}

func TestNilTableKnowsNothing(t *testing.T) {
	var table *Table
	if got := describe(table.Route(addr("10.0.0.1:1"), "a:1")); got != "ask 10.0.0.1:1 a:1" {
		t.Error(got)
	}
	if got := describe(table.Route(noOrig, "a")); got != "ask a:50051" {
		t.Error(got)
	}
	if _, ok := table.Lookup(Key{Name: "a:1"}); ok || table.Len() != 0 {
		t.Error("a nil table has something")
	}
	for range table.Keys() {
		t.Error("a nil table has keys")
	}
}

func TestReasonIsBounded(t *testing.T) {
	r := NewTable(nil).Route(noOrig, strings.Repeat("\x01", 1<<20))
	if r.Verdict != Refuse || len(r.Reason) > 4*maxKey+200 {
		t.Errorf("%s with %d bytes of reason", r.Verdict, len(r.Reason))
	}
}

func TestUsageIsMarkedByWhatDecides(t *testing.T) {
	var service, pod, name Usage
	table := NewTable(map[Key]Destination{
		{Addr: addr("10.96.3.4:50051")}:  {Kind: Service, Service: "a/b:1", Usage: &service},
		{Addr: addr("10.244.1.7:50051")}: {Kind: Pod, Usage: &pod},
		{Name: "web:50051"}:              {Kind: Service, Headless: true, Service: "a/web:1", Usage: &name},
	})
	taken := func() [3]bool { return [3]bool{service.Take(), pod.Take(), name.Take()} }
	if taken() != [3]bool{} {
		t.Error("used before any use")
	}
	table.Route(addr("10.96.3.4:50051"), "web:50051")
	if got := taken(); got != [3]bool{true, false, false} {
		t.Errorf("after a ClusterIP: %v", got)
	}
	table.Route(addr("10.244.1.7:50051"), "web")
	if got := taken(); got != [3]bool{false, true, true} {
		t.Errorf("after a headless name: %v", got)
	}
	table.Lookup(Key{Name: "web:50051"})
	for range table.Keys() {
	}
	if taken() != [3]bool{} {
		t.Error("looking is not using")
	}
}

func TestParse(t *testing.T) {
	long := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"a":                         "name a:7",
		"A.b-c.D":                   "name a.b-c.d:7",
		"a:1":                       "name a:1",
		"a:65535":                   "name a:65535",
		"a:00080":                   "name a:80",
		"a.":                        "name a:7",
		"1a":                        "name 1a:7",
		"a.1b":                      "name a.1b:7",
		long + ".b":                 "name " + long + ".b:7",
		"10.0.0.1":                  "literal 10.0.0.1:7",
		"10.0.0.1.":                 "literal 10.0.0.1:7",
		"[::1]":                     "literal [::1]:7",
		"[::ffff:1.2.3.4]:80":       "literal 1.2.3.4:80",
		"":                          "garbage",
		".":                         "garbage",
		"..":                        "garbage",
		"a..b":                      "garbage",
		".a":                        "garbage",
		"a..":                       "garbage",
		"-a":                        "garbage",
		"a-":                        "garbage",
		"a-.b":                      "garbage",
		"a_b":                       "garbage",
		"a b":                       "garbage",
		"ä":                         "garbage",
		"a:0":                       "garbage",
		"a:65536":                   "garbage",
		"a:000080":                  "garbage",
		"a:+80":                     "garbage",
		"a:-1":                      "garbage",
		"a:8o":                      "garbage",
		"a:b:1":                     "garbage",
		"::1":                       "garbage",
		"::1:80":                    "garbage",
		":80":                       "garbage",
		"[":                         "garbage",
		"[]":                        "garbage",
		"[]:80":                     "garbage",
		"[::1":                      "garbage",
		"[::1]x":                    "garbage",
		"[::1]80":                   "garbage",
		"[1.2.3.4]":                 "garbage",
		"[fe80::1%25eth0]:80":       "garbage",
		"user@a":                    "garbage",
		"user:pw@a:80":              "garbage",
		"1.2.3":                     "garbage",
		"1.2.3.256":                 "garbage",
		"1.2.3.04":                  "garbage",
		"a.123":                     "garbage",
		"http://a":                  "garbage",
		"a/b":                       "garbage",
		"%2Ftmp%2Fsock":             "garbage",
		long + "a":                  "garbage",
		strings.Repeat(long+".", 4): "garbage",
	} {
		var tgt target
		tgt.parse(in, 7)
		if got := tgt.String(); got != want {
			t.Errorf("parse(%q) = %s, want %s", in, got, want)
		}
	}
}

func (t *target) String() string {
	switch t.kind {
	case name:
		return "name " + string(t.key())
	case literal:
		return "literal " + t.addr.String()
	case garbage:
	}
	return "garbage"
}

// FuzzParse holds the invariants that the control plane relies on: what is
// asked is canonical and bounded, and means the same when it is parsed again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"pricing.shop:50051", "[::1]:80", "10.0.0.1", "A.b.", "user@x:1", "a:b:c", "[::ffff:1.2.3.4]", "1.2.3.4.:9", ""} {
		f.Add(s, uint16(50051))
	}
	f.Fuzz(func(t *testing.T, authority string, port uint16) {
		var tgt target
		tgt.parse(authority, port)
		switch tgt.kind {
		case garbage:
		case literal:
			if !tgt.addr.IsValid() || tgt.addr.Port() == 0 || tgt.addr.Addr().Is4In6() || tgt.addr.Addr().Zone() != "" {
				t.Fatalf("%q: literal %s", authority, tgt.addr)
			}
			var again target
			if again.parse(tgt.addr.String(), 1); again.kind != literal || again.addr != tgt.addr {
				t.Fatalf("%q: literal %s is parsed again as %s", authority, tgt.addr, &again)
			}
		case name:
			key := string(tgt.key())
			if len(key) > maxKey || key != strings.ToLower(key) || strings.Count(key, ":") != 1 || strings.Contains(key, ".:") {
				t.Fatalf("%q: key %q", authority, key)
			}
			var again target
			if again.parse(key, 1); again.kind != name || string(again.key()) != key {
				t.Fatalf("%q: key %q is parsed again as %s", authority, key, &again)
			}
		}
		// Whatever it is, a redirected stream is never refused.
		if r := world().Route(addr("10.1.1.1:50051"), authority); r.Verdict == Refuse {
			t.Fatalf("%q: refused with an original destination: %s", authority, r.Reason)
		}
		if r := world().Route(noOrig, authority); r.Verdict == Relay {
			t.Fatalf("%q: relayed without an original destination", authority)
		}
	})
}

func TestRouteDoesNotAllocate(t *testing.T) {
	table := world()
	for what, in := range map[string]struct {
		orig      netip.AddrPort
		authority string
	}{
		"ClusterIP":            {addr("10.96.3.4:50051"), "pricing.shop:50051"},
		"headless":             {addr("10.244.1.8:50051"), "web.shop.svc.cluster.local:50051"},
		"headless, upper case": {addr("10.244.1.8:50051"), "WEB.shop.svc.cluster.local."},
		"literal":              {addr("10.244.1.7:50051"), "10.244.1.7:50051"},
		"unknown":              {addr("10.244.9.9:50051"), "api.example.com:50051"},
		"no orig":              {noOrig, "pricing"},
	} {
		if n := testing.AllocsPerRun(100, func() { table.Route(in.orig, in.authority) }); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	table := world()
	for what, in := range map[string]struct {
		orig      netip.AddrPort
		authority string
	}{
		"ClusterIP": {addr("10.96.3.4:50051"), "pricing.shop:50051"},
		"headless":  {addr("10.244.1.8:50051"), "web.shop.svc.cluster.local:50051"},
		"no-orig":   {noOrig, "pricing.shop.svc.cluster.local:50051"},
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				table.Route(in.orig, in.authority)
			}
		})
	}
}
