// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"fmt"
	"net/netip"
	"testing"

	"evenkeel.dev/xds"
)

// BenchmarkOneEndpoint is a change of one endpoint in a Service of many: ten
// slices of a hundred, of which one changes.
func BenchmarkOneEndpoint(b *testing.B) {
	cart := xds.Service{Namespace: "shop", Name: "cart", Port: 50051}
	s := storeOf(clusterIP("cart", "10.96.0.1", "grpc=50051>50051"))
	make100 := func(n int, ready bool) Change {
		sl := &Slice{Key: key(fmt.Sprintf("cart-%d", n)), Service: "cart", Ports: []SlicePort{{"grpc", 50051}}}
		for i := range 100 {
			name := fmt.Sprintf("cart-%d-%d", n, i)
			sl.Endpoints = append(sl.Endpoints, Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, 1, byte(n), byte(i)}), Ready: ready || i > 0, Serving: true, Terminating: !ready && i == 0,
				Node: "n1", Zone: "z1", Pod: name, PodUID: name,
			})
		}
		return Change{Kind: KindSlice, Key: sl.Key, Slice: sl}
	}
	for n := range 10 {
		s.Apply(make100(n, true))
	}
	c := s.Collection(cart, nil)
	flip := []Change{make100(3, false), make100(3, true)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Apply(flip[i%2])
		next := s.Collection(cart, c)
		if changed, removed := next.View("").Diff(c.View("")); len(changed) != 1 || len(removed) != 0 {
			b.Fatalf("%d changed, %d removed", len(changed), len(removed))
		}
		c = next
	}
}

// BenchmarkMembership is asked for each Pod of a rollout at each change: one Pod of
// a thousand in its Service, in a namespace of a hundred Services.
func BenchmarkMembership(b *testing.B) {
	s := NewStore(Config{})
	for n := range 100 {
		name := fmt.Sprintf("svc-%d", n)
		s.Apply(labelled(clusterIP(name, fmt.Sprintf("10.96.0.%d", n), "grpc=50051>50051"), "app="+name+",team=a"))
	}
	for n := range 10 {
		sl := &Slice{Key: key(fmt.Sprintf("s-%d", n)), Service: "svc-7", Ports: []SlicePort{{"grpc", 50051}}}
		for i := range 100 {
			name := fmt.Sprintf("p-%d-%d", n, i)
			addr := netip.AddrFrom4([4]byte{10, 1, byte(n), byte(i)})
			sl.Endpoints = append(sl.Endpoints, Endpoint{Addr: addr, Ready: true, Serving: true, Node: "n1", Pod: name, PodUID: name})
			s.Apply(labelled(pod(name+"#"+name, addr.String(), "ready"), "app=svc-7,team=a,version=3"))
		}
		s.Apply(Change{Kind: KindSlice, Key: sl.Key, Slice: sl})
	}
	b.ReportAllocs()
	for b.Loop() {
		m, _ := s.Membership(key("p-3-50"))
		if len(m.Services) != 1 || !m.Services[0].Addr.IsValid() {
			b.Fatalf("%+v", m)
		}
	}
}
