// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sockets by their system calls, where a test is about one that package net does not make.

func rawSocket(t *testing.T, family, kind, proto int) int {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	// No test may hang on a connect that goes nowhere.
	tv := unix.NsecToTimeval(int64(3 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	return fd
}

// sockaddr is to in the form of the family; IPv4 in an AF_INET6 socket is mapped.
func sockaddr(family int, to netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

func rawConnect(t *testing.T, family int, to netip.AddrPort) int {
	t.Helper()
	fd := rawSocket(t, family, unix.SOCK_STREAM, 0)
	if err := unix.Connect(fd, sockaddr(family, to)); err != nil {
		t.Fatalf("connect to %v: %v", to, err)
	}
	return fd
}

func disconnect(t *testing.T, fd int) {
	t.Helper()
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		t.Fatalf("disconnect: %v", errno)
	}
}

func peerName(t *testing.T, fd int) netip.AddrPort {
	t.Helper()
	sa, err := unix.Getpeername(fd)
	if err != nil {
		t.Fatalf("getpeername: %v", err)
	}
	return addrPortOf(sa)
}

// localName is the socket's own address, IPv4 without mapping.
func localName(t *testing.T, fd int) netip.AddrPort {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatalf("getsockname: %v", err)
	}
	a := addrPortOf(sa)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// getsockopt is the bare call: what it left in buf, the length it gave, and its error.
func getsockopt(fd, level, opt int, buf []byte) (int, unix.Errno) {
	n := uint32(len(buf))
	var p unsafe.Pointer
	if len(buf) > 0 {
		p = unsafe.Pointer(&buf[0])
	}
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt),
		uintptr(p), uintptr(unsafe.Pointer(&n)), 0)
	return int(n), errno
}

// soOriginalDst is what a proxy that knows only netfilter asks.
func soOriginalDst(fd, level int) (netip.AddrPort, unix.Errno) {
	const option = 80
	buf := make([]byte, 64)
	n, errno := getsockopt(fd, level, option, buf)
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	port := binary.BigEndian.Uint16(buf[2:])
	switch {
	case level == unix.SOL_IP && n == unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(buf) == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(buf[4:8])), port), 0
	case level == unix.SOL_IPV6 && n == unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(buf) == unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(buf[8:24])), port), 0
	}
	return netip.AddrPort{}, unix.EPROTO
}

// server accepts at addr, at once and for ever, and gives what it got to the channel. It closes a
// connection when its client has: a client that closed waits for that, up to a minute.
func server(t *testing.T, addr string) (netip.AddrPort, <-chan net.Conn) {
	t.Helper()
	l := listenTCP(t, addr)
	got := make(chan net.Conn, 4096)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c) // ends with the connection, in whatever way
				c.Close()
			})
			got <- c
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), got
}

// arrived waits for a connection at a server.
func arrived(t *testing.T, got <-chan net.Conn, why string) {
	t.Helper()
	select {
	case <-got:
	case <-time.After(15 * time.Second):
		t.Fatalf("%s: no connection came to the server within 15 s", why)
	}
}
