// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package loop is the event loop that owns the data plane: descriptors, timers
// and a mailbox, all on one goroutine.
//
//	            ┌─────────────────────────── one turn ───────────────────────────┐
//	  parked ──▶│ now := time.Now()                                              │
//	(netpoller) │ mailbox ─▶ ready descriptors ─▶ expired timers ─▶ dirty list    │──▶ parked
//	            └────────────────────────────────────────────────────────────────┘
//
// Arrows are the order inside the turn. Everything is called on the goroutine
// that called Run, with the one reading of the clock of that turn; so nothing
// that only the loop touches needs a lock. Post is the only method for others.
//
// # Why it waits the way it does
//
// Sockets are non-blocking and sit edge-triggered in an epoll set of the loop's
// own. That set's descriptor is itself registered with Go's netpoller, so an idle
// loop is a parked goroutine and not a thread in a system call: a thread that
// blocks in epoll_wait itself costs a third more CPU per RPC (measured), because
// sysmon keeps taking its P away and handing it back. For the same reason read,
// write and epoll_wait go through RawSyscall: they cannot block, so the scheduler
// need not hear of them.
//
// # Fairness and batching
//
// All that one turn's reads brought is handled before anything is written; each
// object that has output is on the dirty list once and is flushed once, at the
// end. A descriptor reads at most Config.ReadBudget bytes a turn; the rest waits for the next
// turn, which then does not park.
//
// # Conn
//
// Conn joins a socket with a sans-I/O Protocol (sidecar/h2's Session is one).
//
//	open ──Receive fails, or CloseAfterFlush──▶ flushing ──all written──▶ lingering ──▶ closed
//	  └──end of file, error, Close──────────────────────────────────────────────────────▲
//
// # What happens when
//
//	a handler panics            the process dies; its supervisor starts another
//	the kernel takes half       Conn waits for writability, nobody else does
//	the peer resets mid-write   what it sent before is read first (a GOAWAY tells which
//	                            streams it never processed), then the Protocol is told
//	a descriptor number is      events carry a generation; those of the old one are
//	reused within a turn        dropped
//	epoll_wait fails            Run returns the error; there is no sane way to go on
//
// # Limitations
//
// Linux only. One loop is one core. Timers are as fine as the length of a turn.
package loop
