// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errNoCgroup2 is returned where no cgroup2 hierarchy is mounted.
var errNoCgroup2 = errors.New("no cgroup2 hierarchy is mounted (looked in /proc/self/mountinfo): " +
	"mount one with: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified")

// ownCgroup returns the cgroup2 directory of the calling process, on a pure v2 host as on a hybrid one
// (where the v2 tree is usually /sys/fs/cgroup/unified). The sandbox puts its own cgroup below it, so that whatever limits and
// kills the caller limits and kills the sandbox too.
func ownCgroup() (string, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	own, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	defer own.Close()
	dirs, err := cgroup2Dirs(mounts, own)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		// A mount of a part of the tree (in a container) may not reach the process's own cgroup: the next candidate does.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("none of the cgroup2 directories that belong to this process is accessible: %s", strings.Join(dirs, ", "))
}

// cgroup2Dirs lists where the process's cgroup2 directory may be, best first, from /proc/self/mountinfo and /proc/self/cgroup.
func cgroup2Dirs(mountinfo, cgroup io.Reader) ([]string, error) {
	path, err := cgroup2Path(cgroup)
	if err != nil {
		return nil, err
	}
	var exact, roots []string
	for lines := bufio.NewScanner(mountinfo); lines.Scan(); {
		// proc_pid_mountinfo(5): "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue":
		// (4) root, (5) mount point, then optional fields up to a hyphen, then the filesystem type.
		before, after, ok := strings.Cut(lines.Text(), " - ")
		head := strings.Fields(before)
		if !ok || len(head) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root, point := unescapeMount(head[3]), unescapeMount(head[4])
		if rel, err := filepath.Rel(root, path); err == nil && !strings.HasPrefix(rel, "..") {
			exact = append(exact, filepath.Join(point, rel))
		}
		roots = append(roots, point)
	}
	if len(roots) == 0 {
		return nil, errNoCgroup2
	}
	// The mount's root comes last: right where the cgroup namespace hides the path, and harmless elsewhere.
	return append(exact, roots...), nil
}

// cgroup2Path finds the line of the unified hierarchy in /proc/self/cgroup: "0::/path" (cgroups(7)).
func cgroup2Path(cgroup io.Reader) (string, error) {
	for lines := bufio.NewScanner(cgroup); lines.Scan(); {
		if path, ok := strings.CutPrefix(lines.Text(), "0::"); ok {
			return strings.TrimSuffix(path, " (deleted)"), nil
		}
	}
	return "", fmt.Errorf("this process is in no cgroup2 hierarchy (no line 0:: in /proc/self/cgroup): %w", errNoCgroup2)
}

// unescapeMount undoes the octal escapes of space, tab, newline and backslash in mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// killCgroup ends every process in dir and below and waits until none is left.
//
// cgroup.kill (Linux 5.14, below our floor of 5.15) is the one way that cannot miss a process which forks meanwhile:
// "the kernel will kill all processes in the cgroup and its descendants by sending SIGKILL ... is protected against migrations",
// https://docs.kernel.org/admin-guide/cgroup-v2.html.
func killCgroup(ctx context.Context, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o200); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if _, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
				return nil // already removed: nothing is in it
			}
			return fmt.Errorf("%s has no cgroup.kill: Linux 5.14 or newer is needed", dir)
		}
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		empty, err := cgroupEmpty(dir)
		if err != nil || empty {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("processes in %s did not end after SIGKILL (see %s/cgroup.procs): %w", dir, dir, err)
		}
	}
}

// pause waits for d, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// cgroupEmpty tells whether no live process is in dir or below.
func cgroupEmpty(dir string) (bool, error) {
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return strings.Contains(string(events), "populated 0"), nil
}

// removeCgroup removes dir with the cgroups below it. BPF programs attached to them go with them.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// os.Remove would try unlink(2) first, whose EPERM on a cgroup directory hides rmdir's own error.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("rmdir %s: %w", dir, err)
	}
	return nil
}

// lockCgroup opens dir and takes its lock, the sign that its owner is alive. The lock belongs to the open file
// description: whoever inherits the descriptor (the janitor) keeps it up, and the kernel drops it when the last holder is gone,
// however it went. It works across PID namespaces, where a pid in the name would not.
func lockCgroup(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// A sweeper may have removed the directory between its making and the lock.
	if !sameFile(f, dir) {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, fs.ErrNotExist)
	}
	return f, nil
}

func sameFile(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
