// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command injector is the mutating webhook which gives labelled pods a sidecar,
// and the keeper of Evenkeel's certificates.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"evenkeel.dev/cmd/internal/run"
)

func main() { run.Main(Main) }

const usage = `Usage:
  injector run --namespace=NAMESPACE [--config=FILE] [flags]
  injector version

Flags of run:
`

// Main is the command.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	help := func(w io.Writer) {
		fmt.Fprint(w, usage)
		fs := newFlags(&Config{})
		fs.SetOutput(w)
		fs.PrintDefaults()
	}
	if len(args) == 0 {
		help(stderr)
		return run.Misused
	}
	switch args[0] {
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, run.VersionLine("injector"))
		return run.OK
	case "help", "--help", "-help", "-h":
		help(stdout)
		return run.OK
	case "run":
	default:
		fmt.Fprintf(stderr, "injector: unknown command %q (run, version)\n", args[0])
		return run.Misused
	}
	cfg, inject, err := parseFlags(args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(stdout)
		return run.OK
	case err != nil:
		// Every mistake on a line of its own, all at once.
		fmt.Fprintf(stderr, "injector: %s\n", strings.ReplaceAll(err.Error(), "\n", "\ninjector: "))
		return run.Misused
	}
	log := cfg.Log.New(stderr)
	if err := serve(ctx, cfg, inject, log); err != nil {
		log.Error("injector ends", "error", err)
		return run.Failed
	}
	log.Info("injector ends")
	return run.OK
}
