// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"evenkeel.dev/cmd/internal/demo"
)

const demoLong = `Play two real incidents, without and with Evenkeel. Eight client pods start while two of six servers are ready; then the other
four become ready. Each client is an ordinary grpc-go client with one channel (pick_first, nothing configured). Without Evenkeel it
stays with the server that kube-proxy gave to its connection; with Evenkeel each RPC is balanced. Then a rolling restart replaces all
servers, which exit at once on SIGTERM. Without Evenkeel the RPCs on them are lost; with it SIGTERM waits until nobody uses them.

Everything runs on this machine, in a network namespace of its own, through the real redirect, sidecar and control plane.
It takes about 40 seconds and needs root. What the kubelet does is played.`

const demoStatuses = `
Exit status:
  0  the run with Evenkeel met the bar: spread at most 5 %, fair share of every late server within 1 s, no failed RPC
  1  it did not, or the demo could not run
  2  wrong arguments
`

func newDemo() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what Evenkeel is for: two incidents, without and with it",
		Long:  demoLong,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := demoFormat(output); err != nil {
				return &exitError{status: statusUsage, err: err}
			}
			if os.Geteuid() != 0 {
				return &exitError{status: statusFailed, err: errors.New("demo: the eBPF redirect needs root: use sudo")}
			}
			err := demo.Enter([]string{"--output=" + output})
			return &exitError{status: statusFailed, err: fmt.Errorf("demo: %w", err)}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format of the result on stdout: text or json")
	cmd.SetUsageTemplate(cmd.UsageTemplate() + demoStatuses)
	return cmd
}

// newDemoInside is the same command inside its network namespace.
func newDemoInside() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:    demo.InsideCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), output)
		},
	}
	cmd.Flags().StringVar(&output, "output", "text", "")
	return cmd
}

func demoFormat(output string) (demo.Format, error) {
	switch output {
	case "text":
		return demo.Text, nil
	case "json":
		return demo.JSON, nil
	}
	return 0, fmt.Errorf("demo: -o: %q is neither text nor json", output)
}

func runDemo(ctx context.Context, output string) error {
	format, err := demoFormat(output)
	if err != nil {
		return &exitError{status: statusUsage, err: err}
	}
	ctx, stop, status := interruptible(ctx)
	defer stop()
	log, err := openLog(false)
	if err != nil {
		return &exitError{status: statusFailed, err: err}
	}
	d := demo.Demo{
		Plan:   demo.DefaultPlan(),
		Format: format,
		Colour: colour(os.Stdout),
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Logger: log.logger(),
		Log:    log.file,
	}
	err = d.Run(ctx)
	switch {
	case err == nil:
		log.close()
		return nil
	case ctx.Err() != nil:
		log.close()
		return &exitError{status: status()}
	case errors.Is(err, demo.ErrBar) && format == demo.Text:
		// The table has said why.
		log.close()
		return &exitError{status: statusFailed, err: demo.ErrBar}
	}
	return &exitError{status: statusFailed, err: fmt.Errorf("demo: %w%s", err, log.keep())}
}

// interruptible returns a context that the usual signals end, and the exit status that the signal asks for.
func interruptible(ctx context.Context) (context.Context, func(), func() int) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	status := make(chan int, 1)
	go func() {
		select {
		case sig := <-signals:
			status <- 128 + int(sig.(syscall.Signal))
			cancel()
		case <-ctx.Done():
		}
	}()
	stop := func() {
		signal.Stop(signals)
		cancel()
	}
	return ctx, stop, func() int { return <-status }
}

// colour honours https://no-color.org: "should check for a NO_COLOR environment variable that, when present and not an empty string
// (regardless of its value), prevents the addition of ANSI color".
func colour(stdout io.Writer) demo.Colour {
	f, ok := stdout.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return demo.Plain
	}
	return demo.ANSI
}
