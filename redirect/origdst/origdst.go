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

// The contract with redirect/bpf/evenkeel.h.
const (
	level      = 0x45564b4c
	optInfo    = 1
	optOrigDst = 2
	optProbe   = 3
	optDirect  = 0x1000

	magic = 0x4c4b5645
	// ABI is the version of the contract that this package understands.
	ABI = 1
)

// ErrNone says that the connection was not redirected: its peer dialled the listener itself, or
// no redirect is attached.
var ErrNone = errors.New("no original destination: the connection was not redirected")

// rawAddr is struct evk_addr: IPv6 form, IPv4 as ::ffff:a.b.c.d, port in host byte order.
type rawAddr struct {
	addr [16]byte
	port uint16
	_    uint16
}

func (a *rawAddr) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.addr).Unmap(), a.port)
}

// Lookup returns where the peer of the accepted TCP socket fd meant to connect to. An
// IPv4-mapped destination is returned as IPv4. It never blocks and allocates nothing unless it
// fails for a reason other than ErrNone; it may be called as soon as accept has returned.
func Lookup(fd int) (netip.AddrPort, error) {
	var raw rawAddr
	switch errno := getsockopt(fd, optOrigDst, unsafe.Pointer(&raw), unsafe.Sizeof(raw)); {
	case errno == 0:
		return raw.addrPort(), nil
	case unanswered(errno):
		return netip.AddrPort{}, ErrNone
	default:
		return netip.AddrPort{}, fmt.Errorf("original destination of descriptor %d: %w",
			fd, os.NewSyscallError("getsockopt", errno))
	}
}

// getsockopt asks on our level. A raw system call: it returns in microseconds (the hook waits
// only for the lock of this one socket), so the scheduler need not be told, and the event loop
// calls it for each connection that it accepts.
func getsockopt(fd int, opt uintptr, p unsafe.Pointer, size uintptr) unix.Errno {
	n := uint32(size)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, opt,
		uintptr(p), uintptr(unsafe.Pointer(&n)), 0)
	if errno == 0 && uintptr(n) != size {
		// Somebody else answers on our level, or another version of us.
		return unix.ENOPROTOOPT
	}
	return errno
}

// unanswered tells the errors that the kernel itself gives for a level that it does not know
// from those that say that fd is wrong.
func unanswered(errno unix.Errno) bool {
	switch errno {
	case unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOENT:
		return true
	}
	return false
}
