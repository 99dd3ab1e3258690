// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"evenkeel.dev/cmd/internal/sandbox"
)

// insideEnv marks the test binary that runs in a network namespace of its own.
const insideEnv = "EVENKEEL_TEST_NETNS"

// TestMain makes the test binary also the processes of the demo, and runs the tests in a network namespace of their own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case sandbox.JanitorCommand:
			os.Exit(sandbox.JanitorMain(os.Args[2:], os.Stderr))
		case sandbox.EnterCommand:
			os.Exit(sandbox.EnterMain(os.Args[2:], os.Stderr))
		case ClientCommand:
			os.Exit(ClientMain(context.Background(), os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		}
	}
	if os.Geteuid() == 0 && os.Getenv(insideEnv) == "" {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), insideEnv+"=1"))
		}
		fmt.Fprintln(os.Stderr, "enter a network namespace:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
