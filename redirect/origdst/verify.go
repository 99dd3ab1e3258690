// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package origdst

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hooks is a set of the redirect's programs, one bit each.
type Hooks uint32

// The programs, named after the place in the kernel where each is called.
const (
	Connect4 Hooks = 1 << iota
	Connect6
	GetPeerName4
	GetPeerName6
	PostBind4
	PostBind6
	SockOps
	GetSockOpt

	// NumHooks is the number of programs.
	NumHooks = iota
	// AllHooks is the set of all.
	AllHooks Hooks = 1<<NumHooks - 1

	hooks6 = Connect6 | GetPeerName6 | PostBind6
)

// String lists the names of the programs in the set.
func (h Hooks) String() string {
	var names []string
	for i, name := range [NumHooks]string{
		"connect4", "connect6", "getpeername4", "getpeername6",
		"post_bind4", "post_bind6", "sockops", "getsockopt",
	} {
		if h&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Verify proves that every one of the programs runs for this process. "Attached" proves nothing:
// the pod's directory may be the wrong one, another program may keep ours from running, someone
// may have detached one. So a socket of each family is armed by a getsockopt, makes a connection
// to a listener on loopback that is made for the purpose, and then tells which programs saw it.
// Nothing else of the pod is touched and nothing leaves it. It needs the loopback device up.
//
// On a node without IPv6 the three IPv6 programs have nothing to act on and are not asked for.
func Verify() error {
	seen, err := probe4()
	if err != nil {
		return err
	}
	want := AllHooks
	seen6, err := probe6()
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		want &^= hooks6
	case err != nil:
		return err
	default:
		seen |= seen6
	}
	if missing := want &^ seen; missing != 0 {
		return fmt.Errorf("%w: these programs do not run for it: %s", ErrNotEffective, missing)
	}
	return nil
}

func probe4() (Hooks, error) {
	return probe(unix.AF_INET, func() unix.Sockaddr {
		return &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	})
}

// probe6 uses the IPv4-mapped form: it reaches the same programs, also in a pod without ::1.
func probe6() (Hooks, error) {
	return probe(unix.AF_INET6, func() unix.Sockaddr {
		a := &unix.SockaddrInet6{}
		copy(a.Addr[10:], []byte{0xff, 0xff, 127, 0, 0, 1})
		return a
	})
}

func probe(family int, loopback func() unix.Sockaddr) (Hooks, error) {
	listener, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, probeError("socket", err)
	}
	defer unix.Close(listener)
	if err := unix.Bind(listener, loopback()); err != nil {
		return 0, probeError("bind", err)
	}
	if err := unix.Listen(listener, 1); err != nil {
		return 0, probeError("listen", err)
	}
	addr, err := unix.Getsockname(listener)
	if err != nil {
		return 0, probeError("getsockname", err)
	}

	client, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, probeError("socket", err)
	}
	defer unix.Close(client)
	if _, err := probed(client); err != nil {
		return 0, err
	}
	if err := unix.Bind(client, loopback()); err != nil {
		return 0, probeError("bind", err)
	}
	if err := unix.Connect(client, addr); err != nil {
		return 0, probeError("connect", err)
	}
	if _, err := unix.Getpeername(client); err != nil {
		return 0, probeError("getpeername", err)
	}
	return probed(client)
}

// probed arms the socket at the first call and returns what was seen at the second.
func probed(fd int) (Hooks, error) {
	var seen Hooks
	switch errno := getsockopt(fd, optProbe, unsafe.Pointer(&seen), unsafe.Sizeof(seen)); {
	case errno == 0:
		return seen, nil
	case unanswered(errno):
		return 0, fmt.Errorf("%w: nothing answered the probe getsockopt", ErrNotEffective)
	default:
		return 0, probeError("getsockopt", errno)
	}
}

func probeError(call string, err error) error {
	return fmt.Errorf("probing the redirect on loopback: %w", os.NewSyscallError(call, err))
}
