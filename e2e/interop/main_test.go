// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/internal/toolcache"
)

// programs are what the tests run.
var programs struct {
	evenkeel string
	goPrograms
	languages map[string]language
}

// insideEnv marks the process that is in the tests' own network namespace.
const insideEnv = "EVENKEEL_INTEROP_INSIDE"

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds, then enters a network namespace of its own: ports are free there, and no name is asked for on a network.
func testMain(m *testing.M) int {
	fail := func(what string, err error) int {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, err)
		return 1
	}
	if os.Geteuid() != 0 {
		return fail("interop", fmt.Errorf("needs root, for evenkeel sandbox's redirect"))
	}
	goInterop, err := buildGo()
	if err != nil {
		return fail("build grpc-go's interop programs", err)
	}
	languages, err := installLanguages()
	if err != nil {
		return fail("install the other languages' gRPC", err)
	}
	if os.Getenv(insideEnv) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fail("make a network namespace", err)
		}
		if err := toolcache.Run(exec.Command("ip", "link", "set", "lo", "up")); err != nil {
			return fail("bring up loopback", err)
		}
		return fail("execute", syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), insideEnv+"=1")))
	}
	dir, err := os.MkdirTemp("", "evenkeel-interop-")
	if err != nil {
		return fail("make a directory", err)
	}
	defer os.RemoveAll(dir)
	programs.goPrograms, programs.languages = goInterop, languages
	if programs.evenkeel, err = buildEvenkeel(dir); err != nil {
		return fail("build evenkeel", err)
	}
	return m.Run()
}
