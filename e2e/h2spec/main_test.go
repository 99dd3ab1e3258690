// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2spec

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"evenkeel.dev/e2e/internal/toolcache"
)

// version is the newest that the Go module proxy serves.
const version = "v2.2.1+incompatible"

// programs are what the tests run, by name.
var programs struct{ xds, sidecar, h2spec, h2specd string }

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if addr := os.Getenv(clientEnv); addr != "" {
		return clientMain(addr, os.Args[len(os.Args)-1])
	}
	const module = "github.com/summerwind/h2spec/cmd/"
	judge, err := toolcache.GoPrograms("h2spec", version, module+"h2spec", module+"h2specd")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	programs.h2spec, programs.h2specd = filepath.Join(judge, "h2spec"), filepath.Join(judge, "h2specd")
	dir, err := os.MkdirTemp("", "evenkeel-h2spec-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir, "./cmd/sidecar", "./cmd/xds")
	build.Dir = filepath.Join("..", "..")
	if err := toolcache.Run(build); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	programs.sidecar, programs.xds = filepath.Join(dir, "sidecar"), filepath.Join(dir, "xds")
	return m.Run()
}
