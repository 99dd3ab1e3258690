// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience bounds the wait for another attach or detach of the same cgroup, each of which
// takes milliseconds.
const lockPatience = 10 * time.Second

// CgroupID returns the kernel's id of a cgroup2 directory: what bpf_get_current_cgroup_id()
// gives for the processes in it.
func CgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup id: %w", &os.PathError{Op: "stat", Path: dir, Err: err})
	}
	if err := mustBeCgroup2(dir); err != nil {
		return 0, fmt.Errorf("cgroup id: %w", err)
	}
	// kernfs: on 64-bit machines the inode number is the node's id (fs/kernfs, kernfs_ino()).
	return st.Ino, nil
}

func isCgroup2(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

func mustBeCgroup2(dir string) error {
	ok, err := isCgroup2(dir)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%s is not in a cgroup2 file system (on a hybrid host that is mounted at /sys/fs/cgroup/unified)", dir)
	}
	return nil
}

// isMountRoot reports whether dir is the topmost directory of its cgroup2 mount, as far as this
// process can see.
func isMountRoot(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Stat(dir, &here); err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := unix.Stat(filepath.Join(dir, ".."), &above); err != nil {
		return false, &os.PathError{Op: "stat", Path: filepath.Join(dir, ".."), Err: err}
	}
	return here.Dev != above.Dev || here.Ino == above.Ino, nil
}

// cgroup is an open and locked cgroup2 directory.
type cgroup struct {
	path string
	id   uint64
	dir  *os.File
}

// openCgroup opens dir and takes its lock, so that an init step that runs again and an agent,
// or two of either, do not attach at the same time. The lock is on the directory itself: it
// needs no writable place and ends with the process.
func openCgroup(ctx context.Context, path string) (*cgroup, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	// The directories above are found by the path.
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	id, err := CgroupID(path)
	if err != nil {
		return nil, err
	}
	root, err := isMountRoot(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	if root {
		return nil, fmt.Errorf("cgroup %s: refused, this is the root of the hierarchy and stands for the whole node", path)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	cg := &cgroup{path: path, id: id, dir: dir}
	if err := cg.lock(ctx); err != nil {
		dir.Close()
		return nil, err
	}
	return cg, nil
}

func (cg *cgroup) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(cg.fd(), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cgroup: %w", &os.PathError{Op: "flock", Path: cg.path, Err: err})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cgroup %s: another process has been attaching to it or detaching from it all the time: %w", cg.path, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (cg *cgroup) fd() int { return int(cg.dir.Fd()) }

// Close gives the lock back.
func (cg *cgroup) Close() { cg.dir.Close() }

// ancestors returns the directories above cg, nearest first, up to the top of the mount.
func (cg *cgroup) ancestors() ([]string, error) {
	var dirs []string
	for dir := cg.path; ; {
		root, err := isMountRoot(dir)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		if root {
			return dirs, nil
		}
		dir = filepath.Dir(dir)
		dirs = append(dirs, dir)
	}
}
