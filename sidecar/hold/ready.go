// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import "time"

type readyHold struct {
	appReady time.Time // when first seen
	noticed  bool      // Waiting was told
	over     bool
	end      End
}

func (m *Machine) endReady(now time.Time) (End, bool) {
	if m.ready.over || !m.serving {
		return End{}, false
	}
	since := m.ready.appReady
	if since.IsZero() {
		since = m.began
	}
	e := End{Hold: Ready, Waited: now.Sub(since), At: now}
	switch bound := m.readyBound(); {
	case m.cfg.Ready:
		e.Reason, e.Waited = Latched, 0
	case m.cfg.Anonymous && m.words.heard, m.words.everyone(now, func(s *Status) bool { return s.Propagated }):
		e.Reason = Answered
	case !bound.IsZero() && !now.Before(bound):
		e.Reason, e.Missing = Timeout, m.readyLag(now).missing
	case m.silent(now):
		e.Reason = Silent
	default:
		return End{}, false
	}
	m.ready.over, m.ready.end = true, e
	return e, true
}

// Waiting tells once that the ready hold has gone on for NoticeWait, and who is
// missing: the kubelet does not show what a readiness probe answers ("this
// user-facing failure message must not contain the response body":
// pkg/probe/http in kubernetes), so somebody else must tell.
func (m *Machine) Waiting(now time.Time) (End, bool) {
	if m.ready.over || m.ready.noticed || m.ready.appReady.IsZero() || now.Before(m.ready.appReady.Add(NoticeWait)) {
		return End{}, false
	}
	missing := m.readyLag(now).missing
	if len(missing) == 0 {
		return End{}, false // nobody to name: the control plane knows no more yet
	}
	m.ready.noticed = true
	return End{Hold: Ready, Waited: now.Sub(m.ready.appReady), Reason: Waits, Missing: missing, At: now}, true
}

func (m *Machine) readyBound() time.Time {
	if m.ready.appReady.IsZero() {
		return time.Time{}
	}
	return m.ready.appReady.Add(m.cfg.ReadyTimeout)
}

func (m *Machine) readyLag(now time.Time) lag {
	return m.words.lag(now, func(s *Status) lag { return lag{s.Clients, s.Answered, s.Missing} })
}
