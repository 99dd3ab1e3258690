// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

// state is what was asked and what was answered. One goroutine owns it; it has
// no clock and no I/O. It is the last good state: nothing but an answer, or
// that nobody needs it, takes anything out of it.
type state struct {
	log       *slog.Logger
	namespace string
	out       *outbox

	dests    map[router.Key]*destination
	byName   map[string]*destination // the same, by resource name
	services map[string]*service

	// left are the collections that were unsubscribed on this stream; barriers
	// counts the names that were made to come back to one of them.
	left     map[string]struct{}
	barriers int

	// replicas leads to the service that the control plane itself is; nil: it is
	// not looked for.
	replicas *destination

	// What the sink has not been told.
	routesDirty bool
	namesDirty  bool // which destinations the app reaches a service by
	dirty       map[*service]struct{}
	warm        []*service
	gone        []string
}

// destination is a subscription to one key.
type destination struct {
	key     router.Key
	name    string // of the resource
	version string // of the last good resource; empty: not known, or no answer
	usage   *router.Usage
	used    time.Time

	// hidden: we want to know it, the app has not asked. The sink hears nothing of it.
	hidden bool
	// learned: others of the workload use it, the app has not yet.
	learned bool

	// shown is what the table says. It lags behind next while next is a service
	// whose endpoints are not all here: until then the old word is the better one.
	shown, next *word
}

// word is one answer. A word that routes to a service holds it.
type word struct {
	dst    router.Destination
	svc    *service
	hidden bool // as the destination
}

func newState(log *slog.Logger, namespace string, out *outbox) *state {
	return &state{
		log: log, namespace: namespace, out: out,
		dests:    map[router.Key]*destination{},
		byName:   map[string]*destination{},
		services: map[string]*service{},
		dirty:    map[*service]struct{}{},
		left:     map[string]struct{}{},
	}
}

// ask subscribes to a key that the app wants to be routed.
func (s *state) ask(k router.Key, now time.Time) {
	d := s.want(k, now)
	d.used = now
	s.reveal(d)
	s.useLearned(d)
}

// learn subscribes to a key that others of the workload use.
func (s *state) learn(k router.Key, now time.Time) *destination {
	d, known := s.dests[k]
	if !known {
		d = s.want(k, now)
		d.learned = true
	}
	s.reveal(d)
	return d
}

// findReplicas subscribes to the control plane's own name.
func (s *state) findReplicas(k router.Key, now time.Time) {
	_, known := s.dests[k]
	s.replicas = s.want(k, now)
	s.replicas.hidden = !known
}

// want subscribes to a key unless that was done.
func (s *state) want(k router.Key, now time.Time) *destination {
	if d, ok := s.dests[k]; ok {
		return d
	}
	d := &destination{key: k, name: s.resourceName(k), used: now, usage: new(router.Usage)}
	s.dests[k] = d
	if _, err := xds.ParseDestinationName(d.name); err != nil {
		// It can be the name of nothing: the answer is known without asking.
		s.log.Debug("destination cannot exist", "destination", k.String(), "error", err)
		d.shown = &word{}
		s.routesDirty = true
		return d
	}
	s.byName[d.name] = d
	s.out.change(xds.DestinationType, d.name, true)
	return d
}

// reveal lets the sink hear of a destination that was ours alone.
func (s *state) reveal(d *destination) {
	if !d.hidden {
		return
	}
	d.hidden = false
	for _, w := range []*word{d.shown, d.next} {
		if w != nil && w.hidden {
			w.hidden = false
			if w.svc != nil {
				s.see(w.svc)
			}
		}
	}
	s.routesDirty = true
}

// useLearned takes that the app uses a destination.
func (s *state) useLearned(d *destination) {
	if d.learned {
		d.learned = false
		s.namesDirty = true
	}
}

func (s *state) resourceName(k router.Key) string {
	if k.Name != "" {
		return xds.HostName(s.namespace, k.Name)
	}
	return xds.AddressName(k.Addr)
}

// forget ends a subscription.
func (s *state) forget(d *destination) {
	delete(s.dests, d.key)
	if s.byName[d.name] == d {
		delete(s.byName, d.name)
		s.out.change(xds.DestinationType, d.name, false)
	}
	s.release(d.next)
	if d.shown != nil {
		s.release(d.shown)
		s.routesDirty = true
	}
}

// answer takes the control plane's word about d.
func (s *state) answer(d *destination, a answer, version string) {
	d.version = version
	w := &word{dst: a.dst, hidden: d.hidden}
	w.dst.Usage = d.usage
	if w.dst.Kind == router.Service {
		s.hold(w.dst.Service, w)
		if w.svc.policy != a.policy {
			w.svc.policy = a.policy
			s.dirty[w.svc] = struct{}{}
		}
	}
	s.release(d.next)
	d.next = w
	s.show(d)
}

// unknown takes the control plane's word that d is nothing that it knows.
func (s *state) unknown(d *destination) {
	d.version = ""
	// A Service that is deleted, perhaps to be made again with another
	// ClusterIP, leaves an app whose connection to us stays open: it will never
	// resolve the name again. Its RPCs must follow the Service, not fail on an
	// address that is gone for ever. When another Service gets the address, the
	// answer changes and so do we.
	if d.key.Name == "" && d.shown != nil && d.shown.svc != nil {
		s.release(d.next)
		d.next = nil
		return
	}
	s.release(d.next)
	d.next = &word{dst: router.Destination{Usage: d.usage}, hidden: d.hidden}
	s.show(d)
}

