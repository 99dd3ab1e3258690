// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package toolcache keeps what the black-box tests borrow from others (programs, libraries) in the user's cache directory, by
// name and version, so that only the first run needs the package registries.
//
// # Failures
//
//	a registry is away            Install fails with the installer's own output; nothing is left in the cache
//	two runs install at once      one waits for the other
//	a run is killed on the way    the next one starts afresh: a folder in the cache is whole or absent
//
// # Limitations
//
// Nothing is ever removed: old versions stay until somebody deletes the folder.
package toolcache

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Install returns the cache's folder of that name, evenkeel/interop/NAME. When it is not there, fill makes its content in
// a folder beside, which then gets the name; so fill must not write the folder's own path into its files.
func Install(name string, fill func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "evenkeel", "interop")
	dir := filepath.Join(root, name)
	if Exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so unlocks
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if Exists(dir) {
		return dir, nil
	}
	scratch, err := os.MkdirTemp(root, "."+name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil {
		return "", err
	}
	if err := fill(scratch); err != nil {
		return "", fmt.Errorf("install %s: %w", name, err)
	}
	return dir, os.Rename(scratch, dir)
}

// GoPrograms installs the programs of a Go module, built in a module of their own: they need packages that Evenkeel must not
// depend on. Each is named as the last element of its package.
func GoPrograms(name, version string, packages ...string) (string, error) {
	return Install(name+"-"+version, func(dir string) error {
		const module = "module evenkeel.dev/scratch/interop\n\ngo 1.26\n"
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(module), 0o644); err != nil {
			return err
		}
		get, build := []string{"get"}, []string{"build", "-trimpath", "-o", "."}
		for _, p := range packages {
			get, build = append(get, p+"@"+version), append(build, p)
		}
		for _, args := range [][]string{get, build} {
			cmd := exec.Command("go", args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
			if err := Run(cmd); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Need is a command and the Debian package that brings it.
type Need struct{ Command, Package string }

// Require makes sure that the commands exist. As root it installs what is missing from Debian; otherwise the error names it.
func Require(needs ...Need) error {
	var missing []string
	for _, n := range needs {
		if _, err := exec.LookPath(n.Command); err != nil {
			missing = append(missing, n.Package)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	install := "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("commands are missing; as root: %s", install)
	}
	cmd := exec.Command("sh", "-c", "apt-get update -qq && "+install)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if err := Run(cmd); err != nil {
		return err
	}
	for _, n := range needs {
		if _, err := exec.LookPath(n.Command); err != nil {
			return fmt.Errorf("package %s was installed and brought no %s: %w", n.Package, n.Command, err)
		}
	}
	return nil
}

// Exists reports whether there is something at path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Run runs cmd; its output is in the error.
func Run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%v in %q: %w\n%s", cmd.Args, cmd.Dir, err, out)
	}
	return err
}
