// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package router

import (
	"fmt"
	"net/netip"
	"sync/atomic"
)

// Key is what the control plane is asked about. Exactly one field is set.
type Key struct {
	// Addr is an address that was dialled, unmapped and without zone.
	Addr netip.AddrPort
	// Name is "host:port" as in :authority: lower case, no trailing dot.
	Name string
}

// String is the form of the key in logs and errors.
func (k Key) String() string {
	if k.Name != "" {
		return k.Name
	}
	return k.Addr.String()
}

// Kind says what the control plane knows about a [Key].
type Kind uint8

// The kinds of destination. The zero value is the honest one.
const (
	Unknown  Kind = iota // the control plane answered: not known
	Service              // a port of a Service
	Pod                  // one pod
	External             // outside the cluster (ExternalName)
)

func (k Kind) String() string {
	switch k {
	case Unknown:
		return "unknown"
	case Service:
		return "service"
	case Pod:
		return "pod"
	case External:
		return "external"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Destination is the control plane's word about one [Key].
type Destination struct {
	Kind Kind
	// Service is "namespace/name:port", the key of the balancer. Set with Kind Service.
	Service string
	// Headless says that the Service has no ClusterIP: its name resolves to pods.
	Headless bool
	// Endpoint is the pod's current address. Set with Kind Pod.
	Endpoint netip.AddrPort
	// Usage, when set, is marked by each Route that the destination decides. It
	// outlives the tables that refer to it, so that discovery can tell what
	// nobody uses any more.
	Usage *Usage
}

// Usage remembers whether a destination was used. Safe for concurrent use.
type Usage struct{ used atomic.Bool }

// mark reads before it writes: the cache line stays shared in steady state.
func (u *Usage) mark() {
	if u != nil && !u.used.Load() {
		u.used.Store(true)
	}
}

// Take reports whether the destination was used since the last Take.
func (u *Usage) Take() bool { return u.used.Swap(false) }

// Verdict is what to do with a stream.
type Verdict uint8

// The verdicts. The zero value refuses: a forgotten case must not be relayed
// to a zero address.
const (
	Refuse  Verdict = iota // Reason says why; only without an original destination
	Balance                // over the endpoints of Service
	Pin                    // to Endpoint, one known pod
	Relay                  // HTTP/2 to Endpoint, where the app meant
	Ask                    // the control plane about Missing, and route again
)

func (v Verdict) String() string {
	switch v {
	case Refuse:
		return "refuse"
	case Balance:
		return "balance"
	case Pin:
		return "pin"
	case Relay:
		return "relay"
	case Ask:
		return "ask"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Route is the answer for one stream.
type Route struct {
	Verdict  Verdict
	Service  string         // with Balance
	Endpoint netip.AddrPort // with Pin and Relay
	Reason   string         // with Refuse

	// Missing[:N] are the keys that the control plane has not answered for.
	// With Ask the stream waits for them: at most 1 s, then it is relayed to the
	// original destination, or fails where there is none. With Balance and Pin
	// they may be set too: worth asking, not worth waiting.
	Missing [2]Key
	N       int
}

func (r *Route) missing(k Key) {
	r.Missing[r.N] = k
	r.N++
}
