// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
)

// initsCgroup is, below the cluster's cgroup, where the harness starts the
// nodes' first processes and the switch: whatever is written down or not, all
// that belongs to a cluster is found in its cgroup.
const initsCgroup = "inits"

// killTimeout bounds the wait for killed processes: the kernel takes down a PID
// namespace, its mounts and its network namespace first.
const killTimeout = 20 * time.Second

// Down ends the cluster and removes all that is left of it: processes,
// namespaces, mounts, cgroups, state. It does not matter what has crashed
// before; without a cluster it does nothing. It fails when a live process holds
// the cluster.
func Down(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	lock, err := lockCluster(cfg)
	if err != nil {
		return fmt.Errorf("cluster: down: %w", err)
	}
	defer lock.Close()
	if err := down(ctx, cfg); err != nil {
		return fmt.Errorf("cluster: down: %w", err)
	}
	// Nobody else has it: we hold the lock, and who waits for it sees by the
	// next open that it is a new file.
	return os.Remove(cfg.lockFile())
}

func down(ctx context.Context, cfg Config) error {
	// A state that cannot be read must not stop the rest.
	st, stateErr := readState(cfg)
	var errs []error
	if st != nil {
		for _, p := range st.Running {
			errs = append(errs, p.kill(killTimeout))
		}
		errs = append(errs, st.Switch.kill(killTimeout))
	}
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, killCgroup(ctx, hs, cfg.id()), cgroup.Remove(hs, cfg.id(), killTimeout), removeState(cfg.runDir()))
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, stateErr)
	}
	return nil
}

// killCgroup kills what is in the cgroup until nothing is.
func killCgroup(ctx context.Context, hs []cgroup.Hierarchy, rel string) error {
	unified, err := cgroup.Unified(hs)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(20 * time.Millisecond) {
		pids, err := cgroup.Procs(filepath.Join(unified.Mount, rel))
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			// It may have ended since it was listed.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v are still there %s after SIGKILL", pids, killTimeout)
		}
	}
}

// removeState removes the folder. A mount namespace that is just ending may
// hold files in there for a moment.
func removeState(dir string) error {
	var err error
	for range 50 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("cluster: namespaces and cgroups need root: run as root")
	}
	return nil
}
