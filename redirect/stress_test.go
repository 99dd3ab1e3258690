// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

func sysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// Ten thousand connects from many threads, over so few ports that each is used again and again,
// each to another destination: every accepted connection must tell the right one. The sidecar
// sends what it learned, so each client checks its own.
func TestOriginalUnderParallelConnectsWithPortReuse(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		sysctl(t, "net/ipv4/ip_local_port_range", "30000 30300")
		p.attach(redirect.Config{})
		enter(t, p.sidecar)
		var wg sync.WaitGroup
		var listeners []net.Listener
		for _, addr := range []string{"127.0.0.1:15951", "[::1]:15951"} {
			l := listenTCP(t, addr)
			listeners = append(listeners, l)
			// Several accept at once: one may get a socket the moment it is in the queue.
			for range 4 {
				wg.Go(func() {
					for {
						c, err := l.AcceptTCP()
						if err != nil {
							return
						}
						var orig netip.AddrPort
						control(c, func(fd int) { orig, err = origdst.Lookup(fd) })
						if err != nil {
							fmt.Fprintf(c, "%v", err)
						} else {
							fmt.Fprint(c, orig)
						}
						c.Close()
					}
				})
			}
		}
		enter(t, p.app)

		connects, clients := int64(10_000), 32
		if testing.Short() {
			connects = 2_000 // under the race detector each costs ten times as much
		}
		var next, wrong atomic.Int64
		var dialers sync.WaitGroup
		for range clients {
			dialers.Go(func() {
				for i := next.Add(1); i <= connects; i = next.Add(1) {
					to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), servicePort)
					family := unix.AF_INET
					switch i % 3 {
					case 1:
						family = unix.AF_INET6 // mapped
					case 2:
						family = unix.AF_INET6
						to = netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x96, 14: byte(i >> 8), 15: byte(i)}), servicePort)
					}
					got, err := ask(family, to)
					if err != nil || got != to.String() {
						if wrong.Add(1) < 10 {
							t.Errorf("connect %d to %v: the sidecar learned %q, %v", i, to, got, err)
						}
					}
				}
			})
		}
		dialers.Wait()
		for _, l := range listeners {
			l.Close()
		}
		wg.Wait()
		if n := wrong.Load(); n > 0 {
			t.Errorf("%d of %d connects went wrong", n, connects)
		}
		info := p.proof()
		if info.Redirected != uint64(connects) || info.Lost != 0 || info.Direct != 0 {
			t.Errorf("counted %d redirected, %d lost, %d direct, want %d, 0, 0", info.Redirected, info.Lost, info.Direct, connects)
		}
		if n := p.pending(); n != 0 {
			t.Errorf("%d entries are left in the map that hands destinations over", n)
		}
	})
}

// ask connects, reads what the sidecar says and resets, so that the port is free at once.
func ask(family int, to netip.AddrPort) (string, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return "", err
	}
	if err := unix.Connect(fd, sockaddr(family, to)); err != nil {
		unix.Close(fd)
		return "", err
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	got, err := io.ReadAll(f)
	return string(got), err
}

// A connection whose listener's end never comes to be leaves nothing behind.
func TestPendingOfFailedConnectionsIsRemoved(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		// With TCP_DEFER_ACCEPT the listener ignores the client's ACK until data come, so that
		// for a while only the client believes in the connection; as with a full accept queue.
		control(s.listeners[0], func(fd int) {
			if err := unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, 30); err != nil {
				t.Error(err)
			}
		})
		const clients = 8
		var conns []int
		for range clients {
			conns = append(conns, rawConnect(t, unix.AF_INET, service4()))
		}
		if n := p.pending(); n != clients {
			t.Errorf("%d connections wait for their listener's end, want %d", n, clients)
		}
		// One sends, and is accepted with its destination.
		if _, err := unix.Write(conns[0], []byte("x")); err != nil {
			t.Fatal(err)
		}
		if a := s.next(); a.orig != service4() {
			t.Errorf("a deferred connection: got %v, %v", a.orig, a.err)
		}
		// The others end before the listener has heard of them.
		for _, fd := range conns[1:] {
			disconnect(t, fd)
		}
		if n := p.pending(); n != 0 {
			t.Errorf("%d entries are left, want none", n)
		}
	})
}

// Two connections of one source address and port: to the listener, and to the same port of
// another address. The second must not take what is kept for the first.
func TestOnlyTheListenerTakesTheOriginal(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		for _, l := range s.listeners {
			control(l, func(fd int) {
				if err := unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, 30); err != nil {
					t.Error(err)
				}
			})
		}
		for family, c := range map[int]struct{ source, service, other netip.AddrPort }{
			unix.AF_INET:  {netip.AddrPortFrom(serverIP4, 40000), service4(), netip.AddrPortFrom(serverIP4, listenerPort)},
			unix.AF_INET6: {netip.AddrPortFrom(serverIP6, 40000), service6(), netip.AddrPortFrom(serverIP6, listenerPort)},
		} {
			_, got := server(t, c.other.String())
			connect := func(to netip.AddrPort) int {
				fd := rawSocket(t, family, unix.SOCK_STREAM, 0)
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
					t.Fatal(err)
				}
				if err := unix.Bind(fd, sockaddr(family, c.source)); err != nil {
					t.Fatal(err)
				}
				if err := unix.Connect(fd, sockaddr(family, to)); err != nil {
					t.Fatal(err)
				}
				return fd
			}
			first := connect(c.service)
			connect(c.other)
			arrived(t, got, "the other address")
			if _, err := unix.Write(first, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if a := s.next(); a.orig != c.service {
				t.Errorf("the first connection: got %v, %v, want %v", a.orig, a.err, c.service)
			}
		}
	})
}
