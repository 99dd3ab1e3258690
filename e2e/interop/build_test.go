// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"os/exec"
	"path/filepath"

	"evenkeel.dev/e2e/internal/toolcache"
)

// grpcGo is the version of google.golang.org/grpc whose interop programs are run.
const grpcGo = "v1.85.0"

// buildEvenkeel builds the product into dir.
func buildEvenkeel(dir string) (string, error) {
	bin := filepath.Join(dir, "evenkeel")
	build := exec.Command("go", "build", "-o", bin, "./cmd/evenkeel")
	build.Dir = filepath.Join("..", "..")
	return bin, toolcache.Run(build)
}

// goPrograms are the interop programs of grpc-go.
type goPrograms struct{ client, server string }

// buildGo builds grpc-go's interop programs from its module, unless they are in the cache.
func buildGo() (goPrograms, error) {
	const packages = "google.golang.org/grpc/interop/"
	dir, err := toolcache.GoPrograms("grpc-go", grpcGo, packages+"client", packages+"server")
	return goPrograms{client: filepath.Join(dir, "client"), server: filepath.Join(dir, "server")}, err
}
