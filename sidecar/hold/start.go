// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import "time"

// Learned is how far the connections to the learned upstreams are.
type Learned struct {
	// Complete: every endpoint of every one of them has answered. It is true of none.
	Complete bool
	// Missing names those that have not, at most 10.
	Missing []string
}

type startHold struct {
	synced  time.Time
	learned Learned
	bound   time.Time // zero: nobody waits, or without a bound
	over    bool
	end     End
}

func (m *Machine) endStart(now time.Time) (End, bool) {
	s := &m.start
	if s.over {
		return End{}, false
	}
	e := End{Hold: Start, Waited: now.Sub(m.began), At: now}
	switch {
	case m.serving && m.cfg.Started:
		e.Reason, e.Waited = Latched, 0
	case m.serving && !s.synced.IsZero() && m.words.heard && s.learned.Complete:
		e.Reason = Answered
	case m.startBoundPassed(now):
		e.Reason, e.Missing = Timeout, m.startMissing()
	case m.serving && m.startSilent(now):
		e.Reason = Silent
	default:
		return End{}, false
	}
	s.over, s.end = true, e
	return e, true
}

func (m *Machine) startBoundPassed(now time.Time) bool {
	return !m.start.bound.IsZero() && !now.Before(m.start.bound)
}

// startSilent: there are endpoints to route to, and nobody who could say what
// was learned (a control plane of before reports, for one).
func (m *Machine) startSilent(now time.Time) bool {
	if m.start.synced.IsZero() || m.words.heard {
		return false
	}
	t := m.silentAfter(now, m.start.synced)
	return !t.IsZero() && !now.Before(t)
}

func (m *Machine) startMissing() []string {
	switch {
	case !m.serving:
		return []string{"the data plane"}
	case m.start.synced.IsZero():
		return []string{"the control plane"}
	case !m.words.heard:
		return []string{"the control plane's word about the pod"}
	default:
		return m.start.learned.Missing
	}
}
