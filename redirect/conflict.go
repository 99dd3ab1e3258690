// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
)

// ConflictError says that a program of somebody else is attached in a way that excludes ours.
// Nothing was changed.
type ConflictError struct {
	// Hook is where, for example "connect4".
	Hook string
	// Cgroup is the directory that the program is attached to.
	Cgroup string
	// Program is its kernel id; Name its name, empty when this process may not read it.
	Program ebpf.ProgramID
	Name    string
	mode    attachMode
	own     bool // attached to the very cgroup that we want, not to an ancestor
}

func (e *ConflictError) Error() string {
	who := fmt.Sprintf("program %d", e.Program)
	if e.Name != "" {
		who += fmt.Sprintf(" (%q)", e.Name)
	}
	why := "the kernel then allows no program on the cgroups below it"
	switch {
	case e.own:
		why = "the kernel does not mix that with ours (BPF_F_ALLOW_MULTI)"
	case e.mode == allowOverride:
		why = "it would stop running for this pod as soon as ours is attached"
	}
	return fmt.Sprintf("another %s program is in the way: %s is attached to %s as %s, and %s; have its owner attach it with BPF_F_ALLOW_MULTI or as a link (find the owner with: bpftool prog show id %d; bpftool cgroup tree)",
		e.Hook, who, e.Cgroup, e.mode, why, e.Program)
}

// checkConflicts refuses when attaching would fail, or would silently take a program of others
// out of use for this pod.
func checkConflicts(cg *cgroup) error {
	above, err := cg.ancestors()
	if err != nil {
		return err
	}
	dirs := make([]*os.File, len(above))
	for i, path := range above {
		if dirs[i], err = os.Open(path); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		defer dirs[i].Close()
	}
	for _, h := range hooks() {
		ids, mode, err := queryPrograms(cg.fd(), h.attach, attachedHere)
		if err != nil {
			return err
		}
		if len(ids) > 0 && mode != allowMulti {
			return newConflict(h, cg.path, ids[0], mode, true)
		}
		running, _, err := queryPrograms(cg.fd(), h.attach, effective)
		if err != nil {
			return err
		}
		for i, path := range above {
			ids, mode, err := queryPrograms(int(dirs[i].Fd()), h.attach, attachedHere)
			if err != nil {
				return err
			}
			if mode == allowMulti && len(ids) > 0 {
				// kernel/bpf/cgroup.c, hierarchy_allows_attach(): "if (flags &
				// BPF_F_ALLOW_MULTI) return true;"; an override program above it
				// does not run for this pod already.
				break
			}
			if len(ids) == 0 {
				continue
			}
			if mode == exclusive || slices.Contains(running, ids[0]) {
				return newConflict(h, path, ids[0], mode, false)
			}
		}
	}
	return nil
}

func newConflict(h hook, dir string, id ebpf.ProgramID, mode attachMode, own bool) *ConflictError {
	return &ConflictError{Hook: h.name, Cgroup: dir, Program: id, Name: programName(id), mode: mode, own: own}
}

// programName returns the empty string where it cannot be read: that needs CAP_SYS_ADMIN, which
// the init step does not have, and the id alone is still an answer.
func programName(id ebpf.ProgramID) string {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
