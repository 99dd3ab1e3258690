// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Detach removes every program of ours from the cgroup (not from those below or above) and
// returns how many there were; none is not an error. Connections that are redirected go on.
// It needs CAP_NET_ADMIN, and CAP_SYS_ADMIN to tell our programs from others. A pod needs no
// Detach: the programs end with its cgroup.
func Detach(ctx context.Context, path string) (int, error) {
	cg, err := openCgroup(ctx, path)
	if err != nil {
		return 0, err
	}
	defer cg.Close()
	present, err := findAttached(cg)
	if err != nil {
		return 0, err
	}
	defer present.Close()
	if present.unreadable > 0 {
		return 0, fmt.Errorf("detach the redirect from %s: %w", cg.path, lacking(capSysAdmin, unix.EPERM))
	}
	n := 0
	for _, progs := range present.programs {
		n += len(progs)
	}
	return n, detachPrograms(cg, present)
}

// detachPrograms goes against the order of attaching: connect first, so that nothing is
// redirected any more when the programs that hand the destination over go.
func detachPrograms(cg *cgroup, a *attached) error {
	var errs []error
	all := hooks()
	for i, h := range slices.Backward(all[:]) {
		for _, p := range a.programs[i] {
			err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: cg.fd(), Program: p, Attach: h.attach})
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("detach %s from %s: %w", h.name, cg.path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// explainAttach is for the reasons that checkConflicts cannot see: a directory above the mount.
func explainAttach(h hook, cg *cgroup, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("attach %s to %s: %w: a program of somebody else on a cgroup above the visible part of the hierarchy excludes ours (look for it on the host: bpftool cgroup tree)", h.name, cg.path, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("attach %s to %s: %w: 64 programs are attached there already (bpftool cgroup show)", h.name, cg.path, err)
	default:
		return fmt.Errorf("attach %s to %s: %w", h.name, cg.path, err)
	}
}
