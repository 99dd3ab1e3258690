// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import "time"

const (
	// Silence is how long no replica may be heard before a hold ends without them.
	Silence = 3 * time.Second
	// NoticeWait is when a ready hold that goes on is told to people.
	NoticeWait = 2 * time.Second
	// Undeleted bounds a drain whose pod is not being deleted.
	Undeleted = 5 * time.Second
	// Notice is how long word of a deletion may take to come after the hook.
	Notice = time.Second
	// Forget is when a drain of a pod that lives on is over for good. The control
	// plane lets the pod's endpoints come back at the same time.
	Forget = 35 * time.Second
)

// Floors of a drain by exposure: what clients outside the mesh need to learn
// that the pod goes.
const (
	FloorExternal = 10 * time.Second
	FloorService  = 3 * time.Second
)

// Config of a Machine. All of it has been checked.
type Config struct {
	// ReadyTimeout bounds the ready hold, from when the app was first seen ready.
	ReadyTimeout time.Duration
	// DrainTimeout bounds the drain hold.
	DrainTimeout time.Duration
	// DrainMin is the floor of the drain hold. Negative: by exposure.
	DrainMin time.Duration
	// AppGrace is the pod's own grace period, which the drain leaves to the app.
	AppGrace time.Duration
	// Anonymous: the pod has no UID (a sandbox). No endpoint can be told to be it, so
	// that there is nothing to wait for but that a replica has spoken.
	Anonymous bool

	// Started: the start hold was over before a restart.
	Started bool
	// Ready: the ready hold was over before a restart.
	Ready bool
	// Draining is when the hook was first called, before a restart. Zero: it was not.
	Draining time.Time
}

// Kind is one of the holds.
type Kind uint8

// The holds.
const (
	Start Kind = iota
	Ready
	Drain
	kinds
)

func (k Kind) String() string { return [...]string{"start", "ready", "drain"}[k] }

// Reason is why a hold ended.
type Reason string

// The reasons, as in HoldEnd on the wire.
const (
	Answered Reason = "answered" // what was waited for has come
	Timeout  Reason = "timeout"  // the bound ended it
	Silent   Reason = "silent"   // the control plane said nothing
	Latched  Reason = "latched"  // it was over before a restart
	Waits    Reason = "waiting"  // it is not over: for Waiting
)

// End is a hold that is over.
type End struct {
	Hold   Kind
	Waited time.Duration
	Reason Reason
	// Missing had not answered; for Timeout.
	Missing []string
	At      time.Time
}

// Machine is the three holds of one pod. One goroutine owns it. The zero value
// is of no use; call New.
type Machine struct {
	cfg     Config
	began   time.Time
	serving bool // the event loop turns
	words   words

	start startHold
	ready readyHold
	drain drainHold
}

// New makes the machine of a worker that begins now.
func New(cfg Config, now time.Time) *Machine {
	m := &Machine{cfg: cfg, began: now, words: newWords(now)}
	if !cfg.Draining.IsZero() {
		m.Hook(cfg.Draining)
	}
	return m
}

// Serving takes that the data plane serves: without it nothing is released.
func (m *Machine) Serving() { m.serving = true }

// Status takes what a replica says of the pod.
func (m *Machine) Status(now time.Time, replica string, s Status) {
	m.words.hear(now, replica, s)
	if s.AppReady && m.ready.appReady.IsZero() {
		m.ready.appReady = now
	}
}

// Lost takes that the stream of a replica has ended.
func (m *Machine) Lost(now time.Time, replica string) { m.words.lose(now, replica) }

// Slept takes that this process did not run for a while (a container that is
// frozen, a machine that is starved): it could hear nobody, so silence begins now.
func (m *Machine) Slept(now time.Time) {
	m.words.heardUntil = later(m.words.heardUntil, now)
}

// Synced takes that the control plane has answered for the first time.
func (m *Machine) Synced(now time.Time) {
	if m.start.synced.IsZero() {
		m.start.synced = now
	}
}

// Learned takes how far the connections to the learned upstreams are. It must
// come before the Status that named them; none were, until it is called with others.
func (m *Machine) Learned(l Learned) { m.start.learned = l }

// Wait takes that somebody waits for the start hold, at most for so long. Zero:
// for as long as it takes.
func (m *Machine) Wait(now time.Time, timeout time.Duration) {
	if timeout > 0 {
		m.start.bound = now.Add(timeout)
	}
}

// Hook takes a call of the preStop hook.
func (m *Machine) Hook(now time.Time) {
	if m.drain.began.IsZero() {
		m.drain = drainHold{began: now}
	}
}

// Advance ends what is to end by now, and says so.
func (m *Machine) Advance(now time.Time) []End {
	var ends []End
	for _, end := range []func(time.Time) (End, bool){m.endStart, m.endReady, m.endDrain} {
		if e, ended := end(now); ended {
			ends = append(ends, e)
		}
	}
	m.resetDrain(now)
	return ends
}

// Over reports whether a hold has ended. A drain that is idle is not over.
func (m *Machine) Over(k Kind) bool {
	switch k {
	case Start:
		return m.start.over
	case Ready:
		return m.ready.over
	default:
		return m.drain.over
	}
}

// Draining reports whether the hook was called, and the pod has not gone on
// living since.
func (m *Machine) Draining() bool { return !m.drain.began.IsZero() }

// Deadline is when Advance must be called at the latest if there is no other
// input. Zero: never.
func (m *Machine) Deadline(now time.Time) time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if !m.start.over {
		at(m.start.bound)
		if !m.start.synced.IsZero() {
			at(m.silentAfter(now, m.start.synced))
		}
	}
	if !m.ready.over {
		at(m.readyBound())
		if !m.ready.appReady.IsZero() {
			at(m.ready.appReady.Add(NoticeWait))
		}
		at(m.words.silence(now).Add(Silence))
	}
	if m.Draining() {
		at(m.drainFloor(now))
		at(m.drainBound(now))
		at(m.drain.began.Add(Notice))
		at(m.drain.began.Add(Undeleted))
		at(m.drain.began.Add(Forget))
		at(m.words.silence(now).Add(Silence))
	}
	if !m.start.over || !m.ready.over || m.Draining() {
		at(m.words.nextExpiry(now))
	}
	return next
}

// silentAfter is when a silence that began not before t has lasted long enough.
func (m *Machine) silentAfter(now, t time.Time) time.Time {
	s := m.words.silence(now)
	if s.IsZero() {
		return time.Time{}
	}
	if s.Before(t) {
		s = t
	}
	return s.Add(Silence)
}

// silent reports whether no replica was heard for long enough.
func (m *Machine) silent(now time.Time) bool {
	s := m.words.silence(now)
	return !s.IsZero() && !now.Before(s.Add(Silence))
}
