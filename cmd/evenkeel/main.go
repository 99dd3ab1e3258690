// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command evenkeel is the user's tool: it runs any command under Evenkeel on one machine (sandbox), shows what Evenkeel
// is for (demo), and looks at rollouts in a cluster (rollout status).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"evenkeel.dev/cmd/internal/run"
)

func main() {
	if status, ok := internal(os.Args); ok {
		os.Exit(status)
	}
	os.Exit(execute(context.Background(), os.Args[1:]))
}

// Exit statuses of commands that do not have their own.
const (
	statusFailed = 1
	statusUsage  = 2
)

// exitError ends the program with a status. Without an error in it, everything has been said.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func execute(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		// What cobra finds itself: an unknown command, missing or wrong arguments.
		exit = &exitError{status: statusUsage, err: fmt.Errorf("%w (see %s --help)", err, command.CommandPath())}
	}
	if exit.err != nil {
		fmt.Fprintf(os.Stderr, "evenkeel: %s\n", exit.err)
	}
	return exit.status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "evenkeel",
		Short: "gRPC that stays balanced, with no change to the application",
		Long: `Evenkeel balances every gRPC call of an application over the pods of a Service,
with no change to the application.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(newSandbox(), newDemo(), newDemoInside(), newRollout(), newVersion())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), run.VersionLine("evenkeel"))
			return err
		},
	}
}
