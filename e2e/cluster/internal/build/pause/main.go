// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command pause is the only process of a pod's sandbox container: it holds the
// pod's namespaces open, reaps as PID 1, and exits at SIGTERM.
//
// It is built in a module of its own (see e2e/cluster/internal/build), so it
// uses the standard library only.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		// One SIGCHLD may stand for several children: signals do not queue.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	os.Exit(0)
}
