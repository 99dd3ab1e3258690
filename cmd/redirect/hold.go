// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// holdName is the helper that runs a container's own preStop command once the pod
// is drained (cmd/hold). The image has it beside this program.
const holdName = "hold"

// installHold copies the helper into dir, which is a volume that the pod's
// containers mount read-only: they may hold no program that could do its work. The
// step may run again while they run it, so the file is replaced as a whole.
func installHold(from, dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("--install-hold: %w", err)
		}
	}()
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	file, err := os.CreateTemp(dir, holdName+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }() // it has its final name, or failed
	_, err = io.Copy(file, source)
	// Any user of any container executes it, none may change it.
	if err := errors.Join(err, file.Chmod(0o555), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), filepath.Join(dir, holdName))
}

// ownHold is where the helper is in the image.
func ownHold() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("--install-hold: %w", err)
	}
	return filepath.Join(filepath.Dir(exe), holdName), nil
}
