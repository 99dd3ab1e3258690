// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"time"

	"evenkeel.dev/xds/snapshot"
)

// hookForgotten is when a drain that was opened by the hook closes if the pod
// lives on and its app was never seen to restart.
const hookForgotten = 35 * time.Second

// hook is a drain that the preStop hook opened.
type hook struct {
	seen  bool // the pod says draining; it must say otherwise before the hook counts again
	on    bool
	since time.Time
	ready bool // whether the app was ready then
}

// drainChange is to be passed to the Directory.
type drainChange struct {
	uid   string
	drain snapshot.Drain
}

// draining reports whether the pod's drain is open.
func (p *pod) draining() bool { return p.known && p.member.Terminating || p.hook.on }

// judgeDrainOpen opens and closes the drain. Liveness restarts and the shutdown
// of a node call the hook of a pod that is not deleted: its endpoint must come
// back when the app does.
func (st *state) judgeDrainOpen(c *sidecar, now time.Time) {
	p := &c.pod
	terminating := p.known && p.member.Terminating
	switch {
	case !p.own.draining:
		p.hook.seen = false
	case !p.hook.seen:
		p.hook.seen = true
		// A drain that is over when this replica first hears of it is another's: the
		// app may have restarted since.
		if !p.own.drained && !p.hook.on {
			p.hook.on, p.hook.since, p.hook.ready = true, now, p.member.AppReady
			st.setDraining(p, snapshot.DrainOn)
		}
	}
	if terminating && !p.announced {
		p.announced = true
		st.setDraining(p, snapshot.DrainOn)
	}
	if !p.hook.on || terminating {
		return
	}
	// Seen not ready after that: its container was killed. One that was not ready
	// before either must first become so.
	restarted := p.known && p.member.AppReady != p.hook.ready
	if restarted || now.Sub(p.hook.since) >= hookForgotten {
		p.hook.on = false
		st.setDraining(p, snapshot.DrainOff)
	}
}

func (st *state) setDraining(p *pod, d snapshot.Drain) {
	if uid := p.member.UID; uid != "" {
		st.out.drains = append(st.out.drains, drainChange{uid, d})
	}
}
