// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package origdst

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The tests with a redirect are in package redirect, which can attach one; here is what holds
// everywhere.

func connected(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	f, err := a.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

func TestWithoutRedirect(t *testing.T) {
	fd := connected(t)
	if got, err := Lookup(fd); !errors.Is(err, ErrNone) {
		t.Errorf("Lookup: got %v, %v, want ErrNone", got, err)
	}
	if got, err := Proof(fd); !errors.Is(err, ErrNotEffective) {
		t.Errorf("Proof: got %v, %v, want ErrNotEffective", got, err)
	}
	if got, err := ProofOfProcess(); !errors.Is(err, ErrNotEffective) {
		t.Errorf("ProofOfProcess: got %v, %v, want ErrNotEffective", got, err)
	}
	if got, err := Directs(fd, nil); !errors.Is(err, ErrNotEffective) || len(got) != 0 {
		t.Errorf("Directs: got %v, %v, want ErrNotEffective", got, err)
	}
	if err := Verify(); !errors.Is(err, ErrNotEffective) {
		t.Errorf("Verify: got %v, want ErrNotEffective", err)
	}
}

// A descriptor that is wrong is a bug of the caller, not "not redirected".
func TestWrongDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for fd, want := range map[int]error{-1: unix.EBADF, 1 << 20: unix.EBADF, int(r.Fd()): unix.ENOTSOCK} {
		if _, err := Lookup(fd); !errors.Is(err, want) || errors.Is(err, ErrNone) {
			t.Errorf("Lookup(%d): got %v, want %v", fd, err, want)
		}
		if _, err := Proof(fd); !errors.Is(err, want) || errors.Is(err, ErrNotEffective) {
			t.Errorf("Proof(%d): got %v, want %v", fd, err, want)
		}
	}
}

// Once per accepted connection, in an event loop.
func TestLookupDoesNotAllocate(t *testing.T) {
	fd := connected(t)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Lookup(fd); !errors.Is(err, ErrNone) {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

func BenchmarkLookup(b *testing.B) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Lookup(fd); !errors.Is(err, ErrNone) {
			b.Fatal(err)
		}
	}
}

// The layout is a contract with evenkeel.h, whose structs have no holes.
func TestLayout(t *testing.T) {
	for name, c := range map[string]struct{ got, want uintptr }{
		"evk_addr":               {unsafe.Sizeof(rawAddr{}), 20},
		"evk_direct":             {unsafe.Sizeof(rawDirect{}), 40},
		"evk_info":               {unsafe.Sizeof(rawInfo{}), 184 + 32 + 24},
		"evk_info.state":         {unsafe.Offsetof(rawInfo{}.redirected), 184},
		"evk_info.netns":         {unsafe.Offsetof(rawInfo{}.netns), 216},
		"evk_direct.open":        {unsafe.Offsetof(rawDirect{}.open), 24},
		"EVK_HOOKS":              {NumHooks, 8},
		"EVK_MAX_PORTS":          {maxPorts, 64},
		"GetSockOpt is the last": {uintptr(GetSockOpt), 1 << 7},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", name, c.got, c.want)
		}
	}
}

func TestHooksString(t *testing.T) {
	if got := (Connect4 | SockOps).String(); got != "connect4, sockops" {
		t.Errorf("got %q", got)
	}
	if got := strings.Count(AllHooks.String(), ", "); got != NumHooks-1 {
		t.Errorf("got %q", AllHooks)
	}
}
