// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"slices"
	"time"
)

// Bounds of what is learnt, beyond which the least recently used goes.
const (
	maxWorkloads = 256
	maxUpstreams = 64
	keepUpstream = time.Hour // after the last pod that used it
)

// learned knows by which names the pods of a workload reach their upstreams, so
// that a new one can connect before its app starts.
type learned struct {
	workloads map[string]*workload // by namespace/kind/name
}

type workload struct {
	names map[string]*upstream
	used  time.Time
}

// upstream is one name. It does not matter whether a service was only used once:
// to be connected to it in vain is cheap.
type upstream struct {
	users map[string]struct{} // keys of the sidecars that use it now
	last  time.Time           // when the last of them stopped to
	by    string              // and which
}

func workloadOf(c *sidecar) string {
	if c.node.Workload == "" {
		return ""
	}
	return c.node.Namespace + "/" + c.node.Workload
}

// set replaces the names by which c reaches a service. Only a service that c has
// really used is learnt: one that it merely keeps connected, since it learnt it
// itself, would otherwise be handed down for ever.
func (l *learned) set(st *state, c *sidecar, u *use, names []string, now time.Time) {
	key := workloadOf(c)
	if key == "" || !u.used && len(u.destinations) == 0 {
		return
	}
	if !u.used {
		names = nil
	}
	w := l.workloads[key]
	if w == nil {
		if len(names) == 0 {
			return
		}
		w = &workload{names: map[string]*upstream{}}
		l.workloads[key] = w
	}
	w.used = now
	for _, name := range u.destinations {
		if up := w.names[name]; up != nil && !slices.Contains(names, name) {
			delete(up.users, c.key)
			up.last, up.by = now, c.key
		}
	}
	for _, name := range names {
		up := w.names[name]
		if up == nil {
			up = &upstream{users: map[string]struct{}{}}
			w.names[name] = up
		}
		up.users[c.key] = struct{}{}
		up.last = now
	}
	u.destinations = slices.Clone(names)
	for len(w.names) > maxUpstreams {
		delete(w.names, w.oldest())
		st.overflow("upstreams", c)
	}
	for len(l.workloads) > maxWorkloads {
		delete(l.workloads, l.oldest())
		st.overflow("workloads", c)
	}
}

// oldest is the name that can best be done without.
func (w *workload) oldest() string {
	var best string
	for name, up := range w.names {
		b := w.names[best]
		switch {
		case b == nil, len(up.users) == 0 && len(b.users) > 0:
			best = name
		case len(up.users) > 0 && len(b.users) == 0:
		case up.last.Before(b.last), up.last.Equal(b.last) && name < best:
			best = name
		}
	}
	return best
}

func (l *learned) oldest() string {
	var best string
	for key, w := range l.workloads {
		if b := l.workloads[best]; b == nil || w.used.Before(b.used) || w.used.Equal(b.used) && key < best {
			best = key
		}
	}
	return best
}

// of returns what the other pods of c's workload use or did lately, sorted.
func (l *learned) of(c *sidecar, now time.Time) []string {
	w := l.workloads[workloadOf(c)]
	if w == nil {
		return nil
	}
	w.used = now
	var names []string
	for name, up := range w.names {
		_, self := up.users[c.key]
		switch {
		case len(up.users) > 1 || len(up.users) == 1 && !self:
		case up.by != "" && up.by != c.key && now.Sub(up.last) <= keepUpstream:
		default:
			if len(up.users) == 0 && now.Sub(up.last) > keepUpstream {
				delete(w.names, name)
			}
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
