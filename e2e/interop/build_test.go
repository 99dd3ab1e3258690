// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// grpcGo is the version of google.golang.org/grpc whose interop programs are run.
const grpcGo = "v1.85.0"

// buildEvenkeel builds the product into dir.
func buildEvenkeel(dir string) (string, error) {
	bin := filepath.Join(dir, "evenkeel")
	build := exec.Command("go", "build", "-o", bin, "./cmd/evenkeel")
	build.Dir = filepath.Join("..", "..")
	return bin, output(build)
}

// goPrograms are the interop programs of grpc-go.
type goPrograms struct{ client, server string }

// buildGo builds grpc-go's interop programs from its module, unless they are in the cache. They have a module of their own: they
// need packages that Evenkeel must not depend on.
func buildGo() (goPrograms, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return goPrograms{}, err
	}
	dir := filepath.Join(cache, "evenkeel", "interop", "grpc-go-"+grpcGo)
	programs := goPrograms{client: filepath.Join(dir, "client"), server: filepath.Join(dir, "server")}
	if exists(programs.client) && exists(programs.server) {
		return programs, nil
	}
	// Built beside and renamed, so that what is in the cache is whole.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return goPrograms{}, err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return goPrograms{}, err
	}
	defer os.RemoveAll(scratch)
	const module = "module evenkeel.dev/scratch/interop\n\ngo 1.26\n"
	if err := os.WriteFile(filepath.Join(scratch, "go.mod"), []byte(module), 0o644); err != nil {
		return goPrograms{}, err
	}
	const packages = "google.golang.org/grpc/interop/"
	for _, args := range [][]string{
		{"get", packages + "client@" + grpcGo, packages + "server@" + grpcGo},
		{"build", "-o", ".", packages + "client", packages + "server"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = scratch
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
		if err := output(cmd); err != nil {
			return goPrograms{}, err
		}
	}
	os.RemoveAll(dir)
	return programs, os.Rename(scratch, dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// output runs cmd; its output is in the error.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%v in %s: %w\n%s", cmd.Args, cmd.Dir, err, out)
	}
	return err
}
