// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"net/netip"
	"slices"
	"time"

	"evenkeel.dev/xds/snapshot"
)

// drainStreams holds for a pod that has not said what it wants (DESIGN §2).
const drainStreams = 30 * time.Second

// judgeDrained decides whether everybody has let go of the pod. Its own sidecar
// counts too: its app may call itself.
func (st *state) judgeDrained(c *sidecar, now time.Time) {
	p := &c.pod
	if !p.draining() {
		p.drain, p.drained = verdict{}, false
		return
	}
	long := p.own.drainStreams
	if long == 0 {
		long = drainStreams
	}
	poll := st.newPoll()
	for svc, pl := range p.places { // also those that it is no longer in: RPCs outlive that
		for client, u := range st.services[svc] {
			if client.inLease(now) && client.sees(p, pl.local) {
				poll.add(client, client.released(p, u, pl, long))
			}
		}
	}
	for client := range st.direct {
		if client.inLease(now) && client.holdsDirectly(p, long) {
			poll.add(client, false)
		}
	}
	p.drain = poll.verdict()
	p.drained = st.settled(now) && p.drain.all()
}

// released: this client, of the service of u, has let go of the pod.
func (c *sidecar) released(p *pod, u *use, pl place, long time.Duration) bool {
	if pl.id == (endpointID{}) {
		// This replica never saw where the pod was. Who has it says so.
		for id, e := range u.endpoints {
			if id.Value().uid == p.member.UID && p.member.UID != "" && !e.released(u, long) {
				return false
			}
		}
		return c.spoke > pl.left
	}
	e, known := u.endpoints[pl.id]
	if !known {
		// Still in the set: the client is yet to hear of it, and would pick it then. Not
		// in the set any more: it may have begun to use it just before, and says so if
		// it has, so it is to have said something since.
		return !pl.listed && c.spoke > pl.left
	}
	return e.released(u, long)
}

// released: it knows that the endpoint drains, does not pick it, and has no RPC
// there that holds. A stream that was older than that when the drain began is a
// long-lived watch: it ends with the app.
func (e *endpoint) released(u *use, long time.Duration) bool {
	// Who cannot connect to what takes the pod's place would pick the old one as long
	// as it is there: that is not waited for, its RPCs are.
	return e.draining && (!e.picked || u.excused) && (e.inFlight == 0 || e.youngest > long)
}

// holdsDirectly: it has RPCs on one of the pod's addresses that were not sent
// through a service.
func (c *sidecar) holdsDirectly(p *pod, long time.Duration) bool {
	for id, e := range c.direct {
		if e.inFlight == 0 || e.youngest > long {
			continue
		}
		if k := id.Value(); (k.uid == "" || k.uid == p.member.UID) && p.has(k.addr.Addr()) {
			return true
		}
	}
	return false
}

func (p *pod) has(a netip.Addr) bool { return slices.Contains(p.member.IPs, a) }

// directTo counts the connections by which clients reach the pod's services past
// their sidecars. services knows what their addresses mean.
func (st *state) directTo(p *pod, services directory, now time.Time) (n uint64) {
	for client := range st.dialling {
		if !client.inLease(now) {
			continue
		}
		for _, d := range client.dialled {
			for _, key := range services[d.addr] {
				if slices.ContainsFunc(p.member.Services, func(ps snapshot.PodService) bool {
					return ps.Service.Namespace == key.Namespace && ps.Service.Name == key.Name
				}) {
					n += d.count
					break
				}
			}
		}
	}
	return n
}

// dials are the addresses to which there are connections past a sidecar.
func (st *state) dials() []netip.AddrPort {
	var list []netip.AddrPort
	seen := map[netip.AddrPort]struct{}{}
	for client := range st.dialling {
		for _, d := range client.dialled {
			if _, ok := seen[d.addr]; !ok {
				seen[d.addr] = struct{}{}
				list = append(list, d.addr)
			}
		}
	}
	return list
}
