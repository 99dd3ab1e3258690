// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package run

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit statuses of the daemons.
const (
	OK      = 0
	Failed  = 1
	Misused = 2
)

// Command is a program that can be started more than once in a process.
type Command func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// Main runs c with the process's own arguments and outputs and exits with its
// status. The context ends at the first SIGINT or SIGTERM; a second one kills
// the process, because the handler is gone by then.
func Main(c Command) {
	os.Exit(call(c))
}

func call(c Command) int {
	ctx, stop := Signals(context.Background())
	defer stop()
	return c(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Signals returns a context that ends at the first SIGINT or SIGTERM. From then
// on the signals have their default effect again, so that a shutdown that hangs
// can be cut short.
func Signals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
