// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
)

// generator makes changes in a world that is small on purpose: few names and
// addresses, so that everything meets everything.
type generator struct {
	*rand.Rand
	inputs map[string]Change // what exists now, by kind and key
	uid    int
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

func (g *generator) change() Change {
	c := g.make()
	if g.IntN(4) == 0 {
		c = gone(c)
	}
	k := fmt.Sprint(c.Kind, c.Key)
	if c.Service == nil && c.Slice == nil && c.Pod == nil && c.Node == nil && c.Route == nil {
		delete(g.inputs, k)
	} else {
		g.inputs[k] = c
	}
	return c
}

func (g *generator) make() Change {
	ns := pick(g, "shop", "web")
	switch g.IntN(9) {
	case 0, 1:
		return g.service(ns)
	case 2, 3, 4:
		return g.slice(ns)
	case 5, 6:
		return g.pod(ns)
	case 7:
		return g.route(ns)
	}
	return node(pick(g, "n1", "n2"), pick(g, "", "z1", "z2"))
}

func (g *generator) service(ns string) Change {
	s := &Service{Key: ObjectKey{ns, pick(g, "web", "cart")}}
	switch g.IntN(8) {
	case 0:
		s.ExternalName = pick(g, "x.example", "cart.shop.svc.cluster.local", "web.web.svc.cluster.local")
	case 1, 2:
		s.Headless = true
		s.AnyPort = g.IntN(3) == 0
	default:
		s.ClusterIPs = []netip.Addr{pick(g, addrs...)}
	}
	s.LocalOnly, s.PreferIPv6 = g.IntN(4) == 0, g.IntN(4) == 0
	if s.ExternalName == "" {
		s.Selector, s.External = pick(g, testLabels...), g.IntN(4) == 0
	}
	s.Policy = pick(g, "", xds.PolicyRoundRobin)
	if !s.AnyPort {
		for range g.IntN(3) {
			s.Ports = append(s.Ports, ServicePort{pick(g, "a", "b"), pick(g, testPorts...), pick[uint16](g, 0, 1, 2, 3)})
		}
	}
	return Change{Kind: KindService, Key: s.Key, Service: s}
}

func (g *generator) slice(ns string) Change {
	sl := &Slice{Key: ObjectKey{ns, pick(g, "s1", "s2", "s3")}, Service: pick(g, "web", "cart")}
	for range g.IntN(3) {
		sl.Ports = append(sl.Ports, SlicePort{pick(g, "a", "b"), pick(g, testPorts...)})
	}
	for range g.IntN(4) {
		ep := Endpoint{
			Addr: pick(g, addrs...), Ready: g.IntN(2) == 0, Serving: g.IntN(2) == 0, Terminating: g.IntN(4) == 0,
			Hostname: pick(g, "", "", "p1"), Node: pick(g, "", "n1", "n2"), Zone: pick(g, "", "z9"),
		}
		if g.IntN(4) > 0 {
			ep.Pod = pick(g, "p1", "p2")
			ep.PodUID = g.oldUID(ObjectKey{ns, ep.Pod})
			if p := g.inputs[fmt.Sprint(KindPod, ObjectKey{ns, ep.Pod})].Pod; p != nil && g.IntN(3) > 0 {
				ep.PodUID = pick(g, p.UID, p.UID, "")
			}
		}
		sl.Endpoints = append(sl.Endpoints, ep)
	}
	return Change{Kind: KindSlice, Key: sl.Key, Slice: sl}
}

func (g *generator) route(ns string) Change {
	r := &Route{Key: ObjectKey{ns, pick(g, "r1", "r2")}}
	for _, name := range []string{"cart", "web"} {
		if g.IntN(2) == 0 {
			r.Backends = append(r.Backends, ObjectKey{pick(g, "shop", "web"), name})
		}
	}
	return Change{Kind: pick(g, KindIngress, KindHTTPRoute), Key: r.Key, Route: r}
}

// oldUID is one that the Pod of that name may have or have had.
func (g *generator) oldUID(k ObjectKey) string {
	return fmt.Sprintf("%s#%d", k, max(0, g.uid-g.IntN(4)))
}

func (g *generator) pod(ns string) Change {
	p := &Pod{
		Key: ObjectKey{ns, pick(g, "p1", "p2")}, Node: pick(g, "n1", "n2"),
		Terminating: g.IntN(4) == 0, AppReady: g.IntN(2) == 0, Ready: g.IntN(3) == 0, HostNetwork: g.IntN(6) == 0,
		Labels: pick(g, testLabels...),
	}
	if p.Terminating {
		p.DeletionGrace = pick(g, 0, 30*time.Second)
	}
	if old := g.inputs[fmt.Sprint(KindPod, p.Key)].Pod; old != nil && g.IntN(3) > 0 {
		p.UID = old.UID
	} else {
		g.uid++
		p.UID = fmt.Sprintf("%s#%d", p.Key, g.uid)
	}
	for range g.IntN(3) {
		p.IPs = append(p.IPs, pick(g, addrs...))
	}
	return Change{Kind: KindPod, Key: p.Key, Pod: p}
}

var (
	testPorts = []uint16{1, 2, 3}
	addrs     = []netip.Addr{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"),
		netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"),
	}
	testNodes  = []string{"", "n1", "n2"}
	testPods   = []ObjectKey{{"shop", "p1"}, {"shop", "p2"}, {"web", "p1"}, {"web", "p2"}}
	testLabels = []Labels{
		{},
		NewLabels(map[string]string{"a": "1"}), NewLabels(map[string]string{"b": "2"}), NewLabels(map[string]string{"a": "1", "b": "2"}),
		NewLabels(map[string]string{"a": "2", "c": "1"}),
	}
)

// questions are all that can be asked about the small world.
func questions() (names []xds.DestinationName, services []xds.Service) {
	for _, port := range testPorts {
		for _, a := range addrs {
			names = append(names, xds.DestinationName{Addr: netip.AddrPortFrom(a, port)})
		}
		for _, host := range []string{
			"web", "cart", "web.web", "cart.shop.svc", "p1.web", "p1.cart.shop", "10-0-0-1.web", "10-0-0-2.shop.pod",
			"web.shop.svc.cluster.local", "10.0.0.3", "fd00::1",
		} {
			names = append(names, xds.DestinationName{Namespace: "shop", Host: host, Port: port})
		}
		for _, ns := range []string{"shop", "web"} {
			services = append(services, xds.Service{Namespace: ns, Name: "web", Port: port}, xds.Service{Namespace: ns, Name: "cart", Port: port})
		}
	}
	return names, services
}

// answers asks a store everything.
func answers(s *Store) map[string]string {
	out := map[string]string{}
	names, services := questions()
	for _, n := range names {
		if r, _ := s.Destination(n); r != nil {
			out[n.String()] = r.Version
		}
	}
	for _, svc := range services {
		if c := s.Collection(svc, nil); c != nil {
			addViews(out, c)
		}
	}
	maps.Copy(out, directory(s))
	return out
}

// directory is what a Store says of every Pod and of who has which address.
func directory(s *Store) map[string]string {
	out := map[string]string{}
	for _, k := range testPods {
		if m, ok := s.Membership(k); ok {
			out["membership of "+k.String()] = fmt.Sprintf("%+v", m)
		}
	}
	for _, port := range testPorts {
		for _, a := range addrs {
			if dst := netip.AddrPortFrom(a, port); len(s.ServicesAt(dst)) > 0 {
				out["services at "+dst.String()] = fmt.Sprint(s.ServicesAt(dst))
			}
		}
	}
	return out
}

// checkMembership holds a Pod's Membership against the collections: it is an
// endpoint of a service exactly there, and in the state, that clients are sent.
func checkMembership(t *testing.T, s *Store, seed uint64) (sent int) {
	t.Helper()
	type member struct {
		svc xds.Service
		uid string
	}
	said := map[member]string{}
	pods := map[string]ObjectKey{}
	for _, k := range testPods {
		m, ok := s.Membership(k)
		if !ok {
			continue
		}
		pods[m.UID] = k
		for _, ps := range m.Services {
			if ps.State != corepb.HealthStatus_UNKNOWN {
				said[member{ps.Service, m.UID}] = ps.Addr.String() + " " + ps.State.String()
			}
		}
	}
	_, services := questions()
	for _, svc := range services {
		c := s.Collection(svc, nil)
		if c == nil || s.services[ObjectKey{svc.Namespace, svc.Name}].AnyPort {
			continue
		}
		found := map[string][]string{}
		for _, spec := range c.specs {
			if k, ok := pods[spec.uid]; ok && k == (ObjectKey{svc.Namespace, spec.pod}) {
				found[spec.uid] = append(found[spec.uid], spec.addr.String()+" "+spec.health.String())
			}
		}
		for uid, list := range found {
			if got := said[member{svc, uid}]; !slices.Contains(list, got) {
				t.Fatalf("seed %d: %s is sent as %q of %s; its Membership says %q", seed, pods[uid], list, svc, got)
			}
			sent++
			delete(said, member{svc, uid})
		}
	}
	for m, got := range said {
		if slices.Contains(services, m.svc) {
			t.Fatalf("seed %d: %s is not sent to clients of %s; its Membership says %q", seed, pods[m.uid], m.svc, got)
		}
	}
	return sent
}

func addViews(out map[string]string, c *Collection) {
	out[c.Name] = "exists"
	for _, node := range testNodes {
		for _, r := range c.View(node).Members {
			out[node+" "+r.Name] = r.Version
		}
	}
}

// subscriber keeps answers as the server does: it asks again only for what a
// change touched, and goes on from what it had.
type subscriber struct {
	names       map[xds.DestinationName]*Resource
	topics      map[xds.DestinationName][]Topic
	collections map[xds.Service]*Collection
	views       map[string]map[string]*Resource // what a client that is sent differences has
	directory   map[string]string
}

func newSubscriber() *subscriber {
	return &subscriber{
		names: map[xds.DestinationName]*Resource{}, topics: map[xds.DestinationName][]Topic{},
		collections: map[xds.Service]*Collection{}, views: map[string]map[string]*Resource{},
	}
}

func (sub *subscriber) update(s *Store, d Delta, everything bool) {
	touched := func(topics []Topic) bool {
		return everything || slices.ContainsFunc(topics, func(t Topic) bool { _, ok := d.Topics[t]; return ok })
	}
	// It is asked again whenever anything changed.
	if everything || len(d.Topics) > 0 {
		sub.directory = directory(s)
	}
	names, services := questions()
	for _, n := range names {
		if touched(sub.topics[n]) {
			sub.names[n], sub.topics[n] = s.Destination(n)
		}
	}
	for _, svc := range services {
		if !touched(s.CollectionTopics(svc)) {
			continue
		}
		old := sub.collections[svc]
		c := s.Collection(svc, old)
		sub.collections[svc] = c
		for _, node := range testNodes {
			var was, is *Set
			if old != nil {
				was = old.View(node)
			}
			if c != nil {
				is = c.View(node)
			}
			sub.patch(node+" "+svc.String(), is, was)
		}
	}
}

func (sub *subscriber) patch(view string, is, was *Set) {
	if sub.views[view] == nil {
		sub.views[view] = map[string]*Resource{}
	}
	changed, removed := is.Diff(was)
	for _, r := range changed {
		sub.views[view][r.Name] = r
	}
	for _, n := range removed {
		delete(sub.views[view], n)
	}
}

func (sub *subscriber) answers() map[string]string {
	out := maps.Clone(sub.directory)
	for n, r := range sub.names {
		if r != nil {
			out[n.String()] = r.Version
		}
	}
	for svc, c := range sub.collections {
		if c == nil {
			continue
		}
		out[c.Name] = "exists"
		for _, node := range testNodes {
			for _, r := range sub.views[node+" "+svc.String()] {
				out[node+" "+r.Name] = r.Version
			}
		}
	}
	return out
}

func diff(a, b map[string]string) string {
	var out string
	keys := map[string]struct{}{}
	for k := range a {
		keys[k] = struct{}{}
	}
	for k := range b {
		keys[k] = struct{}{}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if a[k] != b[k] {
			out += fmt.Sprintf("%s: %q and %q\n", k, a[k], b[k])
		}
	}
	return out
}

// After any changes in any order, what a subscriber has kept up to date from
// differences is what a store that is told the same inputs afresh, in another
// order, answers.
func TestAnyOrderEndsInTheSame(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	nonEmpty, sent, drained := 0, 0, 0
	for seed := range uint64(rounds) {
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), inputs: map[string]Change{}}
		s, sub := NewStore(Config{}), newSubscriber()
		sub.update(s, s.Drain(), true)
		for range 1 + g.IntN(30) {
			for range 1 + g.IntN(3) { // a batch
				s.Apply(g.change())
			}
			if g.IntN(3) == 0 {
				s.SetDraining(g.oldUID(pick(g, testPods...)), pick(g, DrainOn, DrainOn, DrainOff))
			}
			sub.update(s, s.Drain(), false)
			if d := diff(sub.answers(), answers(s)); d != "" {
				t.Fatalf("seed %d: kept up to date, and asked anew:\n%s", seed, d)
			}
			sent += checkMembership(t, s, seed)
			checkServicesOfPods(t, s, seed)
		}
		checkGone(t, s)

		rebuilt := NewStore(Config{})
		inputs := slices.Collect(maps.Values(g.inputs))
		g.Shuffle(len(inputs), func(i, j int) { inputs[i], inputs[j] = inputs[j], inputs[i] })
		for _, c := range inputs {
			rebuilt.Apply(c)
		}
		// What cannot be seen in the inputs: that a Pod was there before.
		rebuilt.gone = maps.Clone(s.gone)
		clear(rebuilt.hosts)
		for uid := range s.draining {
			rebuilt.SetDraining(uid, DrainOn)
			drained++
		}
		a := answers(s)
		if d := diff(a, answers(rebuilt)); d != "" {
			t.Fatalf("seed %d: step by step, and from scratch:\n%s", seed, d)
		}
		if len(a) > 0 {
			nonEmpty++
		}
		// Taken back one by one, nothing is left of it anywhere.
		for _, c := range inputs {
			s.Apply(gone(c))
		}
		if n := len(s.services) + len(s.slices) + len(s.sliceOf) + len(s.pods) + len(s.nodes) +
			len(s.byClusterIP) + len(s.byPodIP) + len(s.byPod) + len(s.byUID) + len(s.gone) +
			len(s.routed) + len(s.routes[KindIngress]) + len(s.routes[KindHTTPRoute]) + len(s.byEndpoint) + len(s.bySelector) + len(s.podOf) + len(s.draining); n != 0 {
			t.Fatalf("seed %d: an empty store still holds %d things: %+v", seed, n, s)
		}
	}
	if nonEmpty < rounds*3/4 || sent < rounds || drained < rounds/10 {
		t.Fatalf("of %d worlds only %d had anything in them; %d pods were endpoints, %d drained on request", rounds, nonEmpty, sent, drained)
	}
}

