// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// View is the machine for people: /ready, /debug/holds.
type View struct {
	Holds    []HoldView    `json:"holds"` // start, ready, drain
	Replicas []ReplicaView `json:"replicas"`

	Terminating   bool   `json:"terminating"`
	DeletionGrace string `json:"deletion_grace,omitempty"`
	Exposure      string `json:"exposure"`
}

// HoldView is one hold.
type HoldView struct {
	Hold    string     `json:"hold"`
	State   string     `json:"state"` // idle, held, over
	Since   *time.Time `json:"since,omitempty"`
	Waited  string     `json:"waited,omitempty"`
	Reason  Reason     `json:"reason,omitempty"`
	Missing []string   `json:"missing,omitempty"`
	// Text says what is waited for, or why it is over.
	Text string `json:"text"`
}

// ReplicaView is one replica of the control plane.
type ReplicaView struct {
	Name       string `json:"name"`
	Counts     bool   `json:"counts"`
	Settled    bool   `json:"settled"`
	AppReady   bool   `json:"app_ready"`
	Propagated bool   `json:"propagated"`
	Drained    bool   `json:"drained"`
	Age        string `json:"age"` // of its last word
}

// View describes the machine now.
func (m *Machine) View(now time.Time) View {
	v := View{Terminating: m.words.terminating, Exposure: m.words.exposure.String(), Replicas: []ReplicaView{}}
	if m.words.terminating {
		v.DeletionGrace = m.words.grace.String()
	}
	for k := range kinds {
		v.Holds = append(v.Holds, m.holdView(k, now))
	}
	for name, r := range m.words.replicas {
		v.Replicas = append(v.Replicas, ReplicaView{
			Name: name, Counts: r.counts(now), Settled: r.status.Settled, AppReady: r.status.AppReady,
			Propagated: r.status.Propagated, Drained: r.status.Drained, Age: now.Sub(r.at).Round(time.Millisecond).String(),
		})
	}
	slices.SortFunc(v.Replicas, func(a, b ReplicaView) int { return strings.Compare(a.Name, b.Name) })
	return v
}

func (m *Machine) holdView(k Kind, now time.Time) HoldView {
	since, over, end, missing := m.began, m.start.over, m.start.end, m.startMissing()
	switch k {
	case Ready:
		over, end, missing = m.ready.over, m.ready.end, m.readyLag(now).missing
		if !m.ready.appReady.IsZero() {
			since = m.ready.appReady
		}
	case Drain:
		since, over, end, missing = m.drain.began, m.drain.over, m.drain.end, m.drainLag(now).missing
	}
	v := HoldView{Hold: k.String(), State: "held", Text: m.Text(k, now)}
	switch {
	case over:
		v.State, v.Reason, v.Missing, v.Waited = "over", end.Reason, end.Missing, round(end.Waited)
	case since.IsZero():
		v.State = "idle"
		return v
	default:
		v.Missing, v.Waited = missing, round(now.Sub(since))
	}
	v.Since = &since
	return v
}

// Text says in a line what a hold waits for, or why it is over.
func (m *Machine) Text(k Kind, now time.Time) string {
	switch {
	case k == Start && m.start.over:
		return m.start.end.String()
	case k == Start:
		if names := m.startMissing(); len(names) > 0 {
			return "waiting for " + list(names, len(names))
		}
		return "waiting for the learned upstreams"
	case k == Ready && m.ready.over:
		return m.ready.end.String()
	case k == Ready:
		return m.readyText(now)
	case m.drain.over:
		return m.drain.end.String()
	case m.drain.began.IsZero():
		return "the hook was not called"
	default:
		return m.drainText(now)
	}
}

func (m *Machine) readyText(now time.Time) string {
	n, settled := m.words.counted(now)
	l := m.readyLag(now)
	switch {
	case !m.serving:
		return "the data plane does not run yet"
	case n == 0 && !m.words.heard:
		return "waiting for the first word of the control plane"
	case n == 0:
		return "the control plane is silent"
	case m.ready.appReady.IsZero():
		return "waiting for the app's containers to be ready"
	case settled == 0:
		return "the control plane has just started and waits for its clients to come back"
	case l.clients > l.answered || len(l.missing) > 0:
		return fmt.Sprintf("%d of %d clients connected; waiting for %s", l.answered, l.clients, list(l.missing, l.clients-l.answered))
	default:
		return "waiting for the control plane's word that the clients have it"
	}
}

func (m *Machine) drainText(now time.Time) string {
	n, settled := m.words.counted(now)
	l := m.drainLag(now)
	drained := m.words.everyone(now, func(s *Status) bool { return s.Drained })
	switch {
	case now.Before(m.drainFloor(now)) && drained:
		return "drained; waiting for clients outside the mesh until " + round(m.drainFloor(now).Sub(m.drain.began)) + " have passed"
	case n == 0:
		return "the control plane is silent"
	case settled == 0:
		return "the control plane has just started and waits for its clients to come back"
	case l.clients > l.answered || len(l.missing) > 0:
		return fmt.Sprintf("%d of %d clients have let go; waiting for %s", l.answered, l.clients, list(l.missing, l.clients-l.answered))
	default:
		return "waiting for the control plane's word that the clients have let go"
	}
}

// String says in a line why a hold is over.
func (e End) String() string {
	switch e.Reason {
	case Answered:
		return "over after " + round(e.Waited)
	case Silent:
		return "over after " + round(e.Waited) + ": the control plane is silent"
	case Latched:
		return "it was over before this restart"
	default:
		if len(e.Missing) == 0 {
			return "the bound ended it after " + round(e.Waited)
		}
		return "the bound ended it after " + round(e.Waited) + " without " + list(e.Missing, len(e.Missing))
	}
}

// list names the missing; n is how many there are of them altogether.
func list(names []string, n int) string {
	const show = 10
	shown := names[:min(len(names), show)]
	text := strings.Join(shown, ", ")
	switch more := max(n, len(names)) - len(shown); {
	case len(shown) == 0:
		return fmt.Sprintf("%d clients", n)
	case more > 0:
		return fmt.Sprintf("%s and %d more", text, more)
	default:
		return text
	}
}

func round(d time.Duration) string { return d.Round(time.Millisecond).String() }
