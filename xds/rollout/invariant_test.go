// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/xds"
)

// inLease is the model's own word on whether a replica waits for a client.
func (w *modelWorld) inLease(c, r int) bool {
	word := &w.replicas[r].words[c]
	fresh := func(t time.Time) bool { return !t.IsZero() && w.now.Sub(t) <= xds.Lease }
	return fresh(word.heard) || word.opened.After(word.heard) && fresh(word.opened)
}

// knows: r has been told, or sees, that c subscribes.
func (w *modelWorld) knows(c, r int) bool {
	return w.replicas[r].words[c].sub || w.clients[c].ads == r && w.clients[c].sub
}

// broken says which invariant does not hold, judged by what the model knows and
// the state under test does not.
func (w *modelWorld) broken() string {
	propagated, drained, settled := true, true, 0
	for r := range w.replicas {
		rep := &w.replicas[r]
		c := rep.st.sidecars[modelPod.UID]
		if c == nil || !rep.pod.open {
			continue // it says nothing to the pod
		}
		s := rep.st.status(c, nil, w.now)
		isSettled := w.now.Sub(rep.served) >= xds.Settle
		if s.GetSettled() != isSettled {
			return fmt.Sprintf("replica %d: settled is %v", r, s.GetSettled())
		}
		if !isSettled && (s.GetPropagated() || s.GetDrained()) {
			return fmt.Sprintf("replica %d claims something before it is settled", r)
		}
		if isSettled {
			settled++
			propagated, drained = propagated && s.GetPropagated(), drained && s.GetDrained()
		}
		if s.GetPropagated() && rep.sees.created && !rep.sees.appReady {
			return fmt.Sprintf("replica %d: propagated before its app is ready", r)
		}
		if s.GetDrained() && !rep.sees.deleted && !rep.drain {
			return fmt.Sprintf("replica %d: drained without a drain", r)
		}
		for i := range w.clients {
			word := &rep.words[i]
			if !w.knows(i, r) || !w.inLease(i, r) {
				continue
			}
			answered := rep.sees.listed && (word.connected || w.clients[i].idle && (word.told != toldNothing))
			if s.GetPropagated() && !answered {
				return fmt.Sprintf("replica %d: propagated without client %d", r, i)
			}
			holds := word.told == toldToUse || word.rpc || word.told == toldNothing && rep.sees.listed
			if s.GetDrained() && holds {
				return fmt.Sprintf("replica %d: drained while client %d holds", r, i)
			}
		}
	}
	if settled == 0 {
		return ""
	}
	// What the pod concludes from all replicas together, against the truth.
	for i := range w.clients {
		cl := &w.clients[i]
		if cl.dead || !cl.sub || cl.since == w.tick {
			continue // dead, or so new that its word may not be everywhere
		}
		answered := cl.connected || cl.idle && cl.told != toldNothing
		if propagated && !answered && !w.hook && !w.api.deleted {
			return fmt.Sprintf("released as propagated without client %d", i)
		}
		// A hook without a deletion is known to those only that the pod has told: a
		// replica that restarts just then may offer the pod once more. And when a drain
		// follows one that was closed, a client's word may be of the first: the pod's
		// own floor is far longer than that word takes to be put right.
		if drained && (cl.told == toldToUse || cl.rpc) && !w.lost && !w.closed {
			return fmt.Sprintf("released as drained while client %d holds", i)
		}
	}
	return ""
}

// stuck lets everybody who lives do what is theirs and says which claim does not
// come all the same: then a pod would be held until its bound.
func (w *modelWorld) stuck() string {
	w = w.clone()
	w.api.created = true
	if !w.api.deleted && !w.api.listed {
		w.api.listed = true
	}
	w.api.appReady = true
	w.dirtyPod()
	const enough = 4 // settling takes two ticks, a lease one
	for range enough {
		w.deliver()
		for c := range w.clients {
			cl := &w.clients[c]
			if cl.dead {
				continue
			}
			cl.connected = cl.connected || cl.told == toldToUse && !cl.idle
			cl.rpc = false
			w.changed(c)
		}
		w.pass()
		w.judge()
	}
	for r := range w.replicas {
		rep := &w.replicas[r]
		c := rep.st.sidecars[modelPod.UID]
		s := rep.st.status(c, nil, w.now)
		switch open := c.pod.draining(); {
		case open && !s.GetDrained():
			return fmt.Sprintf("replica %d never says drained: %v", r, s)
		case !open && !w.hook && !s.GetPropagated():
			return fmt.Sprintf("replica %d never says propagated: %v", r, s)
		}
	}
	return ""
}

