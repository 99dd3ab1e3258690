// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
	"evenkeel.dev/xds/snapshot"
)

// directory is what the addresses of direct connections mean.
type directory map[netip.AddrPort][]snapshot.ObjectKey

// depth is how much of a pod is judged.
type depth uint8

const (
	asNeeded depth = iota // what the pod waits for
	inFull                // for people: also what it no longer waits for
)

// judge takes in what the Directory says of a pod and puts everything anew that
// follows from it and from the reports.
func (st *state) judge(c *sidecar, l look, d depth, now time.Time) {
	p := &c.pod
	st.see(c, l, now)
	st.judgeDrainOpen(c, now)
	st.excuseMissing(c, now)
	if d == inFull || !p.own.ready {
		st.judgeReady(c, now)
	}
	st.judgeDrained(c, now)
}

// tell gives the pod its status if it differs from the last, or if it is time.
func (st *state) tell(c *sidecar, services directory, now time.Time) {
	if c.sink == nil || c.fresh {
		return
	}
	p := &c.pod
	s := st.status(c, services, now)
	if now.Before(p.beat) && proto.Equal(s, p.sent) {
		return
	}
	p.sent, p.beat = s, now.Add(xds.ReportInterval)
	c.sink.Put(s)
}

func (st *state) status(c *sidecar, services directory, now time.Time) *api.PodStatus {
	p := &c.pod
	settled := st.settled(now)
	s := &api.PodStatus{
		Settled: settled,
		Replica: st.cfg.Replica,

		Propagated: settled && p.propagated,
		Clients:    uint32(p.ready.clients),
		Answered:   uint32(p.ready.done),
		Missing:    p.ready.missing,

		Drained:       settled && p.drained,
		DrainClients:  uint32(p.drain.clients),
		DrainReleased: uint32(p.drain.done),
		DrainMissing:  p.drain.missing,

		DirectConnections: uint32(min(st.directTo(p, services, now), 1<<32-1)),
		Upstreams:         st.learned.of(c, now),
	}
	if p.known {
		m := &p.member
		s.AppReady, s.Terminating = m.AppReady, m.Terminating
		s.DeletionGraceSeconds = uint32(max(0, m.DeletionGrace/time.Second))
		switch m.Exposure {
		case snapshot.ExposureNone:
			s.Exposure = api.PodStatus_NONE
		case snapshot.ExposureService:
			s.Exposure = api.PodStatus_SERVICE
		case snapshot.ExposureExternal:
			s.Exposure = api.PodStatus_EXTERNAL
		}
	}
	return s
}
