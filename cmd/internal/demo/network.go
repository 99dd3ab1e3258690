// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// InsideCommand is the hidden command of the evenkeel binary that is the demo inside its own network namespace.
const InsideCommand = "internal-demo"

// Enter makes this process the demo in a new network namespace: nothing of it is seen on the machine, and the addresses of a cluster
// can be used. It returns only on failure.
func Enter(args []string) error {
	// The namespace is this thread's alone; execve(2) then makes the thread the whole process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	argv := append([]string{"evenkeel", InsideCommand}, args...)
	return fmt.Errorf("execute /proc/self/exe: %w", syscall.Exec("/proc/self/exe", argv, os.Environ()))
}

// prepareNetwork brings up loopback and gives it the addresses of the demo's cluster. They are not 127.x ones: the redirect leaves
// those alone.
func prepareNetwork(addrs ...netip.Addr) error {
	lo, err := loopback()
	if err != nil {
		return fmt.Errorf("bring up the loopback interface: %w", err)
	}
	sock, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	for i, addr := range addrs {
		if err := addAddress(sock, uint32(i+1), lo, addr); err != nil {
			return fmt.Errorf("add %s to the loopback interface: %w", addr, err)
		}
	}
	return nil
}

// loopback sets lo up and returns its index.
func loopback() (uint32, error) {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(sock)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return 0, err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, req); err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, req); err != nil {
		return 0, err
	}
	return req.Uint32(), nil
}

// addAddress adds an IPv4 address by an RTM_NEWADDR message (rtnetlink(7)).
func addAddress(sock int, seq, link uint32, addr netip.Addr) error {
	ip := addr.As4()
	order := binary.NativeEndian
	var m []byte
	// struct nlmsghdr: length (set below), type, flags, sequence, port.
	m = order.AppendUint32(m, 0)
	m = order.AppendUint16(m, unix.RTM_NEWADDR)
	m = order.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m = order.AppendUint32(m, seq)
	m = order.AppendUint32(m, 0)
	// struct ifaddrmsg: family, prefix length, flags, scope, link.
	m = append(m, unix.AF_INET, 32, 0, unix.RT_SCOPE_UNIVERSE)
	m = order.AppendUint32(m, link)
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		m = order.AppendUint16(m, unix.SizeofRtAttr+4)
		m = order.AppendUint16(m, kind)
		m = append(m, ip[:]...)
	}
	order.PutUint32(m, uint32(len(m)))
	if err := unix.Sendto(sock, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(sock, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("unexpected answer of the kernel (%d bytes)", n)
	}
	if code := int32(order.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
