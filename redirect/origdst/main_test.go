// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package origdst

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the run when a test has left a goroutine or a socket behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
			code = 1
		}
		for fd := 3; fd < 64; fd++ {
			target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err == nil && len(target) > 7 && target[:7] == "socket:" {
				fmt.Fprintf(os.Stderr, "leaked descriptor %d: %s\n", fd, target)
				code = 1
			}
		}
	}
	os.Exit(code)
}
