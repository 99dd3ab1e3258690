// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"cmp"
	"slices"
	"time"
)

// View is what this replica knows of the pods of a namespace or a workload, for
// people. Its JSON form is what `evenkeel rollout status` reads.
type View struct {
	Replica string    `json:"replica"`
	Settled bool      `json:"settled"`
	Pods    []PodView `json:"pods"`
}

// PodView is one pod, also one that is gone since at most ten minutes.
type PodView struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Workload  string `json:"workload"`
	// State: starting, warming, ready, draining, gone.
	State string `json:"state"`
	// Clients that are waited for, those of them that have answered, some of the others.
	Clients  int       `json:"clients"`
	Answered int       `json:"answered"`
	Missing  []string  `json:"missing"`
	Drain    DrainView `json:"drain"`
	// Holds that are over, in the order in which they ended.
	Holds []HoldView `json:"holds"`
	// Failed and Replayed count RPCs that failed because of this pod, or were
	// served by another one instead.
	Failed   uint64 `json:"rpcs_failed"`
	Replayed uint64 `json:"rpcs_replayed"`
}

// DrainView is who has let go of a pod.
type DrainView struct {
	Clients  int      `json:"clients"`
	Released int      `json:"released"`
	Missing  []string `json:"missing"`
}

// HoldView is a hold that is over.
type HoldView struct {
	Hold    string   `json:"hold"`
	Seconds float64  `json:"seconds"`
	Reason  string   `json:"reason"`
	Missing []string `json:"missing"`
}

// The states of a pod, for people.
const (
	stateStarting = "starting"
	stateWarming  = "warming"
	stateReady    = "ready"
	stateDraining = "draining"
	stateGone     = "gone"
)

// asked are the pods that a View is of; an empty workload means all.
func (st *state) asked(namespace, workload string) (living, gone []*sidecar) {
	wanted := func(c *sidecar) bool {
		return !c.heard.IsZero() && c.node.Namespace == namespace && (workload == "" || c.node.Workload == workload)
	}
	for _, c := range st.sidecars {
		if wanted(c) {
			living = append(living, c)
		}
	}
	for _, c := range st.gone {
		if wanted(c) {
			gone = append(gone, c)
		}
	}
	return living, gone
}

func (st *state) podView(c *sidecar) PodView {
	p := &c.pod
	v := PodView{
		Namespace: c.node.Namespace, Pod: c.node.Pod, UID: cmp.Or(c.node.UID, p.member.UID), Workload: c.node.Workload,
		State:   p.stateName(c),
		Clients: p.ready.clients, Answered: p.ready.done, Missing: names(p.ready.missing),
		Drain: DrainView{p.drain.clients, p.drain.done, names(p.drain.missing)},
		Holds: []HoldView{},
	}
	for _, h := range p.holds {
		v.Holds = append(v.Holds, HoldView{h.hold, h.waited.Seconds(), h.reason, names(h.missing)})
	}
	if t := st.tallies[v.UID]; t != nil {
		v.Failed, v.Replayed = t.failed, t.replayed
	}
	return v
}

func (p *pod) stateName(c *sidecar) string {
	switch {
	case !p.goneAt.IsZero(), c.left && !p.known:
		return stateGone
	case p.draining(), c.left:
		return stateDraining
	case p.known && p.member.AppReady && (p.own.ready || p.member.Ready):
		return stateReady
	case p.known && p.member.AppReady:
		return stateWarming
	}
	return stateStarting
}

// names are never null in JSON.
func names(l []string) []string { return append([]string{}, l...) }

func sortPods(pods []PodView) {
	slices.SortFunc(pods, func(a, b PodView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
}

// view answers a question about pods that were judged just now.
func (st *state) view(namespace, workload string, now time.Time) *View {
	living, gone := st.asked(namespace, workload)
	v := &View{Replica: st.cfg.Replica, Settled: st.settled(now), Pods: []PodView{}}
	for _, c := range append(living, gone...) {
		v.Pods = append(v.Pods, st.podView(c))
	}
	sortPods(v.Pods)
	return v
}
