// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"slices"
	"time"

	"evenkeel.dev/xds"
)

// Exposure says who may reach the pod without the mesh.
type Exposure uint8

// The exposures, from what is not known to what needs the most time.
const (
	ExposureUnknown Exposure = iota
	ExposureNone             // no Service selects it
	ExposureService
	ExposureExternal // LoadBalancer, NodePort, Ingress or Gateway
)

func (e Exposure) String() string {
	return [...]string{"unknown", "none", "service", "external"}[min(e, ExposureExternal)]
}

// Status is what one replica says of the pod: a PodStatus of the wire, reduced.
type Status struct {
	Settled       bool
	AppReady      bool
	Terminating   bool
	DeletionGrace time.Duration
	Exposure      Exposure

	Propagated        bool
	Clients, Answered int
	Missing           []string

	Drained                     bool
	DrainClients, DrainReleased int
	DrainMissing                []string

	DirectConnections int
}

// words are the last words of all replicas.
type words struct {
	replicas map[string]word
	// heardUntil is until when a replica counted, of those that count no more;
	// before there was any: the begin.
	heardUntil time.Time

	// What stays true when nobody counts any more.
	heard       bool
	terminating bool // a deletion is not taken back
	grace       time.Duration
	exposure    Exposure
}

type word struct {
	status Status
	at     time.Time
}

func newWords(now time.Time) words {
	return words{replicas: map[string]word{}, heardUntil: now}
}

func (w word) until() time.Time { return w.at.Add(xds.Lease) }

// counts: a word at the very end of its lease counts still.
func (w word) counts(now time.Time) bool { return !now.After(w.until()) }

func (w *words) hear(now time.Time, replica string, s Status) {
	if old, ok := w.replicas[replica]; ok && !old.counts(now) {
		w.heardUntil = later(w.heardUntil, old.until())
	}
	w.replicas[replica] = word{status: s, at: now}
	w.heard = true
	if s.Terminating {
		w.grace = s.DeletionGrace // a second deletion can only shorten it
		w.terminating = true
	}
	if e := w.exposureNow(now); e != ExposureUnknown {
		w.exposure = e
	}
}

func (w *words) lose(now time.Time, replica string) {
	old, ok := w.replicas[replica]
	if !ok {
		return
	}
	delete(w.replicas, replica)
	until := old.until()
	if now.Before(until) {
		until = now
	}
	w.heardUntil = later(w.heardUntil, until)
}

// silence is since when no replica counts. Zero: one does.
func (w *words) silence(now time.Time) time.Time {
	since := w.heardUntil
	for _, r := range w.replicas {
		if r.counts(now) {
			return time.Time{}
		}
		since = later(since, r.until())
	}
	return since
}

// nextExpiry is just after the next word stops to count.
func (w *words) nextExpiry(now time.Time) time.Time {
	var next time.Time
	for _, r := range w.replicas {
		if t := r.until().Add(time.Nanosecond); r.counts(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}

// anyone reports whether a replica that counts says so.
func (w *words) anyone(now time.Time, says func(*Status) bool) bool {
	for _, r := range w.replicas {
		if r.counts(now) && says(&r.status) {
			return true
		}
	}
	return false
}

// everyone reports whether there is a settled replica that counts, and all of
// those say so.
func (w *words) everyone(now time.Time, says func(*Status) bool) bool {
	settled := false
	for _, r := range w.replicas {
		if !r.counts(now) || !r.status.Settled {
			continue
		}
		settled = true
		if !says(&r.status) {
			return false
		}
	}
	return settled
}

// counted is how many replicas count, and how many of those are settled.
func (w *words) counted(now time.Time) (n, settled int) {
	for _, r := range w.replicas {
		if r.counts(now) {
			n++
			if r.status.Settled {
				settled++
			}
		}
	}
	return n, settled
}

func (w *words) exposureNow(now time.Time) Exposure {
	e := ExposureUnknown
	for _, r := range w.replicas {
		if r.counts(now) {
			e = max(e, r.status.Exposure)
		}
	}
	return e
}

func (w *words) directConnections(now time.Time) int {
	n := 0
	for _, r := range w.replicas {
		if r.counts(now) {
			n = max(n, r.status.DirectConnections)
		}
	}
	return n
}

// lag is what is missing by the word of the settled replica that misses most.
type lag struct {
	clients, answered int
	missing           []string
}

func (w *words) lag(now time.Time, of func(*Status) lag) lag {
	var worst lag
	var names []string
	for _, r := range w.replicas {
		if !r.counts(now) || !r.status.Settled {
			continue
		}
		l := of(&r.status)
		names = append(names, l.missing...)
		if m, n := l.clients-l.answered, worst.clients-worst.answered; m > n || m == n && l.clients > worst.clients {
			worst = l
		}
	}
	slices.Sort(names)
	worst.missing = slices.Compact(names)
	return worst
}

// forgetDrained: the next drain must not end by the word about the last.
func (w *words) forgetDrained() {
	for name, r := range w.replicas {
		r.status.Drained = false
		w.replicas[name] = r
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fresh reports whether a replica has spoken after t.
func (w *words) fresh(t time.Time) bool {
	for _, r := range w.replicas {
		if r.at.After(t) {
			return true
		}
	}
	return false
}
