// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"evenkeel.dev/cmd/internal/rollout"
)

const rolloutLong = `Show where each pod of a workload stands: which of its clients have connected to it while it becomes ready, which have let go
of it while it drains, who is missing, how long each hold took, and how many RPCs were replayed or failed because of it.

The control plane is asked through the API server, which needs the permission to get pods/proxy in Evenkeel's namespace.`

const rolloutExample = `  evenkeel rollout status deploy/pricing -n shop
  evenkeel rollout status deploy/pricing -n shop --watch
  evenkeel rollout status sts/catalog -n shop -o json`

// rolloutFlags are the flags as given.
type rolloutFlags struct {
	cluster rollout.Config
	output  string
	watch   bool
}

func newRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Look at rollouts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	cmd.AddCommand(newRolloutStatus())
	return cmd
}

func newRolloutStatus() *cobra.Command {
	var f rolloutFlags
	cmd := &cobra.Command{
		Use:     "status KIND/NAME",
		Short:   "Show which clients each pod of a workload waits for",
		Long:    rolloutLong,
		Example: rolloutExample,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rolloutStatus(cmd.Context(), &f, args, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.cluster.Namespace, "namespace", "n", "", "namespace of the workload (default: the context's)")
	flags.StringVar(&f.cluster.SystemNamespace, "system-namespace", "evenkeel-system", "namespace that Evenkeel is installed in")
	flags.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG or ~/.kube/config)")
	flags.StringVar(&f.cluster.Context, "context", "", "kubeconfig context")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.BoolVarP(&f.watch, "watch", "w", false, "go on until the rollout is complete")
	return cmd
}

func rolloutStatus(ctx context.Context, f *rolloutFlags, args []string, out io.Writer) error {
	misused := func(err error) error {
		return &exitError{status: statusUsage, err: fmt.Errorf("rollout status: %w (see evenkeel rollout status --help)", err)}
	}
	w, err := rollout.ParseWorkload(args...)
	if err != nil {
		return misused(err)
	}
	if f.output != "text" && f.output != "json" {
		return misused(fmt.Errorf("-o: %q is neither text nor json", f.output))
	}
	if f.watch && f.output == "json" {
		return misused(errors.New("--watch writes tables: not together with -o json"))
	}
	ctx, stop, status := interruptible(ctx)
	defer stop()
	failed := func(err error) error {
		if ctx.Err() != nil {
			return &exitError{status: status()}
		}
		return &exitError{status: statusFailed, err: fmt.Errorf("rollout status: %w", err)}
	}
	cluster, err := rollout.Connect(f.cluster)
	if err != nil {
		return failed(err)
	}
	if f.watch {
		screen := rollout.Lines
		if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			screen = rollout.Terminal
		}
		if err := cluster.Follow(ctx, w, out, screen); err != nil {
			return failed(err)
		}
		return nil
	}
	s, err := cluster.Status(ctx, w)
	if err != nil {
		return failed(err)
	}
	if err := writeStatus(out, f.output, s); err != nil {
		return failed(err)
	}
	return nil
}

func writeStatus(out io.Writer, format string, s *rollout.Status) error {
	if format == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	return s.WriteTable(out, time.Now())
}
