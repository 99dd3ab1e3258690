// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCgroup2Dirs(t *testing.T) {
	const (
		hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
			"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		pure      = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		container = "30 23 0:26 /kubepods/pod1/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
		spaces    = `30 23 0:26 / /mnt/c\040group rw - cgroup2 cgroup rw` + "\n"
	)
	for _, tc := range []struct {
		name, mounts, own string
		want              []string
		err               string
	}{
		{"hybrid", hybrid, "9:name=systemd:/\n0::/a/b\n", []string{"/sys/fs/cgroup/unified/a/b", "/sys/fs/cgroup/unified"}, ""},
		{"pure v2", pure, "0::/user.slice/x.scope\n", []string{"/sys/fs/cgroup/user.slice/x.scope", "/sys/fs/cgroup"}, ""},
		{"mount of a part, path of the whole", container, "0::/kubepods/pod1/c1/own\n", []string{"/sys/fs/cgroup/own", "/sys/fs/cgroup"}, ""},
		{"mount of a part, namespaced path", container, "0::/\n", []string{"/sys/fs/cgroup"}, ""},
		{"escaped mount point", spaces, "0::/\n", []string{"/mnt/c group", "/mnt/c group"}, ""},
		{"outside the mount", container, "0::/other\n", []string{"/sys/fs/cgroup"}, ""},
		{"only v1", "40 31 0:37 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n0::/\n", nil, "no cgroup2 hierarchy is mounted"},
		{"no line of v2", hybrid, "1:cpu:/\n", nil, "no line 0::"},
		{"garbage", "x\n - \n" + pure, "0::/\n", []string{"/sys/fs/cgroup", "/sys/fs/cgroup"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := cgroup2Dirs(strings.NewReader(tc.mounts), strings.NewReader(tc.own))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || !errors.Is(err, errNoCgroup2) {
					t.Fatalf("error = %v, want errNoCgroup2 with %q", err, tc.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestRemoveCgroupTakesAllBelow(t *testing.T) {
	needRoot(t)
	parent, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "evenkeel-test-"+randomName())
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := killCgroup(t.Context(), dir); err != nil {
		t.Error("kill an empty cgroup:", err)
	}
	for range 2 { // the second time there is nothing to do, and that is no error
		if err := errors.Join(killCgroup(t.Context(), dir), removeCgroup(dir)); err != nil {
			t.Error(err)
		}
	}
	if !missing(dir) {
		t.Errorf("%s still exists", dir)
	}
}

func TestLockCgroup(t *testing.T) {
	needRoot(t)
	parent, err := ownCgroup()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "evenkeel-test-"+randomName())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeCgroup(dir); err != nil {
			t.Error(err)
		}
	})
	first, err := lockCgroup(dir)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := lockCgroup(dir); err == nil {
		second.Close()
		t.Error("locked twice")
	}
	first.Close()
	again, err := lockCgroup(dir)
	if err != nil {
		t.Fatal("the lock outlived its holder:", err)
	}
	again.Close()
}

func TestCleanupBoundsItsWait(t *testing.T) {
	s := newScope(t)
	if _, err := s.StartCommand("app", "", script("sleep 1000")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The wait is over before it began: either the kill was quicker, or the error names the place to look.
	if err := killCgroup(ctx, s.cgroup); err != nil && !strings.Contains(err.Error(), "cgroup.procs") {
		t.Error(err)
	}
}