// show lets the table say what was answered, as soon as it can be used.
func (s *state) show(d *destination) {
	if d.next == nil || d.next.svc != nil && !d.next.svc.complete {
		return
	}
	if !d.hidden && (d.shown == nil || d.shown.dst != d.next.dst) {
		s.routesDirty = true
	}
	s.release(d.shown)
	d.shown, d.next = d.next, nil
	if svc := d.shown.svc; svc != nil && d.learned {
		svc.warm = true
		if !svc.warmed {
			s.warm = append(s.warm, svc)
		}
	}
}

// flush tells the sink what changed, in the order that it may rely on.
func (s *state) flush(sink Sink) {
	for svc := range s.dirty {
		if svc.seen == 0 {
			delete(s.dirty, svc) // again when it is seen
			continue
		}
		if svc.complete {
			sink.Service(svc.name, svc.spec())
			svc.given = true
			delete(s.dirty, svc)
		}
	}
	for _, svc := range s.warm {
		if svc.given && svc.warm && !svc.warmed {
			svc.warmed = true
			sink.Warm(svc.name)
		}
	}
	s.warm = nil
	if s.routesDirty {
		table := make(map[router.Key]router.Destination, len(s.dests))
		for k, d := range s.dests {
			if d.shown != nil && !d.hidden {
				table[k] = d.shown.dst
			}
		}
		sink.Routes(router.NewTable(table))
		s.routesDirty, s.namesDirty = false, true
	}
	for _, name := range s.gone {
		if svc, ok := s.services[name]; ok && svc.given {
			continue
		}
		sink.Service(name, nil)
	}
	s.gone = nil
}

// held is what a new stream subscribes to, with the versions that are here. What
// was on its way on the old one is lost, so that there is nothing to wait for.
func (s *state) held() map[string]*subscription {
	dests := &subscription{versions: map[string]string{}}
	for name, d := range s.byName {
		dests.names = append(dests.names, name)
		if d.version != "" {
			dests.versions[name] = d.version
		}
	}
	ends := &subscription{versions: map[string]string{}}
	clear(s.left)
	for name, svc := range s.services {
		if svc.refs == 0 {
			s.drop(svc)
			continue
		}
		svc.barrier = ""
		collection := xds.EndpointCollection(name)
		ends.names = append(ends.names, collection)
		if svc.marker != "" {
			ends.versions[collection] = svc.marker
		}
		for addr, m := range svc.members {
			ends.versions[xds.EndpointName(name, addr)] = m.version
		}
	}
	return map[string]*subscription{xds.DestinationType: dests, xds.EndpointType: ends}
}

// sweep ends the subscriptions that nothing was routed by since idle ago, and
// the least useful of those beyond limit. active is asked about services of which
// a destination is to go.
func (s *state) sweep(now time.Time, idle time.Duration, limit int, active func(service string) bool) {
	s.seeUse(now)
	kept := make([]*destination, 0, len(s.dests))
	for _, d := range s.dests {
		switch {
		case d == s.replicas:
		case now.Sub(d.used) < idle:
			kept = append(kept, d)
		case d.shown != nil && d.shown.svc != nil && active(d.shown.svc.name):
			d.used = now
			kept = append(kept, d)
		default:
			s.log.Info("idle destination is unsubscribed", "destination", d.key.String())
			s.forget(d)
		}
	}
	if len(kept) <= limit {
		return
	}
	// Far below the limit, so that a flood of names does not sort each time.
	surplus := len(kept) - limit + limit/8
	slices.SortFunc(kept, func(a, b *destination) int {
		return cmp.Or(cmp.Compare(a.worth(), b.worth()), a.used.Compare(b.used))
	})
	for _, d := range kept[:surplus] {
		s.forget(d)
	}
	s.log.Warn("too many destinations: the least used are unsubscribed", "limit", limit, "unsubscribed", surplus)
}

// seeUse takes note of what was routed since the last time.
func (s *state) seeUse(now time.Time) {
	for _, d := range s.dests {
		if d.usage.Take() {
			d.used = now
			s.useLearned(d)
		}
	}
}

// names are the resources by which the app reaches each service that the sink has.
func (s *state) names() map[string][]string {
	all := map[string][]string{}
	for _, svc := range s.services {
		if svc.given {
			all[svc.name] = nil
		}
	}
	for _, d := range s.dests {
		if d.shown == nil || d.shown.svc == nil || d.hidden || d.learned {
			continue
		}
		if svc := d.shown.svc; svc.given {
			all[svc.name] = append(all[svc.name], d.name)
		}
	}
	for _, list := range all {
		slices.Sort(list)
	}
	return all
}

// worth ranks destinations by what forgetting them would cost.
func (d *destination) worth() int {
	switch {
	case d.shown == nil:
		return 1 // asked a moment ago; an RPC may be waiting
	case d.shown.dst.Kind == router.Unknown:
		return 0
	default:
		return 2
	}
}

// endpoints counts the members of all services.
func (s *state) endpoints() int {
	n := 0
	for _, svc := range s.services {
		n += len(svc.members)
	}
	return n
}
