// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPrivate gives the node the standard paths with contents of its own: the
// daemons use their defaults, and nothing appears on the machine.
func mountPrivate(s *Spec) error {
	// First cut ourselves off from the machine's mounts; then share again
	// inside, because the kubelet and mount propagation of volumes need it.
	for _, flags := range []uintptr{unix.MS_REC | unix.MS_PRIVATE, unix.MS_REC | unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", flags, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
	}
	// A /proc of the new PID namespace.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// /run is empty at boot; /var/lib and /var/log survive one.
	if err := os.RemoveAll(s.path("run")); err != nil {
		return err
	}
	for dir, target := range map[string]string{"run": "/run", "varlog": "/var/log", "lib": "/var/lib"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			return err
		}
		if err := bind(s.path(dir), target); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return maskSysctls(s.path("mask"))
}

// kubeletSysctls are what the kubelet wants to see. They are the machine's, not
// the namespace's.
var kubeletSysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// maskSysctls puts files with the wanted values in the place of machine-wide
// sysctls: the kubelet finds them right and leaves the machine alone.
func maskSysctls(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, value := range kubeletSysctls {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(file, "/proc/sys/"+name); err != nil {
			return err
		}
	}
	return nil
}

func bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "bind mount " + source + " at", Path: target, Err: err}
	}
	return nil
}
