// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package cgroup makes, searches and removes the harness's directories in every
// cgroup hierarchy of the machine: the v1 controllers, cgroup2, or both
// ("hybrid": cgroup2 without controllers beside v1).
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	// Mount is the directory at which it is mounted.
	Mount string
	// V2 says that it is the unified hierarchy.
	V2 bool
	// Controllers are the v1 controllers bound to it; empty for V2.
	Controllers []string
}

// Hierarchies lists those that this process sees.
func Hierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroup: list hierarchies: %w", err)
	}
	defer f.Close()
	var hs []Hierarchy
	seen := map[string]bool{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		// proc_pid_mountinfo(5): (5) is the mount point; after the separator
		// "-" come filesystem type, source, super options.
		head, tail, ok := strings.Cut(sc.Text(), " - ")
		if !ok {
			continue
		}
		left, right := strings.Fields(head), strings.Fields(tail)
		if len(left) < 5 || len(right) < 3 || seen[left[4]] {
			continue
		}
		switch right[0] {
		case "cgroup2":
			hs = append(hs, Hierarchy{Mount: left[4], V2: true})
		case "cgroup":
			hs = append(hs, Hierarchy{Mount: left[4], Controllers: strings.Split(right[2], ",")})
		default:
			continue
		}
		seen[left[4]] = true
	}
	if len(hs) == 0 {
		return nil, errors.New("cgroup: no cgroup hierarchy is mounted: mount cgroup2 at /sys/fs/cgroup")
	}
	return hs, nil
}

// Unified returns the cgroup2 hierarchy.
func Unified(hs []Hierarchy) (Hierarchy, error) {
	for _, h := range hs {
		if h.V2 {
			return h, nil
		}
	}
	return Hierarchy{}, errors.New("cgroup: no cgroup2 hierarchy is mounted, which the cluster's processes are tracked by: mount -t cgroup2 none /sys/fs/cgroup/unified")
}

// Create makes the directory rel, and its parents, in every hierarchy. The first
// of them gets most of the CPU when there is too little: all that a cluster runs
// would else weigh no more than one of the machine's busy processes, and every
// time limit in it would be a matter of luck.
func Create(hs []Hierarchy, rel string) error {
	for _, h := range hs {
		dir := h.Mount
		for part := range strings.SplitSeq(rel, "/") {
			if h.V2 && len(hs) == 1 {
				if err := delegate(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cgroup: create: %w", err)
			}
			if slices.Contains(h.Controllers, "cpuset") {
				if err := inheritCPUs(parent, dir); err != nil {
					return err
				}
			}
			if parent == h.Mount && slices.Contains(h.Controllers, "cpu") {
				// The default is 1024.
				if err := os.WriteFile(filepath.Join(dir, "cpu.shares"), []byte("65536"), 0o644); err != nil {
					return fmt.Errorf("cgroup: give CPU: %w", err)
				}
			}
		}
	}
	return nil
}

// delegate turns on, for dir's children, each controller that dir has and that
// the kubelet wants. Only on a pure cgroup2 machine: in hybrid mode cgroup2 has
// no controllers.
func delegate(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroup: delegate: %w", err)
	}
	for c := range strings.FieldsSeq(string(has)) {
		switch c {
		case "cpuset", "cpu", "io", "memory", "hugetlb", "pids":
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
				return fmt.Errorf("cgroup: delegate controller %s below %s: %w", c, dir, err)
			}
		}
	}
	return nil
}

// inheritCPUs fills a new v1 cpuset: it starts without CPUs and memory nodes,
// and a process cannot be put into it then.
func inheritCPUs(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return fmt.Errorf("cgroup: inherit %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return fmt.Errorf("cgroup: inherit %s: %w", name, err)
		}
	}
	return nil
}

// Procs lists the processes in dir (an absolute path) and below it, as pids of
// the caller's PID namespace.
func Procs(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed while we walked
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil // removed while we walked (ENOENT or ENODEV), or a threaded cgroup, which nothing here makes
		}
		for f := range strings.FieldsSeq(string(b)) {
			// A process outside the reader's PID namespace reads as 0.
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cgroup: list processes below %s: %w", dir, err)
	}
	return pids, nil
}

// Join moves pid into the directory rel of h.
func Join(h Hierarchy, rel string, pid int) error {
	p := filepath.Join(h.Mount, rel, "cgroup.procs")
	if err := os.WriteFile(p, []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("cgroup: move process %d: %w", pid, err)
	}
	return nil
}

// Remove deletes the directory rel and all below it in every hierarchy. The
// kernel refuses while a process is in there, also one that is dying, so it
// tries until wait has passed.
func Remove(hs []Hierarchy, rel string, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		var left []string
		for _, h := range hs {
			dir := filepath.Join(h.Mount, rel)
			RemoveEmpty(dir)
			if _, err := os.Stat(dir); err == nil {
				left = append(left, dir)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup: cannot remove %s: a process is still in there", strings.Join(left, ", "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// RemoveEmpty removes the directory dir (an absolute path) and those below it, as
// far as no process is in them. The files in them are the kernel's.
func RemoveEmpty(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			RemoveEmpty(filepath.Join(dir, e.Name()))
		}
	}
	// EBUSY: a process is in there.
	_ = syscall.Rmdir(dir)
}
