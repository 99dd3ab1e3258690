// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"evenkeel.dev/xds/snapshot"
)

func services(all ...*snapshot.Service) map[ref]snapshot.Change {
	want := map[ref]snapshot.Change{}
	for _, svc := range all {
		want[ref{snapshot.KindService, svc.Key}] = snapshot.Change{Kind: snapshot.KindService, Key: svc.Key, Service: svc}
	}
	return want
}

func TestAssign(t *testing.T) {
	key := func(name string) snapshot.ObjectKey { return snapshot.ObjectKey{Namespace: "shop", Name: name} }
	a, b := &snapshot.Service{Key: key("a")}, &snapshot.Service{Key: key("b")}
	own := &snapshot.Service{Key: key("own"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	headless := &snapshot.Service{Key: key("headless"), Headless: true}
	external := &snapshot.Service{Key: key("external"), ExternalName: "example.com"}
	ips := func(want map[ref]snapshot.Change, svc *snapshot.Service) []netip.Addr {
		return want[ref{snapshot.KindService, svc.Key}].Service.ClusterIPs
	}

	f := &Files{log: slog.New(slog.DiscardHandler)}
	want := services(a, b, own, headless, external)
	f.assign(want)
	for _, svc := range []*snapshot.Service{a, b} {
		if got := ips(want, svc); len(got) != 1 || !assignable.Contains(got[0]) {
			t.Errorf("%s: %v, want one address of %s", svc.Key, got, assignable)
		}
		if len(svc.ClusterIPs) != 0 {
			t.Errorf("%s: the input was written", svc.Key)
		}
	}
	for _, svc := range []*snapshot.Service{own, headless, external} {
		if got := ips(want, svc); !slices.Equal(got, svc.ClusterIPs) {
			t.Errorf("%s: %v, want %v", svc.Key, got, svc.ClusterIPs)
		}
	}

	// The same values while nothing changes, whatever else does.
	again := services(a, own)
	f.assign(again)
	if r := (ref{snapshot.KindService, a.Key}); again[r] != want[r] {
		t.Error("an unchanged Service is another value")
	}

	// Another reader of the same directory agrees; an address that a file names is never given away.
	first := ips(want, a)[0]
	squatter := &snapshot.Service{Key: key("squatter"), ClusterIPs: []netip.Addr{first}}
	want = services(a, squatter)
	f.assign(want)
	other := services(squatter, a)
	(&Files{log: slog.New(slog.DiscardHandler)}).assign(other)
	if got := ips(want, a)[0]; got == first || got != ips(other, a)[0] || !assignable.Contains(got) {
		t.Errorf("got %s beside a Service that has %s; another reader %s", got, first, ips(other, a)[0])
	}
}

// Thousands of Services collide often; each has an address of its own all the same, at the end of the block, too.
func TestAssignMany(t *testing.T) {
	var all []*snapshot.Service
	for i := range 5000 {
		all = append(all, &snapshot.Service{Key: snapshot.ObjectKey{Namespace: "n", Name: fmt.Sprint("s", i)}})
	}
	last := netip.MustParseAddr("198.18.255.255")
	all = append(all, &snapshot.Service{Key: snapshot.ObjectKey{Namespace: "n", Name: "last"}, ClusterIPs: []netip.Addr{last}})
	want := services(all...)
	(&Files{log: slog.New(slog.DiscardHandler)}).assign(want)
	seen := map[netip.Addr]bool{}
	for c := range maps.Values(want) {
		ip := c.Service.ClusterIPs[0]
		if seen[ip] || !assignable.Contains(ip) {
			t.Fatalf("%s has %s, which is taken or no address for it", c.Key, ip)
		}
		seen[ip] = true
	}
}

func TestFilesAssignClusterIPs(t *testing.T) {
	f := newFolder(t, nil, map[string]string{
		"a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 50051}]}\n",
	})
	ip := startAddr(snapshot.ObjectKey{Namespace: "default", Name: "a"}).String()
	f.wantServices("a=" + ip)
	f.write("b.yaml", serviceYAML("b", "10.0.0.2"))
	f.wantServices("a=" + ip + " b=10.0.0.2")
	f.write("a.yaml", serviceYAML("a", "10.0.0.1"))
	f.wantServices("a=10.0.0.1 b=10.0.0.2")
}
