// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func hierarchies(t *testing.T) []Hierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: cgroups")
	}
	hs, err := Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	return hs
}

func TestHierarchies(t *testing.T) {
	hs := hierarchies(t)
	unified, err := Unified(hs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(unified.Mount, "cgroup.procs")); err != nil {
		t.Error(err)
	}
	for _, h := range hs {
		if h.V2 == (len(h.Controllers) > 0) {
			t.Errorf("%+v: v2 and controllers", h)
		}
	}
}

func TestCreateJoinAndRemove(t *testing.T) {
	hs := hierarchies(t)
	top := "evenkeel-cgroup-test-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		if err := Remove(hs, top, 5*time.Second); err != nil {
			t.Error(err)
		}
	})
	if err := Create(hs, top+"/a"); err != nil {
		t.Fatal(err)
	}
	if err := Create(hs, top+"/a"); err != nil {
		t.Errorf("a second time: %v", err)
	}
	for _, h := range hs {
		dir := filepath.Join(h.Mount, top, "a")
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
		if slices.Contains(h.Controllers, "cpuset") {
			if b, err := os.ReadFile(filepath.Join(dir, "cpuset.cpus")); err != nil || strings.TrimSpace(string(b)) == "" {
				t.Errorf("a new cpuset has no CPUs (%q, %v): no process could join it", b, err)
			}
		}
	}
	unified, err := Unified(hs)
	if err != nil {
		t.Fatal(err)
	}
	sleep := exec.CommandContext(t.Context(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Join(unified, top+"/a", sleep.Process.Pid); err != nil {
		t.Fatal(err)
	}
	pids, err := Procs(filepath.Join(unified.Mount, top))
	if err != nil || !slices.Equal(pids, []int{sleep.Process.Pid}) {
		t.Errorf("processes: got %v, %v, want %d", pids, err, sleep.Process.Pid)
	}
	if err := Remove(hs, top, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), filepath.Join(unified.Mount, top)) {
		t.Errorf("remove with a process inside: got error %v, want one that names the directory", err)
	}
	if err := sleep.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Wait() // it was killed
	if err := Remove(hs, top, 5*time.Second); err != nil {
		t.Error(err)
	}
	if err := Remove(hs, top, 0); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
	if pids, err := Procs(filepath.Join(unified.Mount, top)); err != nil || len(pids) > 0 {
		t.Errorf("processes of what is not there: %v, %v", pids, err)
	}
}
