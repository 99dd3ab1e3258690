// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import "slices"

// maxNamed is how many of those who are missing are named.
const maxNamed = 10

// laggards keeps the first names in their order, so that the same laggards are
// told in the same words whatever the order in which they were found.
type laggards []string

func (l *laggards) add(name string) {
	i, found := slices.BinarySearch(*l, name)
	if found || i == maxNamed {
		return
	}
	if len(*l) == maxNamed {
		*l = (*l)[:maxNamed-1]
	}
	*l = slices.Insert(*l, i, name)
}

// verdict is how many are waited for, how many of them have answered or let go,
// and some of the others.
type verdict struct {
	clients, done int
	missing       laggards
}

func (v *verdict) all() bool { return v.done == v.clients }

// poll counts each client once, however many services it has in common with a pod.
type poll struct {
	epoch   uint64
	clients int
	lagging int
	missing laggards
}

func (st *state) newPoll() poll {
	st.epoch++
	return poll{epoch: st.epoch}
}

// add notes that c is waited for, and whether it still has something to do.
func (p *poll) add(c *sidecar, done bool) {
	if c.mark != p.epoch {
		c.mark, c.waiting = p.epoch, false
		p.clients++
	}
	if !done && !c.waiting {
		c.waiting = true
		p.lagging++
		p.missing.add(c.name)
	}
}

func (p *poll) verdict() verdict { return verdict{p.clients, p.clients - p.lagging, p.missing} }
