// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package redirect turns connect(service:50051) into connect(sidecar) for one cgroup and all below
// it, which in a cluster is a pod: every container, init containers and exec'd processes included.
//
//	app                      kernel, on the pod's cgroup                    sidecar
//	 │ connect(10.96.3.4:50051)                                                │
//	 ├────────────▶ connect4/6    listener there? ──no──▶ as without a mesh,   │
//	 │                │ yes                                counted as direct   │
//	 │                ├ socket storage: original = 10.96.3.4:50051             │
//	 │                └ rewritten to 127.0.0.1:15951 ────────────SYN──────────▶│ listen
//	 │              sockops       client established:                          │
//	 │                            pending[source] = original                   │
//	 │              sockops       listener's end established:                  │
//	 │                            pending[source] → accepted socket's storage ▶│ accept
//	 │              getsockopt    original ◀───────────────────────────────────┤ origdst.Lookup
//	 │ getpeername                                                             │
//	 ├────────────▶ getpeername4/6  original, not the listener                 │
//	                post_bind4/6  who binds the listener is the sidecar ◀──────┤ bind
//
// An arrow is a system call or a packet; every box is an eBPF program in bpf/. [Attach] puts them
// on a cgroup, [FindPodCgroup] finds the pod's, [Query] tells what is there. Package origdst asks
// the programs from inside, without privileges and without the eBPF library.
//
// # Whose traffic
//
// TCP to one of the outbound ports; not to loopback, not from a socket bound to a device, not to a
// link-local IPv6 address, and not the sidecar's own: that is, not from the cgroup whose process
// has bound the listener in the same network namespace. IPv4, IPv6 and IPv4-mapped IPv6.
//
// # States, and who owns them
//
//	of a socket        socket storage; made at connect, replaced by the next connect of the socket,
//	                   gone with it. Written by the programs only.
//	of a connection    an entry in the pending map between the two ends' establishment, which on
//	                   loopback are microseconds apart; removed by the second, or at close.
//	of the cgroup      configuration (written by Attach), sidecars by network namespace, counters
//	                   and direct connections (written by the programs). All of it is memory of the
//	                   attached programs and ends with the cgroup: no pin, no file, no daemon.
//	attaching          the lock on the cgroup's directory, for as long as Attach, Detach or Query
//	                   runs. A copy acts only once all its programs are attached.
//
// # Failures
//
//	the sidecar is away, or not yet there     each connect goes direct and is counted while open
//	the sidecar goes between hook and SYN     that connect is refused, as by a restarting server
//	no memory for the socket's storage        that connect goes direct; Status.Lost goes up
//	an app listens on the listener's port     not on loopback: not taken for the sidecar; on
//	                                          loopback: its pod's connects go to it, as it asked for
//	attach interrupted                        its programs never act; the next attach adds its own,
//	                                          and removes them where it may (CAP_SYS_ADMIN)
//	attach twice, or two at once              one copy; connections and counters live on
//	other build attached                      replaced hook by hook, maps and so connections kept
//	                                          if both have one ABI; without CAP_SYS_ADMIN the old
//	                                          copy stays, or ErrOtherSettings
//	exclusive program above the pod           ConflictError naming it, nothing changed
//	ALLOW_OVERRIDE program above the pod      the same, for it would stop running for the pod
//	kernel too old                            FeatureError naming the feature and its release
//	capability missing                        ErrPermission naming it
//	a program detached by someone             origdst.Verify names it; Attach brings it back
//	control plane, agent, init step gone      nothing: the programs need nobody
//
// # Limitations
//
//   - The app's getsockname tells a loopback address as its own; so does getpeername of an MPTCP
//     socket as its peer's, since the kernel asks us about the MPTCP socket and not the subflow.
//   - The sidecar must listen with plain TCP on 127.0.0.1 and ::1; see package origdst.
//   - A direct connection that its app closed counts as open until its server closes too, or the
//     kernel gives the connection up (net.ipv4.tcp_fin_timeout, a minute).
//   - Connections that were open before the first attach are not known and not counted.
//   - After a pod's network namespace was made anew (its pause container died), connections before
//     the sidecar's bind in the new one go direct and are not counted.
//   - Programs of others on the same cgroup that were attached earlier run first; one that rewrites
//     the Service's address itself hides it from us. Those of ancestors run after us: a node-wide
//     socket load balancer is no obstacle.
//   - Only destinations beyond 511 are counted together. At most 64 outbound ports.
package redirect
