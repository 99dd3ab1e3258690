// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

// maxLearned bounds the names that are taken from the control plane in the life
// of the process.
const maxLearned = 256

// Learned is how far the connections to the learned upstreams are.
type Learned struct {
	// Complete: each is answered, and each endpoint of its first whole list was
	// reported as connected, failed or slow. It is true of none.
	Complete bool
	// Missing names what is not answered, at most 10.
	Missing []string
}

// learning follows the learned upstreams until each has answered once.
type learning struct {
	log       *slog.Logger
	namespace string
	ownUID    string

	taken   map[string]struct{}
	full    bool // said that there are too many
	pending []*upstream
	last    Learned
}

// upstream is one learned name.
type upstream struct {
	dest *destination
	// todo are the endpoints of the first whole list that have not answered; nil
	// before there is one.
	todo map[identity]struct{}
}

// take asks about names that are new. It reports whether there were any.
func (l *learning) take(names []string, s *state, now time.Time) bool {
	some := false
	for _, name := range names {
		if _, ok := l.taken[name]; ok {
			continue
		}
		if len(l.taken) >= maxLearned {
			if !l.full {
				l.full = true
				l.log.Warn("too many upstreams are known of the workload: further ones are connected to when the app asks", "limit", maxLearned)
			}
			return some
		}
		l.taken[name] = struct{}{}
		k, ok := learnedKey(name, l.namespace)
		if !ok {
			l.log.Warn("learned upstream is no destination of this namespace", "name", clip(name))
			continue
		}
		l.pending = append(l.pending, &upstream{dest: s.learn(k, now)})
		some = true
	}
	return some
}

// learnedKey reads the name of a resource as the app of a pod in namespace would
// mean it.
func learnedKey(name, namespace string) (router.Key, bool) {
	n, err := xds.ParseDestinationName(name)
	switch {
	case err != nil:
		return router.Key{}, false
	case n.Host == "":
		return router.Key{Addr: n.Addr}, true
	default:
		hostport, ok := strings.CutPrefix(name, xds.HostName(namespace, ""))
		return router.Key{Name: hostport}, ok
	}
}

// advance looks what has answered. It reports whether that is news.
func (l *learning) advance(s *state, answered func(service string, id identity) bool) (Learned, bool) {
	const show = 10
	now := Learned{}
	l.pending = slices.DeleteFunc(l.pending, func(u *upstream) bool {
		missing, done := u.advance(s, l.ownUID, answered)
		now.Missing = append(now.Missing, missing[:min(len(missing), show-len(now.Missing))]...)
		return done
	})
	now.Complete = len(l.pending) == 0
	if now.Complete == l.last.Complete && slices.Equal(now.Missing, l.last.Missing) {
		return now, false
	}
	l.last = now
	return now, true
}

func (u *upstream) advance(s *state, ownUID string, answered func(string, identity) bool) (missing []string, done bool) {
	d := u.dest
	switch {
	case s.dests[d.key] != d:
		return nil, true // dropped: nobody waits
	case d.shown == nil:
		return []string{d.key.String()}, false
	case d.shown.svc == nil:
		return nil, true // nothing to connect to in advance
	}
	svc := d.shown.svc
	if u.todo == nil {
		u.todo = map[identity]struct{}{}
		for addr, m := range svc.members {
			// Oneself is not ready before this is over; who goes is not connected to.
			if m.spec.State != balancer.Draining && (ownUID == "" || m.spec.UID != ownUID) {
				u.todo[identity{addr, m.spec.UID}] = struct{}{}
			}
		}
	}
	for id := range u.todo {
		m, ok := svc.members[id.addr]
		if !ok || m.spec.UID != id.uid || m.spec.State == balancer.Draining || answered(svc.name, id) {
			delete(u.todo, id)
			continue
		}
		who := m.spec.Pod
		if who == "" {
			who = id.addr.String()
		}
		missing = append(missing, svc.name+" on "+who)
	}
	slices.Sort(missing)
	return missing, len(u.todo) == 0
}
