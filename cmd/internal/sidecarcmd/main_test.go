// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary the sidecar when it is called as one, so that
// the tests have real processes to start, stop and kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// command is the sidecar as a process. It lives beside TestMain: without that,
// the process would run the tests again, and so on.
func command(args ...string) *exec.Cmd { return exec.Command(os.Args[0], args...) }
