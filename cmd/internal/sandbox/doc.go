// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package sandbox runs a command on this machine under the real redirect, sidecar and control plane, without Kubernetes.
//
// # Tour
//
//	evenkeel sandbox ─┬─ janitor                              own cgroup: the caller's
//	                  ├─ control plane (xds --files=DIR)      SCOPE/control-plane
//	                  ├─ sidecar (supervisor, worker)         SCOPE/pod-NAME/sidecar ┐ redirect on
//	                  └─ CMD and all that it starts           SCOPE/pod-NAME/app     ┘ SCOPE/pod-NAME
//
// The arrow is parentage; SCOPE is one cgroup2 directory below the caller's. Every process is this same binary under a hidden
// command. [Run] is the assembly: manifests → scope → control plane → pod (cgroup, redirect, sidecar) → CMD → report → nothing.
// [Scope] and [Pod] are also what `evenkeel demo` is made of.
//
//   - scope.go, janitor.go, cgroup.go: what exists while a run lasts, and its end.
//   - process.go, launcher.go: how processes are started so that they cannot outlive the sandbox.
//   - controlplane.go, pod.go, redirect.go: Evenkeel's parts.
//   - command.go, enter.go: CMD: terminal, signals, exit status, mount namespace.
//   - hosts.go: the Services' DNS names for CMD.
//   - report.go, tally.go: what the sidecar saw.
//
// # Ends
//
// There is one way to the end. The janitor holds the read end of a pipe whose write end only the sandbox has; at end of file it kills
// the scope's cgroup, removes it (the redirect's programs go with it) and removes the private directory. The sandbox that
// is done closes the pipe and waits for the janitor; the sandbox that is killed closes it too.
//
//	CMD ends                        the rest of its processes are killed; its status is returned
//	Ctrl-C, SIGQUIT at a terminal   CMD gets it from the terminal and decides
//	HUP INT QUIT TERM USR1 USR2     sent to the sandbox alone: passed on to CMD, which decides
//	the same before CMD runs        the start is abandoned, status 128 + signal
//	SIGKILL of the sandbox          CMD, sidecar and control plane die with it (PR_SET_PDEATHSIG), the janitor does the rest
//	SIGKILL of the janitor as well  the next run removes the directories, which it knows by name and by their free lock
//	control plane or sidecar ends   told on stderr; CMD goes on as an application in a cluster would
//
// # Limitations
//
//   - The network namespace is the machine's: CMD and other programs share ports.
//   - An ExternalName Service cannot be told in a hosts file; its name is left to the machine's resolver.
//   - A resolver that never reads /etc/hosts (a DNS client of its own) does not see the names.
//   - Without the right to make cgroups (--redirect=none as a user), processes which CMD leaves behind are found by parentage, and
//     SIGKILL of the sandbox does not reach CMD's own children.
package sandbox
