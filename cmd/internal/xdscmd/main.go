// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds/watch"
)

const usage = `Evenkeel's control plane: streams services and endpoints to the sidecars.

Usage:
  xds run [flags]     watch and serve (see xds run --help)
  xds version         print the version
`

// Main is the control plane. It returns an exit status, once ctx has ended or
// something failed.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return run.Misused
	}
	switch args[0] {
	case "run":
		return runMain(ctx, args[1:], stdout, stderr)
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, run.VersionLine("evenkeel-xds"))
		return run.OK
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usage)
		return run.OK
	}
	fmt.Fprintf(stderr, "xds: unknown command %q\n\n%s", args[0], usage)
	return run.Misused
}

func runMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, "Usage: xds run [flags]\n\n")
		fs := newFlags(&Config{})
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return run.OK
	case err != nil:
		fmt.Fprintf(stderr, "xds run: %s\nSee xds run --help.\n", err)
		return run.Misused
	}
	err = serve(ctx, cfg, cfg.Log.New(stderr))
	switch {
	case errors.Is(err, watch.ErrNoCluster):
		fmt.Fprintf(stderr, "xds run: %s; give --kubeconfig=FILE, or --files=DIR with --listen=unix:///PATH to serve YAML files\n", err)
		return run.Failed
	case err != nil:
		fmt.Fprintf(stderr, "xds run: %s\n", err)
		return run.Failed
	}
	return run.OK
}
