// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// Every form of connect() arrives at the sidecar with the destination that was meant, and the app
// does not see the detour.
func TestConnectIsRedirected(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		for _, c := range []struct {
			name   string
			family int
			bind   netip.Addr // source address, when the app binds one
			to     netip.AddrPort
			peer   netip.AddrPort // what getpeername shows
		}{
			{"IPv4", unix.AF_INET, netip.Addr{}, service4(), service4()},
			{"IPv6", unix.AF_INET6, netip.Addr{}, service6(), service6()},
			{"IPv4-mapped IPv6", unix.AF_INET6, netip.Addr{}, service4(), mapped(service4())},
			{"IPv4 from a source address", unix.AF_INET, serverIP4, service4(), service4()},
			{"IPv6 from a source address", unix.AF_INET6, serverIP6, service6(), service6()},
			{"mapped from a source address", unix.AF_INET6, serverIP4, service4(), mapped(service4())},
			{"its own address", unix.AF_INET, netip.Addr{}, netip.AddrPortFrom(serverIP4, servicePort), netip.AddrPortFrom(serverIP4, servicePort)},
		} {
			t.Run(c.name, func(t *testing.T) {
				fd := rawSocket(t, c.family, unix.SOCK_STREAM, 0)
				if c.bind.IsValid() {
					if err := unix.Bind(fd, sockaddr(c.family, netip.AddrPortFrom(c.bind, 0))); err != nil {
						t.Fatal(err)
					}
				}
				if err := unix.Connect(fd, sockaddr(c.family, c.to)); err != nil {
					t.Fatal(err)
				}
				a := s.next()
				if a.err != nil || a.orig != c.to {
					t.Errorf("original destination: got %v, %v, want %v", a.orig, a.err, c.to)
				}
				if got := peerName(t, fd); got != c.peer {
					t.Errorf("getpeername: got %v, want %v", got, c.peer)
				}
				// The sidecar sees its client, by accept and by getpeername.
				if local := localName(t, fd); a.remote != local {
					t.Errorf("the sidecar sees %v, the app is %v", a.remote, local)
				}
				control(a.conn, func(accepted int) {
					if got, local := peerName(t, accepted), localName(t, fd); got != local {
						t.Errorf("getpeername of the sidecar's socket: got %v, the app is %v", got, local)
					}
				})
				control(a.conn, func(fd int) {
					level, other := unix.SOL_IP, unix.SOL_IPV6
					if c.to.Addr().Is6() {
						level, other = other, level
					}
					if got, errno := soOriginalDst(fd, level); errno != 0 || got != c.to {
						t.Errorf("SO_ORIGINAL_DST: got %v, %v, want %v", got, errno, c.to)
					}
					if got, errno := soOriginalDst(fd, other); errno == 0 {
						t.Errorf("SO_ORIGINAL_DST of the other family answered %v", got)
					}
				})
				// The client's end is no accepted socket.
				if got, err := origdst.Lookup(fd); !errors.Is(err, origdst.ErrNone) {
					t.Errorf("Lookup of the client's socket: got %v, %v, want ErrNone", got, err)
				}
			})
		}
	})
}

