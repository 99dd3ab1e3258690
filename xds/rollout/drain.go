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
	told  bool // the Directory knows
	on    bool
	since time.Time
	ready bool // the app was seen ready since then
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
		p.hook.seen = false // and if it is still on, the pod itself says that it lives on
	case !p.hook.seen && !p.known && !c.podless(now):
		return // it opens as soon as the watch has the Pod
	case !p.hook.seen:
		p.hook.seen = true
		// A drain that is over when this replica first hears of it is another's: the
		// app may have restarted since.
		if !p.own.drained && !p.hook.on {
			p.hook.on, p.hook.told, p.hook.since, p.hook.ready = true, false, now, false
		}
	}
	if p.hook.on && p.known && !p.hook.told {
		p.hook.told = true
		st.setDraining(p, snapshot.DrainOn)
	}
	if terminating && !p.announced {
		p.announced = true
		st.setDraining(p, snapshot.DrainOn)
	}
	if !p.hook.on || terminating {
		return
	}
	// Seen not ready after it was ready: its container was killed. That it becomes
	// ready says nothing: the watch may be behind the hook.
	restarted := p.hook.ready && p.known && !p.member.AppReady
	p.hook.ready = p.hook.ready || p.known && p.member.AppReady
	if restarted || !p.hook.seen || now.Sub(p.hook.since) >= hookForgotten {
		p.hook.on, p.hook.told = false, false
		st.setDraining(p, snapshot.DrainOff)
	}
}

func (st *state) setDraining(p *pod, d snapshot.Drain) {
	if uid := p.member.UID; uid != "" {
		st.out.drains = append(st.out.drains, drainChange{uid, d})
	}
}
