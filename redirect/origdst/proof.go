// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package origdst

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotEffective says that the redirect does not act on the sockets of this process: it is not
// attached to a cgroup that this process was in when it made the socket, or only in part.
var ErrNotEffective = errors.New("the redirect is not effective for this process")

// Info is what the attached programs say of themselves.
type Info struct {
	// ListenerPort is the loopback port that connections are redirected to.
	ListenerPort uint16
	// Ports are the destination ports whose connections are redirected.
	Ports []uint16
	// ProgramIDs are the kernel's ids of the attached programs, in the order of Hooks.
	ProgramIDs [NumHooks]uint32
	// NetNS is the cookie of the network namespace of the socket that was asked.
	NetNS uint64
	// SidecarCgroup is the cgroup whose process has bound the listener in that network
	// namespace, and whose connections are therefore left alone. 0: nobody did; then every
	// connection goes direct.
	SidecarCgroup uint64
	// CallerCgroup is the cgroup of the process that asked.
	CallerCgroup uint64
	// Redirected counts the connects that were rewritten to the listener.
	Redirected uint64
	// Direct counts the connections that went past the sidecar because it was away.
	Direct uint64
	// Lost counts the original destinations that could not be kept for want of memory.
	Lost uint64

	directSlots uint32
}

// Own reports whether the asking process is the one whose traffic is left alone, which the
// sidecar must be once it has bound its listener: otherwise its connections came back to it.
func (i Info) Own() bool { return i.SidecarCgroup != 0 && i.SidecarCgroup == i.CallerCgroup }

// rawInfo is struct evk_info.
type rawInfo struct {
	magic         uint32
	abi           uint16
	listenerPort  uint16
	enabled       uint32
	nPorts        uint32
	sidecarCgroup uint64
	progIDs       [NumHooks]uint32
	ports         [maxPorts]uint16

	redirected  uint64
	direct      uint64
	lost        uint64
	directSlots uint32
	recorded    uint32

	netns   uint64
	sidecar uint64
	caller  uint64
}

const maxPorts = 64

// Proof asks the programs through the socket fd, of any family and state, that was created
// inside the pod. Its answer proves that they run for this process; Verify proves it of each.
func Proof(fd int) (Info, error) {
	var raw rawInfo
	errno := getsockopt(fd, optInfo, unsafe.Pointer(&raw), unsafe.Sizeof(raw))
	switch {
	case unanswered(errno):
		return Info{}, fmt.Errorf("%w: nothing answered the proof getsockopt", ErrNotEffective)
	case errno != 0:
		return Info{}, fmt.Errorf("proof getsockopt on descriptor %d: %w",
			fd, os.NewSyscallError("getsockopt", errno))
	case raw.magic != magic || raw.abi != ABI:
		return Info{}, fmt.Errorf("%w: the programs attached speak version %d, this binary %d: recreate the pod, so that both are of one release",
			ErrNotEffective, raw.abi, ABI)
	}
	info := Info{
		ListenerPort:  raw.listenerPort,
		Ports:         make([]uint16, min(int(raw.nPorts), maxPorts)),
		ProgramIDs:    raw.progIDs,
		NetNS:         raw.netns,
		SidecarCgroup: raw.sidecar,
		CallerCgroup:  raw.caller,
		Redirected:    raw.redirected,
		Direct:        raw.direct,
		Lost:          raw.lost,
		directSlots:   raw.directSlots,
	}
	copy(info.Ports, raw.ports[:])
	return info, nil
}

// ProofOfProcess is Proof with a socket made for the purpose: it speaks of sockets that this
// process makes now.
func ProofOfProcess() (Info, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Info{}, fmt.Errorf("socket for the proof getsockopt: %w", os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	return Proof(fd)
}

// Direct is the count of direct connections to one original destination.
type Direct struct {
	// Destination is where the app connected to; the zero value stands for all destinations
	// beyond the 511 that are counted one by one.
	Destination netip.AddrPort
	// Open is how many are established now.
	Open int64
	// Total is how many were established since the redirect was attached.
	Total uint64
}

// rawDirect is struct evk_direct.
type rawDirect struct {
	dst   rawAddr
	used  uint32
	open  int64
	total uint64
}

// Directs appends the counts of direct connections to dst, asked through the socket fd as in
// Proof. It costs a system call for each destination that was ever reached directly.
func Directs(fd int, dst []Direct) ([]Direct, error) {
	info, err := Proof(fd)
	if err != nil {
		return dst, err
	}
	for slot := range info.directSlots {
		var raw rawDirect
		errno := getsockopt(fd, optDirect+uintptr(slot), unsafe.Pointer(&raw), unsafe.Sizeof(raw))
		if unanswered(errno) {
			break // beyond the last slot, or detached meanwhile
		}
		if errno != 0 {
			return dst, fmt.Errorf("direct connections: %w", os.NewSyscallError("getsockopt", errno))
		}
		switch {
		case raw.used != 0:
			dst = append(dst, Direct{Destination: raw.dst.addrPort(), Open: raw.open, Total: raw.total})
		case raw.total != 0:
			dst = append(dst, Direct{Open: raw.open, Total: raw.total})
		}
	}
	return dst, nil
}
