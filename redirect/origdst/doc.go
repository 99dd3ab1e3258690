// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package origdst asks the redirect, through a socket, what it knows: where the app at the other
// end of an accepted connection meant to connect to, whether the redirect is effective in this
// pod at all, and how many connections passed the sidecar by.
//
// Everything is a getsockopt on a level of Evenkeel's own, answered by the eBPF program that
// package redirect attaches to the pod's cgroup. So it needs no privileges, no file and no
// eBPF library, only a socket that was created inside the pod.
//
//	Lookup  accepted socket → original destination      per connection, no allocation
//	Proof   any socket      → configuration, counters   at start, and in `check`
//	Verify  its own sockets → every program really runs at start, and in `check`
//	Directs any socket      → direct connections        at each scrape
//
// # Failures
//
//	no redirect in this pod                  Lookup: ErrNone, the others: ErrNotEffective
//	someone dialled the listener directly    Lookup: ErrNone
//	no memory when the connection was made   Lookup: ErrNone, Info.Lost goes up
//	programs of another Evenkeel version     ErrNotEffective, saying which version answered
//	some programs detached by someone        Verify: ErrNotEffective, naming them
//	not a socket, closed descriptor          the errno, for a bug must not pass as "none"
//
// # Limitations
//
// Linux on a little-endian machine. The listener must be plain TCP (in Go:
// [net.ListenConfig.SetMultipathTCP] false), since an MPTCP socket hides the subflow that the
// programs know. TCP Fast Open on the listener is not supported: the accepted side is then
// established before the client's, which hands the destination over.
package origdst
