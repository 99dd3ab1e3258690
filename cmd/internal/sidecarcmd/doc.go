// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package sidecarcmd is the sidecar's program: flags, the supervisor, the
// worker, and `sidecar wait`.
//
// # Tour
//
//		sidecar run ── supervisor (PID 1): holds the listeners, starts, watches, restarts
//		                  │ inherited descriptors, heartbeat pipe
//		                  └── sidecar worker: package sidecar + discovery + admin servers
//		sidecar wait ── asks the worker's debug port until the app may start
//
//	  - main.go: the subcommands. flags.go: every flag, parsed into [Config]
//	    before anything starts.
//	  - supervisor.go: the loop; child.go: one worker process and why it ended;
//	    listen.go, inherit.go: the sockets and how the worker finds them;
//	    memory.go: what the cgroup says about memory.
//	  - worker.go: the assembly; holds.go: the goroutine that owns the machine of
//	    the three holds (package sidecar/hold), and who hears of their ends;
//	    latch.go: what of them outlives a restart; admin.go: the two HTTP servers,
//	    /ready, /wait and /hold; hooks.go: a container's own preStop hook;
//	    redirect.go: the proof and the direct connections; heartbeat.go: the pulse;
//	    stop.go: when the worker may end; wait.go: `sidecar wait`.
//
// # Why a supervisor
//
// A native sidecar whose process ends makes its pod NotReady: the kubelet takes
// the pod, and the server in it, out of every Service until the container runs
// again. So the process that the kubelet watches does next to nothing, and the
// one that parses other people's bytes may die.
//
// # States of the supervisor
//
//	running      a worker runs; it beats, or is replaced
//	restarting   none runs; the next starts at once, or after a pause in a crash loop
//	open         a pause of half a second or more: the outbound listeners are
//	             closed, so that the redirect fails open and the app talks directly
//	ending       SIGTERM was seen: the worker decides when; a crash is still mended
//
// # Failures
//
//	worker exits or is killed       next one at once; cause logged and counted
//	worker hangs (no beat, 2 s)     stack dump (SIGQUIT), then SIGKILL, then as above
//	worker crashes again and again  pauses of 0.1 to 5 s with jitter; fails open; never gives up
//	worker's memory near the limit  replaced before the kernel kills the whole container
//	SIGTERM                         the worker serves until no app connection is left, then 0
//	SIGINT, or the context ends     stop at once, 0
//	supervisor dies                 the worker notices its pipe and ends
//	no IPv6 on the host             the IPv4 listener alone, logged
//	control plane away              ready and drained after 3 s of silence (the drain not before its
//	                                floor); `wait` returns at its timeout, with 0
//	worker crashes while it holds   start, ready: latched, or begun anew; drain: goes on from its begin.
//	                                A preStop call that it held is cut: the kubelet takes it for a failed
//	                                hook and stops that container; cmd/hold asks again
//	no state directory              a restart begins the holds anew
//	stranger calls /hold            403, and nothing happens; without a secret 404
//	own hook of a container fails   500 with what it said; the container is stopped all the same
//
// # Limitations
//
//   - A crash takes the app's open connections with it; clients reconnect to
//     the listener, which never went away.
//   - The supervisor and the worker are one binary: the supervisor's resident
//     memory is mostly the file pages that they share.
package sidecarcmd