// What must reach its destination as if no redirect were there.
func TestConnectIsLeftAlone(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		port := strconv.Itoa(servicePort)

		for _, c := range []struct {
			name, listen string
			to           netip.AddrPort
		}{
			{"another port", serverIP4.String() + ":8080", netip.AddrPortFrom(serverIP4, 8080)},
			{"another port, IPv6", "[" + serverIP6.String() + "]:8080", netip.AddrPortFrom(serverIP6, 8080)},
			{"loopback", "127.0.0.1:" + port, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), servicePort)},
			{"any of loopback's", "127.9.9.9:" + port, netip.AddrPortFrom(netip.MustParseAddr("127.9.9.9"), servicePort)},
			{"loopback IPv6", "[::1]:" + port, netip.AddrPortFrom(netip.MustParseAddr("::1"), servicePort)},
			{"unspecified", "127.0.0.1:" + port, netip.AddrPortFrom(netip.MustParseAddr("0.0.0.0"), servicePort)},
			{"unspecified IPv6", "[::1]:" + port, netip.AddrPortFrom(netip.MustParseAddr("::"), servicePort)},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, got := server(t, c.listen)
				conn := mustDial(t, c.to)
				arrived(t, got, c.name)
				s.none(c.name)
				conn.Close()
			})
		}

		t.Run("IPv4-mapped loopback", func(t *testing.T) {
			_, got := server(t, "127.0.0.1:"+port)
			rawConnect(t, unix.AF_INET6, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), servicePort))
			arrived(t, got, "mapped loopback")
			s.none("mapped loopback")
		})
		// Nobody has the address, so the connect fails, unless it is redirected.
		t.Run("link-local", func(t *testing.T) {
			if conn, err := dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr("fe80::99%lo"), servicePort)); err == nil {
				t.Errorf("connected to %v", conn.RemoteAddr())
				conn.Close()
			}
			s.none("link-local")
		})
		t.Run("socket bound to a device", func(t *testing.T) {
			_, got := server(t, serverIP4.String()+":"+port)
			fd := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, 0)
			if err := unix.BindToDevice(fd, "lo"); err != nil {
				t.Fatal(err)
			}
			if err := unix.Connect(fd, sockaddr(unix.AF_INET, netip.AddrPortFrom(serverIP4, servicePort))); err != nil {
				t.Fatal(err)
			}
			arrived(t, got, "device")
			s.none("device")
		})
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			t.Run("UDP of family "+strconv.Itoa(family), func(t *testing.T) {
				to := netip.AddrPortFrom(serverIP4, servicePort)
				if family == unix.AF_INET6 {
					to = netip.AddrPortFrom(serverIP6, servicePort)
				}
				recv := rawSocket(t, family, unix.SOCK_DGRAM, 0)
				if err := unix.Bind(recv, sockaddr(family, to)); err != nil {
					t.Fatal(err)
				}
				send := rawSocket(t, family, unix.SOCK_DGRAM, 0)
				if err := unix.Connect(send, sockaddr(family, to)); err != nil {
					t.Fatal(err)
				}
				if _, err := unix.Write(send, []byte("x")); err != nil {
					t.Fatal(err)
				}
				if got := peerName(t, send); got != to {
					t.Errorf("getpeername: got %v, want %v", got, to)
				}
				buf := make([]byte, 8)
				if n, _, err := unix.Recvfrom(recv, buf, unix.MSG_DONTWAIT); err != nil || n != 1 {
					t.Errorf("datagram: got %d bytes, %v", n, err)
				}
			})
		}
		if info := p.proof(); info.Direct != 0 || info.Redirected != 0 {
			t.Errorf("counted %d redirected and %d direct, want none: none of these is the redirect's business", info.Redirected, info.Direct)
		}
	})
}

// The sidecar dials where it wants, also when it restarted in a new container.
func TestSidecarsOwnConnectsAreLeftAlone(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		to := netip.AddrPortFrom(serverIP4, servicePort)
		_, got := server(t, to.String())
		s := p.listen(listenerPort)

		enter(t, p.sidecar)
		if info := p.proof(); !info.Own() {
			t.Errorf("the sidecar is not taken for itself: %+v", info)
		}
		mustDial(t, to)
		arrived(t, got, "the sidecar's connect")
		s.none("the sidecar's connect")
		enter(t, p.app)
		if info := p.proof(); info.Own() {
			t.Errorf("the app is taken for the sidecar: %+v", info)
		}
		s.close()

		// A restarted container is a new cgroup.
		former := p.sidecar
		p.sidecar = p.app + "/second"
		mkCgroup(t, p.sidecar)
		s = p.listen(listenerPort)
		enter(t, p.sidecar)
		mustDial(t, to)
		arrived(t, got, "the new sidecar's connect")
		enter(t, former)
		mustDial(t, to)
		if a := s.next(); a.orig != to {
			t.Errorf("a connect from the former container went to %v, want it redirected with %v", a.orig, to)
		}
		enter(t, p.app)
		if info := p.proof(); info.Direct != 0 {
			t.Errorf("%d connections counted as direct, want 0: the sidecar's own are none", info.Direct)
		}
	})
}

// A socket that connects again must not carry what was stored for its former connection.
func TestSecondConnectForgetsTheFirst(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		other, got := server(t, serverIP4.String()+":8080")
		s := p.listen(listenerPort)

		fd := rawConnect(t, unix.AF_INET, service4())
		s.next()
		disconnect(t, fd)
		if err := unix.Connect(fd, sockaddr(unix.AF_INET, other)); err != nil {
			t.Fatal(err)
		}
		arrived(t, got, "after a disconnect")
		if name := peerName(t, fd); name != other {
			t.Errorf("getpeername after connecting elsewhere: got %v, want %v", name, other)
		}

		disconnect(t, fd)
		second := netip.AddrPortFrom(netip.MustParseAddr("10.96.7.7"), servicePort)
		if err := unix.Connect(fd, sockaddr(unix.AF_INET, second)); err != nil {
			t.Fatal(err)
		}
		if a := s.next(); a.orig != second {
			t.Errorf("original of the third connect: got %v, want %v", a.orig, second)
		}
		if name := peerName(t, fd); name != second {
			t.Errorf("getpeername after the third connect: got %v, want %v", name, second)
		}
	})
}

// Nobody dials the listener by way of the redirect: then there is no original.
func TestDirectDialOfTheListenerHasNoOriginal(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		for _, addr := range []string{"127.0.0.1", "::1"} {
			mustDial(t, netip.AddrPortFrom(netip.MustParseAddr(addr), listenerPort))
			if a := s.next(); !errors.Is(a.err, origdst.ErrNone) {
				t.Errorf("dialled %s: got %v, %v, want ErrNone", addr, a.orig, a.err)
			}
		}
	})
}
