// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command redirect attaches the redirect to a pod's cgroup: the init step of every injected pod.
//
//	redirect init    find this pod's cgroup, attach, prove that it is effective, exit
//	redirect status  what is attached, and what it has counted
//	redirect detach  take it off a cgroup again
//
// init runs as uid 0 with no other capabilities than CAP_BPF and CAP_NET_ADMIN, a read-only root
// file system and a read-only hostPath of the node's cgroup file system. It may run again at any
// time. Its exit status is 0 only when every program runs for processes of this pod; else the
// last line on standard error says what to do, and nothing that it did is left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"evenkeel.dev/cmd/internal/run"
)

func main() { run.Main(command) }

const usage = `redirect attaches Evenkeel's redirect to the cgroup of a pod.

Usage:
  redirect init --cgroup-root=DIR --pod-uid=UID [--outbound-ports=50051,…] [--listener-port=15951]
  redirect status [--cgroup=DIR] [-o json]
  redirect detach --cgroup=DIR
  redirect version

"redirect COMMAND --help" tells the flags.
`

// errUsage is for a command line that was wrong and is explained already.
var errUsage = errors.New("wrong command line")

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return run.Misused
	}
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{
		"init": initPod, "status": status, "detach": detach,
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return run.OK
	case "version", "--version":
		fmt.Fprintln(stdout, run.VersionLine("redirect"))
		return run.OK
	}
	f, ok := commands[name]
	if !ok {
		fmt.Fprintf(stderr, "redirect: unknown command %q\n\n%s", name, usage)
		return run.Misused
	}
	switch err := f(ctx, args[1:], stdout, stderr); {
	case err == nil:
		return run.OK
	case errors.Is(err, flag.ErrHelp):
		return run.OK
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "redirect %s: %v\n", name, err)
		return run.Misused
	default:
		fmt.Fprintf(stderr, "redirect %s: %v\n", name, err)
		return run.Failed
	}
}
