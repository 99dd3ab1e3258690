// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package router

import (
	"fmt"
	"iter"
	"net/netip"
)

// Table is what the control plane has said so far. It is immutable and safe
// for concurrent use; a nil *Table knows nothing.
type Table struct {
	addrs map[netip.AddrPort]Destination
	names map[string]Destination
}

// NewTable makes a table of m. It keeps no reference to m.
func NewTable(m map[Key]Destination) *Table {
	t := &Table{
		addrs: make(map[netip.AddrPort]Destination, len(m)),
		names: make(map[string]Destination, len(m)),
	}
	for k, d := range m {
		if k.Name != "" {
			t.names[k.Name] = d
		} else {
			t.addrs[k.Addr] = d
		}
	}
	return t
}

// Len is the number of keys that were answered.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.addrs) + len(t.names)
}

// Lookup returns the control plane's word about k, for people to look at: it
// is no use of the destination.
func (t *Table) Lookup(k Key) (Destination, bool) {
	if t == nil {
		return Destination{}, false
	}
	if k.Name != "" {
		d, ok := t.names[k.Name]
		return d, ok
	}
	d, ok := t.addrs[k.Addr]
	return d, ok
}

// Keys iterates over what was answered, in no order.
func (t *Table) Keys() iter.Seq2[Key, Destination] {
	return func(yield func(Key, Destination) bool) {
		if t == nil {
			return
		}
		for a, d := range t.addrs {
			if !yield(Key{Addr: a}, d) {
				return
			}
		}
		for n, d := range t.names {
			if !yield(Key{Name: n}, d) {
				return
			}
		}
	}
}

func (t *Table) addr(a netip.AddrPort) (Destination, bool) {
	if t == nil {
		return Destination{}, false
	}
	d, ok := t.addrs[a]
	d.Usage.mark()
	return d, ok
}

func (t *Table) name(key []byte) (Destination, bool) {
	if t == nil {
		return Destination{}, false
	}
	d, ok := t.names[string(key)]
	d.Usage.mark()
	return d, ok
}

// Route decides about one stream.
//
// orig is the original destination of the stream's connection. When its
// address is not valid there is none: the app dialled the listener. Its port is
// used all the same where authority has none, so the caller passes
// netip.AddrPortFrom(netip.Addr{}, defaultPort) then.
func (t *Table) Route(orig netip.AddrPort, authority string) Route {
	orig = netip.AddrPortFrom(orig.Addr().Unmap(), orig.Port())
	if !orig.Addr().IsValid() {
		return t.byAuthority(orig.Port(), authority)
	}

	// A zone is a link of this machine: no Service and no pod has such an
	// address, so there is nothing to ask about it.
	askable := orig.Addr().Zone() == ""
	dst, answered := t.addr(orig)

	// Rule 1: ClusterIP:port of a Service.
	if dst.Kind == Service {
		return Route{Verdict: Balance, Service: dst.Service}
	}

	var r Route
	if askable && !answered {
		r.missing(Key{Addr: orig})
	}
	// An IP literal in :authority says nothing that orig does not say better.
	var tgt target
	if tgt.parse(authority, orig.Port()); tgt.kind == name {
		named, known := t.name(tgt.key())
		switch {
		case !known:
			r.missing(Key{Name: string(tgt.key())})
		case named.Kind == Service && named.Headless:
			// Rule 2: a client's cached address of a headless Service may be gone.
			r.Verdict, r.Service = Balance, named.Service
			return r
		case named.Kind == Pod && named.Endpoint.IsValid():
			// Rule 3: that pod alone, at the address that it has now.
			r.Verdict, r.Endpoint = Pin, named.Endpoint
			return r
		}
	}
	switch {
	case r.N > 0:
		r.Verdict = Ask // Rule 4, not known yet.
	case dst.Kind == Pod:
		r.Verdict, r.Endpoint = Pin, orig // Rule 3, IP literal or a name of the user's own.
	default:
		r.Verdict, r.Endpoint = Relay, orig // Rule 4, known to be no affair of ours.
	}
	return r
}

// byAuthority is rule 6: no original destination.
func (t *Table) byAuthority(port uint16, authority string) Route {
	var tgt target
	tgt.parse(authority, port)
	var dst Destination
	var answered bool
	switch tgt.kind {
	case garbage:
		return refuse(authority, "is not a host with a port")
	case literal:
		// The pod's own loopback (the listener itself, most likely) is no
		// destination: relaying to it would go round in a circle.
		if tgt.addr.Addr().IsLoopback() || tgt.addr.Addr().IsUnspecified() {
			return refuse(authority, "is this pod itself")
		}
		dst, answered = t.addr(tgt.addr)
	case name:
		dst, answered = t.name(tgt.key())
	}
	if !answered {
		r := Route{Verdict: Ask}
		if tgt.kind == literal {
			r.missing(Key{Addr: tgt.addr})
		} else {
			r.missing(Key{Name: string(tgt.key())})
		}
		return r
	}
	switch dst.Kind {
	case Service:
		return Route{Verdict: Balance, Service: dst.Service}
	case Pod:
		if dst.Endpoint.IsValid() {
			return Route{Verdict: Pin, Endpoint: dst.Endpoint}
		}
	case External:
		return refuse(authority, "is outside the cluster: dial it, not the sidecar")
	}
	return refuse(authority, "names no Service and no pod that the control plane knows")
}

// refuse says what is wrong and why :authority had to decide. A long value is
// cut: the text becomes a grpc-message.
func refuse(authority, why string) Route {
	if len(authority) > maxKey {
		authority = authority[:maxKey] + "…"
	}
	return Route{Verdict: Refuse, Reason: fmt.Sprintf(
		"evenkeel: :authority %q %s (the connection came to the sidecar directly, so there is no original destination)", authority, why)}
}
