// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// upstreamSessions looks inside the loop.
func (s *Sidecar) upstreamSessions(t testing.TB) (n int) {
	t.Helper()
	if err := s.inLoop(nil, func(time.Time) { n = s.pools.Stats().Sessions }); err != nil {
		t.Fatal(err)
	}
	return n
}

// blackHole is an address that answers no SYN: a listener with a full backlog.
func blackHole(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(sa.(*unix.SockaddrInet4).Port))
	for {
		conn, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr // full
		}
		t.Cleanup(func() { conn.Close() })
	}
}

func codeOf(err error) codes.Code { return status.Code(err) }

func mustAddr(a string) netip.AddrPort { return netip.MustParseAddrPort(a) }

// sweepNow does what the sweeper does every ten seconds.
func (s *Sidecar) sweepNow(t testing.TB) {
	t.Helper()
	if err := s.inLoop(nil, func(now time.Time) { sweeper{s}.Expired(now, &s.sweeper) }); err != nil {
		t.Fatal(err)
	}
}
