// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// modelTick is how far time goes at once: just more than a lease.
const modelTick = xds.Lease + time.Millisecond

// How a client has the pod in its set.
type toldAs uint8

const (
	toldNothing toldAs = iota
	toldToUse          // warming or ready: connect, pick
	toldToDrain        // finish, pick no more
)

// apiWorld is what the API server has; a replica may see less.
type apiWorld struct{ created, appReady, listed, deleted bool }

// modelClient is a client's sidecar as it really is.
type modelClient struct {
	idle bool // never has an RPC
	dead bool // stopped without a word; its streams stay open
	ads  int  // the replica of its ADS stream, -1: none
	sub  bool // it subscribes to the service
	// since is the tick in which it subscribed.
	since          int
	told           toldAs
	connected, rpc bool
}

// modelWord is what a client has said to a replica.
type modelWord struct {
	open, dirty    bool
	heard          time.Time
	opened         time.Time // of its ADS stream here
	sub            bool
	told           toldAs
	connected, rpc bool
}

// modelReplica is a replica: the state under test, and what is true of it.
type modelReplica struct {
	st     *state
	sees   apiWorld
	drain  bool // SetDraining
	served time.Time
	pod    struct{ open, dirty bool } // the stream of the pod's sidecar
	words  []modelWord                // by client
}

// may is what is explored: all of it at once is too much for more than one client
// and one replica.
type may struct {
	lag  bool // replicas see the API server's objects each in its own time
	end  bool // the hook is called, the pod is deleted
	call bool // clients have RPCs
}

// modelWorld is one pod, its clients, and the replicas.
type modelWorld struct {
	now      time.Time
	tick     int
	api      apiWorld
	hook     bool // the preStop hook was called
	lost     bool // a replica was restarted after that and before the pod was deleted, if at all
	closed   bool // a drain was closed again, as the app was restarted
	clients  []modelClient
	replicas []modelReplica
	// What may still happen, and what happens at all.
	deaths, restarts, ticks int
	may                     may
}

var (
	modelConfig  = &Config{Logger: slog.New(slog.DiscardHandler), Replica: "xds", Settle: xds.Settle, MaxServices: 10, MaxEndpoints: 10}
	modelService = xds.Service{Namespace: "shop", Name: "pricing", Port: 50051}
	modelAddr    = netip.MustParseAddrPort("10.244.0.1:50051")
	modelPod     = xds.Node{Namespace: "shop", Pod: "pricing-1", UID: "uid-pricing-1", Node: "node1"}
	modelID      = idOf(modelAddr, modelPod.UID)
	modelNames   = []xds.Node{{Namespace: "shop", Pod: "web-1", UID: "uid-web-1"}, {Namespace: "shop", Pod: "web-2", UID: "uid-web-2"}}
)

// silentSink drops what it is given: the model asks the state itself.
type silentSink struct{}

func (silentSink) Put(*api.PodStatus) {}

func (w *modelWorld) clone() *modelWorld {
	n := *w
	n.clients = slices.Clone(w.clients)
	n.replicas = slices.Clone(w.replicas)
	for i := range n.replicas {
		n.replicas[i].st = w.replicas[i].st.clone()
		n.replicas[i].words = slices.Clone(w.replicas[i].words)
	}
	return &n
}

// start makes a replica that has just begun to serve.
func (w *modelWorld) start(r int) {
	rep := &w.replicas[r]
	*rep = modelReplica{st: newState(modelConfig), sees: w.api, served: w.now, words: make([]modelWord, len(w.clients))}
	rep.st.serving(w.now)
	rep.st.tick(w.now)
}

// Streams are numbered by who opens them and to whom: one of each kind is open.
const (
	podStream   = 1
	trackStream = 10
	adsStreamID = 20
)

func (w *modelWorld) reportPod(r int) {
	rep := &w.replicas[r]
	if !rep.pod.open {
		rep.st.trackOpened(podStream, modelPod, silentSink{}, w.now)
	}
	rep.pod.open, rep.pod.dirty = true, false
	w.must(rep.st.report(podStream, &report{own: &own{draining: w.hook}}, w.now))
}

func (w *modelWorld) must(_ bool, err error) {
	if err != nil {
		panic(err) // the model's own mistake
	}
}

