// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"evenkeel.dev/cmd/internal/run"
)

const usage = `Evenkeel's sidecar: balances each RPC of the pod's app over the servers.

Usage:
  sidecar run [flags]     serve; PID 1 of the container (see sidecar run --help)
  sidecar wait [flags]    return once the app may start (see sidecar wait --help)
  sidecar version         print the version
`

// Main is the sidecar. It returns an exit status.
//
// ctx must not end with SIGTERM: `run` handles signals itself, because the
// sidecar outlives the app. When ctx ends, it stops at once.
//
// args must be the end of os.Args: the supervisor starts the worker as this
// same program, with whatever comes before args kept in front.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return run.Misused
	}
	switch command, rest := args[0], args[1:]; command {
	case "run":
		return runMain(ctx, rest, stdout, stderr)
	case "worker":
		return workerMain(ctx, rest, stderr)
	case "wait":
		return waitMain(ctx, rest, stdout, stderr)
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, run.VersionLine("evenkeel-sidecar"))
		return run.OK
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usage)
		return run.OK
	default:
		fmt.Fprintf(stderr, "sidecar: unknown command %q\n\n%s", command, usage)
		return run.Misused
	}
}

func runMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseRun(args, os.Getenv)
	if status, done := usageError(err, "run", newRunFlags(&Config{}), stdout, stderr); done {
		return status
	}
	log := cfg.Log.New(stderr).With("part", "supervisor")
	program, err := program(append([]string{"run"}, args...))
	if err != nil {
		log.Error("the worker cannot be started", "error", err)
		return run.Failed
	}
	s := &supervisor{log: log, cfg: cfg, program: program, args: args, stdout: stdout, stderr: stderr}
	if err := s.run(ctx); err != nil {
		log.Error("the sidecar ends", "error", err)
		return run.Failed
	}
	return run.OK
}

// program is how this program was started, without args: for the worker.
func program(args []string) ([]string, error) {
	front := len(os.Args) - len(args)
	if front < 1 || !slices.Equal(os.Args[front:], args) {
		return nil, fmt.Errorf("the arguments %q are not the end of the process's own", args)
	}
	// Not os.Executable: the file may have been replaced (an upgrade in place),
	// and the worker must speak the supervisor's language.
	return append([]string{"/proc/self/exe"}, os.Args[1:front]...), nil
}

// usageError deals with a command line that does not parse; done says that it
// was one.
func usageError(err error, command string, fs *flag.FlagSet, stdout, stderr io.Writer) (status int, done bool) {
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "Usage: sidecar %s [flags]\n\n", command)
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return run.OK, true
	default:
		fmt.Fprintf(stderr, "sidecar %s: %s\nSee sidecar %s --help.\n", command, err, command)
		return run.Misused, true
	}
}
