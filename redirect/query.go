// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// attachMode is how programs are attached to one cgroup at one hook (uapi/linux/bpf.h).
type attachMode uint32

const (
	// exclusive: "NONE(default): No further bpf programs allowed in the subtree."
	exclusive attachMode = 0
	// allowOverride: "If a sub-cgroup installs some bpf program, the program in this cgroup
	// yields to sub-cgroup program."
	allowOverride attachMode = 1
	// allowMulti: "If a sub-cgroup installs some bpf program, that cgroup program gets run in
	// addition to the program in this cgroup." Those of sub-cgroups run first.
	allowMulti attachMode = 2
)

func (m attachMode) String() string {
	switch m {
	case exclusive:
		return "exclusive"
	case allowOverride:
		return "BPF_F_ALLOW_OVERRIDE"
	case allowMulti:
		return "BPF_F_ALLOW_MULTI"
	}
	return fmt.Sprintf("flags %#x", uint32(m))
}

// scope is which programs a query is about.
type scope uint32

const (
	attachedHere scope = 0
	// effective: all that run for the processes of the cgroup, those of ancestors included.
	effective scope = 1
)

// maxAttached is the kernel's BPF_CGROUP_MAX_PROGS for one cgroup, times a depth that no
// hierarchy of a node reaches.
const maxAttached = 64 * 16

// progQueryAttr is the part of union bpf_attr that BPF_PROG_QUERY uses. The eBPF library has the
// call too but keeps attach_flags for itself, and those decide whether attaching is safe.
type progQueryAttr struct {
	target      uint32
	attachType  uint32
	queryFlags  uint32
	attachFlags uint32
	progIDs     uint64
	progCount   uint32
	_           uint32
	flagsPerID  uint64
	linkIDs     uint64
	linkFlags   uint64
	revision    uint64
}

// queryPrograms lists the programs of a cgroup at one hook, in the order in which they run, and
// how those of this very cgroup are attached. It needs CAP_NET_ADMIN.
func queryPrograms(dir int, at ebpf.AttachType, what scope) ([]ebpf.ProgramID, attachMode, error) {
	ids := make([]ebpf.ProgramID, maxAttached)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&ids[0])
	attr := progQueryAttr{
		target:     uint32(dir),
		attachType: uint32(at),
		queryFlags: uint32(what),
		progIDs:    uint64(uintptr(unsafe.Pointer(&ids[0]))),
		progCount:  uint32(len(ids)),
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch errno {
	case 0:
		return ids[:attr.progCount], attachMode(attr.attachFlags), nil
	case unix.EPERM:
		return nil, 0, fmt.Errorf("list the %s programs of the cgroup: %w", at, lacking(capNetAdmin, errno))
	default:
		return nil, 0, fmt.Errorf("list the %s programs of the cgroup: %w", at, os.NewSyscallError("bpf(BPF_PROG_QUERY)", errno))
	}
}
