// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the run when a test has left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	before := descriptors()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "leaked goroutines:", err)
			code = 1
		}
		for fd, target := range descriptors() {
			if _, was := before[fd]; !was && !ofRuntime(target) {
				fmt.Fprintf(os.Stderr, "leaked descriptor %s: %s\n", fd, target)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// ofRuntime tells the descriptors that Go's poller opens at first use and keeps.
func ofRuntime(target string) bool {
	return target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]" || target == "anon_inode:[pidfd]"
}

func descriptors() map[string]string {
	all := map[string]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return all
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			all[e.Name()] = target
		}
	}
	return all
}
