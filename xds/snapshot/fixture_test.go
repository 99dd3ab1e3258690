// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// Short notations for inputs: all is in namespace shop unless written otherwise.

func key(s string) ObjectKey {
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return ObjectKey{ns, name}
	}
	return ObjectKey{"shop", s}
}

func svc(name string, set func(*Service)) Change {
	s := &Service{Key: key(name)}
	set(s)
	return Change{Kind: KindService, Key: s.Key, Service: s}
}

// clusterIP has the ports as name=port>target, target 0 being a named one.
func clusterIP(name, ip string, ports ...string) Change {
	return svc(name, func(s *Service) {
		if ip == "None" {
			s.Headless = true
		} else {
			for a := range strings.SplitSeq(ip, ",") {
				s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr(a))
			}
		}
		for _, p := range ports {
			var sp ServicePort
			name, rest, _ := strings.Cut(p, "=")
			if _, err := fmt.Sscanf(rest, "%d>%d", &sp.Port, &sp.TargetPort); err != nil {
				panic(p + ": " + err.Error())
			}
			sp.Name = name
			s.Ports = append(s.Ports, sp)
		}
	})
}

// slice has ports as name=number and endpoints as "ip state pod", where state is
// ready, not, drain (terminating, serving), end (terminating), stale or a mix.
func slice(name, service string, ports []string, endpoints ...string) Change {
	sl := &Slice{Key: key(name), Service: key(service).Name}
	for _, p := range ports {
		sp := SlicePort{}
		n, rest, _ := strings.Cut(p, "=")
		if _, err := fmt.Sscanf(rest, "%d", &sp.Port); err != nil {
			panic(p)
		}
		sp.Name = n
		sl.Ports = append(sl.Ports, sp)
	}
	for _, e := range endpoints {
		f := strings.Fields(e)
		ep := Endpoint{Addr: netip.MustParseAddr(f[0]), Node: "n1"}
		switch f[1] {
		case "ready":
			ep.Ready, ep.Serving = true, true
		case "published": // publishNotReadyAddresses
			ep.Ready = true
		case "published-end":
			ep.Ready, ep.Terminating = true, true
		case "not":
		case "drain":
			ep.Serving, ep.Terminating = true, true
		case "end":
			ep.Terminating = true
		default:
			panic(e)
		}
		for _, x := range f[2:] {
			k, v, _ := strings.Cut(x, "=")
			switch k {
			case "pod":
				ep.Pod, ep.PodUID, _ = strings.Cut(v, "#")
			case "host":
				ep.Hostname = v
			case "node":
				ep.Node = v
			case "zone":
				ep.Zone = v
			default:
				panic(e)
			}
		}
		sl.Endpoints = append(sl.Endpoints, ep)
	}
	return Change{Kind: KindSlice, Key: sl.Key, Slice: sl}
}

// pod is "name#uid", with the addresses and options app (its containers are
// ready), ready, term, hostnet, age=N (seconds after the epoch).
func pod(nameUID string, ips string, options ...string) Change {
	name, uid, _ := strings.Cut(nameUID, "#")
	p := &Pod{Key: key(name), UID: uid, Node: "n1"}
	if ips != "" {
		for a := range strings.SplitSeq(ips, ",") {
			p.IPs = append(p.IPs, netip.MustParseAddr(a))
		}
	}
	for _, o := range options {
		switch k, v, _ := strings.Cut(o, "="); k {
		case "app":
			p.AppReady = true
		case "ready":
			p.AppReady, p.Ready = true, true
		case "term":
			p.Terminating = true
		case "hostnet":
			p.HostNetwork = true
		case "age":
			var n int64
			if _, err := fmt.Sscan(v, &n); err != nil {
				panic(o)
			}
			p.Created = time.Unix(n, 0)
		default:
			panic(o)
		}
	}
	return Change{Kind: KindPod, Key: p.Key, Pod: p}
}

func node(name, zone string) Change {
	return Change{Kind: KindNode, Key: ObjectKey{Name: name}, Node: &Node{name, zone}}
}

func gone(c Change) Change { return Change{Kind: c.Kind, Key: c.Key} }

func storeOf(changes ...Change) *Store {
	s := NewStore(Config{})
	for _, c := range changes {
		s.Apply(c)
	}
	return s
}

// members renders a collection as "ip:port STATE pod=… zone=…", or "none" for a
// service that does not exist.
func members(t testing.TB, s *Store, service, onNode string) string {
	t.Helper()
	name, err := xds.ParseService(service)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Collection(name, nil)
	if c == nil {
		return "none"
	}
	return renderSet(t, c.View(onNode))
}

func renderSet(t testing.TB, set *Set) string {
	t.Helper()
	var lines []string
	for _, r := range set.Members {
		ep := &endpointpb.LbEndpoint{}
		unwrap(t, r, ep)
		sa := ep.GetEndpoint().GetAddress().GetSocketAddress()
		a := netip.AddrPortFrom(netip.MustParseAddr(sa.GetAddress()), uint16(sa.GetPortValue()))
		if want := strings.TrimSuffix(set.Collection, "*") + a.String(); r.Name != want {
			t.Errorf("resource %q holds %s", r.Name, a)
		}
		line := a.String() + " " + ep.GetHealthStatus().String()
		f := ep.GetMetadata().GetFilterMetadata()[xds.EndpointMetadata].GetFields()
		for _, k := range []string{xds.EndpointPod, xds.EndpointZone} {
			if v := f[k].GetStringValue(); v != "" {
				line += " " + k + "=" + v
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func unwrap(t testing.TB, r *Resource, m proto.Message) {
	t.Helper()
	w := &discoverypb.Resource{}
	if err := proto.Unmarshal(r.Wire, w); err != nil {
		t.Fatal(err)
	}
	if w.GetName() != r.Name || w.GetVersion() != r.Version {
		t.Fatalf("%s %s on the wire is %s %s", r.Name, r.Version, w.GetName(), w.GetVersion())
	}
	if err := w.GetResource().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
}

// destination renders what a name means.
func destination(t testing.TB, s *Store, name string) string {
	t.Helper()
	n, err := xds.ParseDestinationName(name)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := s.Destination(n)
	if r == nil {
		return "unknown"
	}
	d := &api.Destination{}
	unwrap(t, r, d)
	switch d.GetKind() {
	case api.Destination_SERVICE:
		out := "service " + d.GetService()
		if d.GetHeadless() {
			out += " headless"
		}
		if d.GetPolicy() != xds.PolicyLeastRequest {
			out += " " + d.GetPolicy()
		}
		return out
	case api.Destination_POD:
		return strings.TrimSpace("pod " + d.GetEndpoint() + " " + d.GetPod())
	case api.Destination_EXTERNAL:
		return "external " + d.GetExternalName()
	}
	return d.String()
}