// checkServicesOfPods holds each Pod's services and its exposure against a
// definition that walks everything.
func checkServicesOfPods(t *testing.T, s *Store, seed uint64) {
	t.Helper()
	for _, k := range testPods {
		m, ok := s.Membership(k)
		if p := s.pods[k]; ok != (p != nil) {
			t.Fatalf("seed %d: %s: told %v, there %v", seed, k, ok, p != nil)
		}
		if !ok {
			continue
		}
		told := map[ObjectKey]bool{}
		for _, ps := range m.Services {
			told[ObjectKey{ps.Service.Namespace, ps.Service.Name}] = true
		}
		exposure := ExposureNone
		for key, svc := range s.services {
			in := key.Namespace == k.Namespace && (svc.Selector.selects(s.pods[k].Labels) || s.lists(svc, s.pods[k]))
			if told[key] != (in && len(s.dialledPorts(svc)) > 0) {
				t.Fatalf("seed %d: %s is in %s: %v, told %v", seed, k, key, in, told[key])
			}
			if !in {
				continue
			}
			exposure = max(exposure, ExposureService)
			routed := svc.External
			for _, routes := range s.routes {
				for _, r := range routes {
					routed = routed || slices.Contains(r.Backends, key)
				}
			}
			if routed {
				exposure = ExposureExternal
			}
		}
		if exposure != m.Exposure {
			t.Fatalf("seed %d: %s: exposure %d, want %d", seed, k, m.Exposure, exposure)
		}
	}
}

func checkGone(t *testing.T, s *Store) {
	t.Helper()
	for uid := range s.gone {
		if len(s.byUID[uid]) == 0 {
			t.Errorf("UID %s is remembered as gone, but no slice refers to it", uid)
		}
		for _, p := range s.pods {
			if p.UID == uid {
				t.Errorf("UID %s is remembered as gone, but is there", uid)
			}
		}
	}
}
