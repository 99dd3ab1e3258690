// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
)

// The hook sees every getsockopt of the pod, so it is compared, answer by answer, with a kernel
// without it: errors, lengths and bytes, with buffers below, at and beyond the page that the
// kernel lends to the program.
func TestForeignGetsockoptIsUntouched(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		to, got := server(t, serverIP4.String()+":8080")
		tcp4 := rawConnect(t, unix.AF_INET, to)
		arrived(t, got, "IPv4")
		tcp6 := rawConnect(t, unix.AF_INET6, to)
		arrived(t, got, "mapped")
		udp := rawSocket(t, unix.AF_INET6, unix.SOCK_DGRAM, 0)
		local := rawSocket(t, unix.AF_UNIX, unix.SOCK_STREAM, 0)
		packet := rawSocket(t, unix.AF_PACKET, unix.SOCK_RAW, 0)
		sockets := []struct {
			name string
			fd   int
		}{{"TCP", tcp4}, {"TCP over mapped IPv6", tcp6}, {"UDP", udp}, {"unix", local}, {"packet", packet}}
		levels := []int{unix.SOL_SOCKET, unix.SOL_IP, unix.SOL_IPV6, unix.SOL_TCP, unix.SOL_UDP, unix.SOL_PACKET, 12345}
		sizes := []int{0, 1, 4, 16, 256, 4096, 4097, 65536}

		type answer struct {
			n     int
			errno unix.Errno
			buf   []byte
		}
		ask := func() map[string]answer {
			all := map[string]answer{}
			for _, s := range sockets {
				for _, level := range levels {
					for opt := range 90 {
						for _, size := range sizes {
							buf := bytes.Repeat([]byte{0xaa}, size)
							n, errno := getsockopt(s.fd, level, opt, buf)
							if errno != 0 {
								// What a failed call leaves in the buffer is nobody's to read.
								buf = nil
							}
							all[fmt.Sprintf("%s level %d option %d size %d", s.name, level, opt, size)] = answer{n, errno, buf}
						}
					}
				}
			}
			return all
		}
		before, again := ask(), ask()
		p.attach(redirect.Config{})
		if p.proof().ListenerPort != listenerPort {
			t.Fatal("not attached")
		}
		after := ask()

		compared, answered := 0, 0
		for call, want := range before {
			got := after[call]
			if now := again[call]; !bytes.Equal(now.buf, want.buf) || now.n != want.n || now.errno != want.errno {
				continue // changes by itself: a clock, a counter
			}
			compared++
			if want.errno == 0 {
				answered++
			}
			if got.n != want.n || got.errno != want.errno || !bytes.Equal(got.buf, want.buf) {
				t.Errorf("%s: got (%d, %v), without the redirect (%d, %v), bytes equal: %v",
					call, got.n, got.errno, want.n, want.errno, bytes.Equal(got.buf, want.buf))
			}
		}
		if compared < 20000 || answered < 1000 {
			t.Errorf("only %d calls compared, %d of them answered: the comparison proves little", compared, answered)
		}
		// Calls whose answers change must at least succeed alike.
		for call, want := range before {
			if got := after[call]; got.errno != want.errno || got.n != want.n {
				t.Errorf("%s: got (%d, %v), without the redirect (%d, %v)", call, got.n, got.errno, want.n, want.errno)
			}
		}
	})
}

// Too small a buffer, an option that we do not have: the kernel's own refusal.
func TestOwnLevelRefusesWhatItDoesNotKnow(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		fd := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
		const level = 0x45564b4c
		for _, c := range []struct{ opt, size int }{
			{0, 256}, {1, 0}, {1, 32}, {2, 20}, {3, 3}, {4, 256}, {0x1000, 8}, {0x1200, 64}, {-1, 64},
		} {
			if n, errno := getsockopt(fd, level, c.opt, make([]byte, c.size)); errno != unix.EOPNOTSUPP && errno != unix.ENOPROTOOPT {
				t.Errorf("option %d, %d bytes: got (%d, %v), want the kernel's EOPNOTSUPP", c.opt, c.size, n, errno)
			}
		}
		// A socket with another role is not for probing.
		p.listen(listenerPort)
		redirected := rawConnect(t, unix.AF_INET, service4())
		if n, errno := getsockopt(redirected, level, 3, make([]byte, 4)); errno != unix.EOPNOTSUPP && errno != unix.ENOPROTOOPT {
			t.Errorf("probing a redirected socket: got (%d, %v)", n, errno)
		}
		// More room than needed, also more than a page, is no reason to refuse.
		for _, size := range []int{1024, 4096} {
			if n, errno := getsockopt(fd, level, 1, make([]byte, size)); errno != 0 || n < 200 || n > size {
				t.Errorf("proof with %d bytes: got (%d, %v)", size, n, errno)
			}
		}
	})
}

// A program of others further up sees the calls as the kernel answered them, lengths included.
func TestProgramsAboveSeeRealLengths(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		last := lastOptlen(t, p.cgroup)
		inner := filepath.Join(p.cgroup, "inner")
		mkCgroup(t, inner)
		t.Cleanup(func() { enter(t, p.app) })
		p.attach(redirect.Config{Cgroup: inner})
		enter(t, inner)
		fd := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
		for _, size := range []int{4, 64, 4096} {
			if _, errno := getsockopt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, make([]byte, size)); errno != 0 {
				t.Fatal(errno)
			}
			if got := last(); got != 4 {
				t.Errorf("SO_RCVBUF with %d bytes: the program above saw a length of %d, want the answer's 4", size, got)
			}
		}
		for _, size := range []int{16, 4096} {
			if _, errno := getsockopt(fd, unix.SOL_IP, 80, make([]byte, size)); errno == 0 {
				t.Fatal("SO_ORIGINAL_DST was answered")
			}
			if got := last(); got != uint32(size) {
				t.Errorf("a call that failed, with %d bytes: the program above saw %d", size, got)
			}
		}
	})
}

// lastOptlen attaches a getsockopt program that notes the length it sees.
func lastOptlen(t *testing.T, dir string) func() uint32 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const offsetOptlen = 32 // of struct bpf_sockopt
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "optlen", Type: ebpf.CGroupSockopt, AttachType: ebpf.AttachCGroupGetsockopt, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, offsetOptlen, asm.Word),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.Word),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	attachForeign(t, dir, prog, ebpf.AttachCGroupGetsockopt, flagMulti)
	return func() uint32 {
		var n uint32
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}