// report delivers what c has to say to r.
func (w *modelWorld) report(c, r int) {
	cl, rep := &w.clients[c], &w.replicas[r]
	word := &rep.words[c]
	out := &report{}
	if !word.open {
		rep.st.trackOpened(uint64(trackStream+c), modelNames[c], silentSink{}, w.now)
	}
	if cl.sub {
		s := serviceReport{svc: modelService, active: !cl.idle}
		e := endpointReport{id: modelID, gone: cl.told == toldNothing && !cl.rpc}
		if cl.connected {
			e.answer = connected
		}
		e.draining = cl.told != toldToUse
		if e.draining && cl.rpc {
			e.inFlight = 1
		}
		s.endpoints = []endpointReport{e}
		out.services = []serviceReport{s}
	}
	w.must(rep.st.report(uint64(trackStream+c), out, w.now))
	*word = modelWord{open: true, heard: w.now, opened: word.opened, sub: cl.sub, told: cl.told, connected: cl.connected, rpc: cl.rpc}
}

// changed marks what a client has to say as not said yet.
func (w *modelWorld) changed(c int) {
	for r := range w.replicas {
		w.replicas[r].words[c].dirty = true
	}
}

// offers is how r has the pod in the service's collection.
func (rep *modelReplica) offers() toldAs {
	switch {
	case !rep.sees.created || !rep.sees.listed:
		return toldNothing
	case rep.sees.deleted || rep.drain:
		return toldToDrain
	}
	return toldToUse
}

func (w *modelWorld) connectADS(c, r int) {
	cl, rep := &w.clients[c], &w.replicas[r]
	cl.ads = r
	rep.words[c].opened = w.now
	rep.st.openADS(uint64(adsStreamID+c), modelNames[c], w.now)
	if cl.sub {
		rep.st.subscribed(uint64(adsStreamID+c), modelService)
		w.hear(c)
	}
}

// hear takes in what the client's replica has for it.
func (w *modelWorld) hear(c int) {
	cl := &w.clients[c]
	if now := w.replicas[cl.ads].offers(); now != cl.told {
		cl.told = now
		w.changed(c)
	}
}

// judge has every replica judge the pod, as Run does after each change.
func (w *modelWorld) judge() {
	for r := range w.replicas {
		rep := &w.replicas[r]
		if !w.may.lag {
			rep.sees = w.api
		}
		c := rep.st.sidecars[modelPod.UID]
		if c == nil {
			continue
		}
		rep.st.judge(c, rep.look(), asNeeded, w.now)
		for _, d := range rep.st.out.drains {
			rep.drain = d.drain == snapshot.DrainOn
			w.closed = w.closed || !rep.drain
		}
		rep.st.out = effects{}
	}
}

func (rep *modelReplica) look() look {
	if !rep.sees.created {
		return look{}
	}
	m := snapshot.Membership{UID: modelPod.UID, Node: "node1", AppReady: rep.sees.appReady, Terminating: rep.sees.deleted}
	s := snapshot.PodService{Service: modelService}
	if rep.sees.listed {
		s.Addr, s.State = modelAddr, corepb.HealthStatus_UNHEALTHY
		if rep.offers() == toldToDrain {
			s.State = corepb.HealthStatus_DRAINING
		}
	}
	m.Services = []snapshot.PodService{s}
	return look{m, true}
}

// event is one thing that can happen next.
type event struct {
	name string
	do   func(w *modelWorld)
}

