// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import "time"

type drainHold struct {
	began time.Time // of the first hook; zero: idle
	over  bool
	end   End
}

func (m *Machine) endDrain(now time.Time) (End, bool) {
	d := &m.drain
	if d.began.IsZero() || d.over || now.Before(m.drainFloor(now)) {
		return End{}, false
	}
	e := End{Hold: Drain, Waited: now.Sub(d.began), At: now}
	switch {
	case m.words.everyone(now, func(s *Status) bool { return s.Drained }):
		e.Reason = Answered
	case !now.Before(m.drainBound(now)):
		e.Reason, e.Missing = Timeout, m.drainLag(now).missing
	case m.silent(now):
		e.Reason = Silent
	default:
		return End{}, false
	}
	d.over, d.end = true, e
	return e, true
}

// drainBound is when the drain ends in any case. It moves with what is known.
func (m *Machine) drainBound(now time.Time) time.Time {
	bound := m.cfg.DrainTimeout
	switch {
	case m.words.terminating:
		bound = min(bound, left(m.words.grace, m.cfg.AppGrace))
	case !now.Before(m.drain.began.Add(Notice)) && m.words.silence(now).IsZero():
		// Who says nothing does not say that the pod lives on.
		bound = min(bound, Undeleted)
	}
	return m.drain.began.Add(bound)
}

// left is what a deletion's grace leaves to the drain. What is not above the
// app's own grace was given by somebody who wanted it shorter: both share it.
func left(grace, app time.Duration) time.Duration {
	if grace <= app {
		return grace / 2
	}
	return grace - app
}

// drainFloor is before when the drain does not end. It obeys the bound.
func (m *Machine) drainFloor(now time.Time) time.Time {
	floor := m.cfg.DrainMin
	if floor < 0 || m.words.directConnections(now) > 0 {
		floor = max(floor, m.autoFloor())
	}
	t, bound := m.drain.began.Add(floor), m.drainBound(now)
	if t.Before(bound) {
		return t
	}
	return bound
}

func (m *Machine) autoFloor() time.Duration {
	switch m.words.exposure {
	case ExposureExternal:
		return FloorExternal
	case ExposureNone:
		return 0
	default: // not known: as for most
		return FloorService
	}
}

// resetDrain ends a drain for good when the pod lives on.
func (m *Machine) resetDrain(now time.Time) {
	d := &m.drain
	if !d.over || m.words.terminating {
		return
	}
	n, _ := m.words.counted(now)
	restarted := n > 0 && m.words.fresh(d.end.At) && !m.words.anyone(now, func(s *Status) bool { return s.AppReady })
	if restarted || !now.Before(d.began.Add(Forget)) {
		*d = drainHold{}
		m.words.forgetDrained()
	}
}

func (m *Machine) drainLag(now time.Time) lag {
	return m.words.lag(now, func(s *Status) lag { return lag{s.DrainClients, s.DrainReleased, s.DrainMissing} })
}
