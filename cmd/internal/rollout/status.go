// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	xdsrollout "evenkeel.dev/xds/rollout"
)

// Status is where a rollout stands. Its JSON form is a contract with users.
type Status struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"` // deployment/pricing
	// Desired, Updated and Ready count replicas, as the workload's own status does.
	Desired int `json:"desired"`
	Updated int `json:"updated"`
	Ready   int `json:"ready"`
	// Complete: all replicas are of the newest template and ready, no other pod is left.
	Complete bool  `json:"complete"`
	Pods     []Pod `json:"pods"`
	// Notes are what hinders a full picture, for people.
	Notes []string `json:"notes,omitempty"`
}

// Pod is one pod of the workload.
type Pod struct {
	Name  string `json:"pod"`
	UID   string `json:"uid"`
	Node  string `json:"node,omitempty"`
	State string `json:"state"` // starting, warming, ready, draining, gone
	// Sidecar: the pod reports to the control plane. Without one nothing below is known.
	Sidecar bool      `json:"sidecar"`
	Created time.Time `json:"created,omitzero"`

	// Clients that are waited for, and of those that have answered: by connecting while the pod becomes ready, by letting
	// go while it drains. Missing are some of the others.
	Clients  int                   `json:"clients"`
	Answered int                   `json:"answered"`
	Missing  []string              `json:"missing"`
	Holds    []xdsrollout.HoldView `json:"holds"`
	Replayed uint64                `json:"rpcs_replayed"`
	Failed   uint64                `json:"rpcs_failed"`
}

// answer is one replica's view, or why there is none.
type answer struct {
	replica string
	view    *xdsrollout.View
	err     error
}

// object is what the API server says about the workload.
type object struct {
	desired, updated, ready int
	// total counts pods, also those of an older template.
	total int
	// current: the controller has seen the newest template.
	current bool
}

// member is what it says about one of the pods.
type member struct {
	name, uid, node      string
	created              time.Time
	ready, deleted, done bool
	sidecar              bool
}

// merge makes one picture of all answers.
func merge(namespace string, w Workload, o object, members []member, answers []answer) *Status {
	s := &Status{Namespace: namespace, Workload: w.String(), Desired: o.desired, Updated: o.updated, Ready: o.ready, Pods: []Pod{}}
	s.Complete = o.current && o.updated == o.desired && o.ready == o.desired && o.total == o.desired
	best := map[string]xdsrollout.PodView{} // by UID
	rank := map[string]int{}
	settled := false
	for _, a := range answers {
		if a.err != nil {
			s.Notes = append(s.Notes, fmt.Sprintf("control plane %s does not answer: %s", a.replica, a.err))
			continue
		}
		settled = settled || a.view.Settled
		for _, p := range a.view.Pods {
			r := p.Clients + p.Drain.Clients
			if a.view.Settled {
				r += 1 << 30
			}
			if old, known := rank[p.UID]; !known || r > old {
				best[p.UID], rank[p.UID] = p, r
			}
		}
	}
	if !settled {
		s.Notes = append(s.Notes, "every replica of the control plane has just started: who is connected is not known yet")
	}
	for _, m := range members {
		if m.done {
			continue
		}
		p := Pod{Name: m.name, UID: m.uid, Node: m.node, Created: m.created, State: m.state(), Sidecar: m.sidecar, Missing: []string{}, Holds: []xdsrollout.HoldView{}}
		if v, ok := best[m.uid]; ok {
			p.take(&v)
			if m.deleted {
				p.State = "draining"
			}
			s.Complete = s.Complete && !m.deleted
			delete(best, m.uid)
		} else if m.sidecar {
			s.Notes = append(s.Notes, fmt.Sprintf("%s does not report to the control plane", m.name))
		}
		s.Pods = append(s.Pods, p)
	}
	for _, v := range best { // gone from the API server, remembered by the control plane
		p := Pod{Name: v.Pod, UID: v.UID, State: "gone", Sidecar: true}
		p.take(&v)
		p.State = "gone"
		s.Pods = append(s.Pods, p)
	}
	slices.SortFunc(s.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(order(a.State), order(b.State)), b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name))
	})
	slices.Sort(s.Notes)
	return s
}

func (p *Pod) take(v *xdsrollout.PodView) {
	p.State, p.Sidecar = v.State, true
	p.Clients, p.Answered, p.Missing = v.Clients, v.Answered, v.Missing
	if v.State == "draining" || v.State == "gone" {
		p.Clients, p.Answered, p.Missing = v.Drain.Clients, v.Drain.Released, v.Drain.Missing
	}
	if p.Missing == nil {
		p.Missing = []string{}
	}
	if p.Holds = v.Holds; p.Holds == nil {
		p.Holds = []xdsrollout.HoldView{}
	}
	p.Replayed, p.Failed = v.Replayed, v.Failed
}

func (m *member) state() string {
	switch {
	case m.deleted:
		return "draining"
	case m.ready:
		return "ready"
	}
	return "starting"
}

// order is that of a pod's life.
func order(state string) int {
	return slices.Index([]string{"starting", "warming", "ready", "draining", "gone"}, state)
}