// print is the same for two worlds from which the same can happen.
func (w *modelWorld) print(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	bits := func(values ...bool) {
		var b byte
		for i, v := range values {
			if v {
				b |= 1 << i
			}
		}
		_ = h.WriteByte(b)
	}
	age := func(t time.Time, most time.Duration) {
		d := most + 1
		if !t.IsZero() {
			d = min(w.now.Sub(t), most+1)
		}
		_ = binary.Write(&h, binary.LittleEndian, int64(d))
	}
	bits(w.api.created, w.api.appReady, w.api.listed, w.api.deleted, w.hook, w.lost, w.closed)
	_, _ = h.Write([]byte{byte(w.deaths), byte(w.restarts), byte(w.ticks)})
	for c := range w.clients {
		cl := &w.clients[c]
		bits(cl.dead, cl.sub, cl.connected, cl.rpc, cl.since == w.tick)
		_, _ = h.Write([]byte{byte(cl.ads + 1), byte(cl.told)})
	}
	for r := range w.replicas {
		rep := &w.replicas[r]
		bits(rep.sees.created, rep.sees.appReady, rep.sees.listed, rep.sees.deleted, rep.drain, rep.pod.open, rep.pod.dirty)
		age(rep.served, xds.Settle)
		if c := rep.st.sidecars[modelPod.UID]; c != nil {
			p := &c.pod
			pl, seen := p.places[modelService]
			bits(p.known, p.own.draining, p.hook.seen, p.hook.on, p.hook.ready, p.announced, seen, pl.listed)
			bits(pl.id == modelID, p.propagated, p.drained)
			if p.hook.on {
				age(p.hook.since, hookForgotten)
			}
			if !p.known {
				age(c.opened, xds.Lease)
			}
		}
		for c := range rep.words {
			word := &rep.words[c]
			bits(word.open, word.dirty, word.sub, word.connected, word.rpc, word.opened.After(word.heard))
			_ = h.WriteByte(byte(word.told))
			age(word.heard, xds.Lease)
			if cl, p := rep.st.sidecars[modelNames[c].UID], rep.st.sidecars[modelPod.UID]; cl != nil && p != nil {
				bits(cl.spoke > p.pod.places[modelService].left)
			}
			age(word.opened, xds.Lease)
		}
	}
	return h.Sum64()
}

// modelStart is where an exploration begins and what may happen in it.
type modelStart struct {
	clients, replicas       int
	deaths, restarts, ticks int
	ready                   bool // all is connected: what follows is the drain
	may                     may
}

func (m modelStart) world() *modelWorld {
	w := &modelWorld{
		now: start, clients: make([]modelClient, m.clients), replicas: make([]modelReplica, m.replicas),
		deaths: m.deaths, restarts: m.restarts, ticks: m.ticks, may: m.may,
	}
	for r := range w.replicas {
		w.start(r)
	}
	for c := range w.clients {
		w.clients[c].idle = c == 1
		w.connectADS(c, c%m.replicas) // each at another replica
	}
	if m.ready {
		w.api = apiWorld{created: true, appReady: true, listed: true}
		for c := range w.clients {
			w.deliver()
			w.subscribe(c)
			w.clients[c].connected = !w.clients[c].idle
			w.changed(c)
		}
	}
	for range 2 { // they are settled
		w.pass()
	}
	w.judge()
	return w
}

// explore goes through every world that can be reached, each once.
func explore(t *testing.T, w *modelWorld, most int) (worlds int) {
	t.Helper()
	type node struct {
		w    *modelWorld
		from *node
		by   string
	}
	path := func(n *node) string {
		var steps []string
		for ; n.from != nil; n = n.from {
			steps = append([]string{n.by}, steps...)
		}
		return strings.Join(steps, "; ")
	}
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{w.print(seed): {}}
	queue := []*node{{w: w}}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if why := n.w.stuck(); why != "" {
			t.Fatalf("%s\nafter: %s", why, path(n))
		}
		for _, e := range n.w.events() {
			next := n.w.clone()
			e.do(next)
			next.judge()
			next.judge() // what a drain that was opened makes of it
			child := &node{next, n, e.name}
			if why := next.broken(); why != "" {
				t.Fatalf("%s\nafter: %s", why, path(child))
			}
			p := next.print(seed)
			if _, was := seen[p]; was {
				continue
			}
			seen[p] = struct{}{}
			if len(seen) > most {
				t.Fatalf("more than %d worlds", most)
			}
			queue = append(queue, child)
		}
		n.w = nil // only the path is needed from now on
	}
	return len(seen)
}

var everyWorld = flag.Bool("every-world", false, "explore the larger models: minutes")

// Every way in which a few actors can act, one after the other: no pod is
// released before it is propagated or drained unless the lease of the missing is
// over, and from everywhere it comes to that.
func TestEveryInterleaving(t *testing.T) {
	all := may{lag: true, end: true, call: true}
	starts := []modelStart{
		{clients: 1, replicas: 1, deaths: 1, ticks: 1, may: all},
		{clients: 1, replicas: 1, restarts: 1, ticks: 3, ready: true, may: all},
		{clients: 2, replicas: 1, deaths: 1, ticks: 1},
		{clients: 1, replicas: 2, restarts: 1, ticks: 2},
		{clients: 1, replicas: 2, restarts: 1, ticks: 1, ready: true, may: may{end: true}},
		{clients: 2, replicas: 1, deaths: 1, ticks: 1, ready: true, may: may{end: true}},
	}
	if raced {
		starts = starts[len(starts)-1:]
	}
	if *everyWorld {
		starts = []modelStart{
			{clients: 1, replicas: 1, deaths: 1, restarts: 1, ticks: 3, may: all},
			{clients: 2, replicas: 1, deaths: 1, restarts: 1, ticks: 3, ready: true, may: may{end: true, call: true}},
			{clients: 2, replicas: 2, deaths: 1, ticks: 1},
			{clients: 2, replicas: 2, restarts: 1, ready: true, may: may{end: true}},
			{clients: 1, replicas: 2, deaths: 1, restarts: 1, ticks: 1, ready: true, may: may{end: true, call: true}},
		}
	}
	for _, m := range starts {
		t.Run(fmt.Sprintf("%+v", m), func(t *testing.T) {
			began := time.Now()
			n := explore(t, m.world(), 10_000_000)
			t.Logf("%d worlds in %s", n, time.Since(began).Round(time.Millisecond))
		})
	}
}