// events are all that can happen.
func (w *modelWorld) events() (list []event) {
	add := func(ok bool, do func(w *modelWorld), name string, args ...any) {
		if ok {
			list = append(list, event{fmt.Sprintf(name, args...), do})
		}
	}
	a := w.api
	add(!a.created, func(w *modelWorld) { w.api.created = true; w.dirtyPod() }, "the pod is created")
	add(a.created && !a.appReady, func(w *modelWorld) { w.api.appReady = true }, "its app is ready")
	add(a.created && !a.listed && !a.deleted, func(w *modelWorld) { w.api.listed = true }, "its slice lists it")
	add(a.listed && a.deleted, func(w *modelWorld) { w.api.listed = false }, "its slice lets it go")
	add(w.may.end && a.appReady && !a.deleted, func(w *modelWorld) { w.api.deleted = true }, "the pod is deleted")
	add(w.may.end && a.appReady && !w.hook, func(w *modelWorld) { w.hook = true; w.dirtyPod() }, "the hook is called")
	for r := range w.replicas {
		rep := &w.replicas[r]
		add(rep.sees != a, func(w *modelWorld) { w.replicas[r].sees = w.api }, "replica %d sees it", r)
		// Its stream is not admitted before the replica has seen the Pod.
		add(rep.sees.created && (!rep.pod.open || rep.pod.dirty), func(w *modelWorld) { w.reportPod(r) }, "the pod reports to %d", r)
		add(w.restarts > 0, func(w *modelWorld) { w.restart(r) }, "replica %d restarts", r)
	}
	for c := range w.clients {
		cl := &w.clients[c]
		if cl.dead {
			continue
		}
		add(w.deaths > 0, func(w *modelWorld) { w.deaths--; w.clients[c].dead = true }, "client %d dies", c)
		add(!cl.sub && cl.ads >= 0, func(w *modelWorld) { w.subscribe(c) }, "client %d subscribes", c)
		add(cl.sub && cl.ads >= 0 && w.replicas[max(cl.ads, 0)].offers() != cl.told, func(w *modelWorld) { w.hear(c) }, "client %d hears", c)
		add(cl.told == toldToUse && !cl.idle && !cl.connected, func(w *modelWorld) { w.clients[c].connected = true; w.changed(c) }, "client %d connects", c)
		add(w.may.call && cl.told == toldToUse && cl.connected && !cl.rpc, func(w *modelWorld) { w.clients[c].rpc = true; w.changed(c) }, "client %d begins an RPC", c)
		add(cl.rpc, func(w *modelWorld) { w.clients[c].rpc = false; w.changed(c) }, "client %d ends its RPC", c)
		for r := range w.replicas {
			word := &w.replicas[r].words[c]
			add(cl.ads < 0, func(w *modelWorld) { w.connectADS(c, r) }, "client %d connects to %d", c, r)
			add(!word.open || word.dirty, func(w *modelWorld) { w.report(c, r) }, "client %d reports to %d", c, r)
		}
	}
	add(w.ticks > 0, func(w *modelWorld) { w.ticks--; w.pass() }, "time goes by")
	return list
}

func (w *modelWorld) dirtyPod() {
	for r := range w.replicas {
		w.replicas[r].pod.dirty = true
	}
}

func (w *modelWorld) subscribe(c int) {
	cl := &w.clients[c]
	cl.sub, cl.since = true, w.tick
	w.replicas[cl.ads].st.subscribed(uint64(adsStreamID+c), modelService)
	w.changed(c)
	w.hear(c)
}

func (w *modelWorld) restart(r int) {
	w.restarts--
	w.lost = w.lost || w.hook && !w.api.deleted
	w.start(r)
	for c := range w.clients {
		if w.clients[c].ads == r {
			w.clients[c].ads = -1
		}
	}
}

// deliver is what happens within less than a tick, if nothing hinders it.
func (w *modelWorld) deliver() {
	for r := range w.replicas {
		w.replicas[r].sees = w.api
		if rep := &w.replicas[r]; w.api.created && (!rep.pod.open || rep.pod.dirty) {
			w.reportPod(r)
		}
	}
	w.judge() // which may open a drain
	for c := range w.clients {
		cl := &w.clients[c]
		if cl.dead {
			continue
		}
		if cl.ads < 0 {
			w.connectADS(c, 0)
		}
		if cl.sub {
			w.hear(c)
		}
		for r := range w.replicas {
			if word := &w.replicas[r].words[c]; !word.open || word.dirty {
				w.report(c, r)
			}
		}
	}
}

// pass is a tick: what is under way arrives, then the living report once more
// than each second.
func (w *modelWorld) pass() {
	w.deliver()
	w.tick++
	for end := w.now.Add(modelTick); w.now.Before(end); {
		w.now = w.now.Add(min(time.Second, end.Sub(w.now)))
		for r := range w.replicas {
			rep := &w.replicas[r]
			rep.st.tick(w.now)
			if rep.pod.open {
				w.must(rep.st.report(podStream, &report{}, w.now))
			}
			for c := range w.clients {
				if !w.clients[c].dead && rep.words[c].open {
					w.must(rep.st.report(uint64(trackStream+c), &report{}, w.now))
					rep.words[c].heard = w.now
				}
			}
		}
	}
}
