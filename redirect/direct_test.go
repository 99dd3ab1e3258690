// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// The app works without the sidecar, and is back with it at its next connect: the state of the
// listener is asked each time and never remembered.
func TestFailsOpenPerConnection(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		to4, got4 := server(t, net.JoinHostPort(serverIP4.String(), strconv.Itoa(servicePort)))
		to6, got6 := server(t, net.JoinHostPort(serverIP6.String(), strconv.Itoa(servicePort)))
		for range 5 {
			for _, c := range []struct {
				family int
				to     netip.AddrPort
				got    <-chan net.Conn
			}{
				{unix.AF_INET, to4, got4}, {unix.AF_INET6, to6, got6}, {unix.AF_INET6, to4, got4},
			} {
				fd := rawConnect(t, c.family, c.to)
				arrived(t, c.got, "the sidecar is away")
				if got := peerName(t, fd); got.Addr().Unmap() != c.to.Addr() {
					t.Errorf("getpeername of a direct connection: got %v, want %v", got, c.to)
				}
			}
			s := p.listen(listenerPort)
			for _, c := range []struct {
				family int
				to     netip.AddrPort
			}{{unix.AF_INET, to4}, {unix.AF_INET6, to6}, {unix.AF_INET6, to4}} {
				rawConnect(t, c.family, c.to)
				if a := s.next(); a.err != nil || a.orig != c.to {
					t.Fatalf("the sidecar is back: got %v, %v, want %v", a.orig, a.err, c.to)
				}
			}
			s.close()
		}
	})
}

// A sidecar that listens on IPv4 alone takes what is IPv4.
func TestFailsOpenPerFamily(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		to6, got6 := server(t, net.JoinHostPort(serverIP6.String(), strconv.Itoa(servicePort)))
		enter(t, p.sidecar)
		_, got := server(t, "127.0.0.1:15951")
		enter(t, p.app)
		rawConnect(t, unix.AF_INET, service4())
		arrived(t, got, "IPv4")
		rawConnect(t, unix.AF_INET6, service4())
		arrived(t, got, "mapped")
		rawConnect(t, unix.AF_INET6, to6)
		arrived(t, got6, "IPv6, where no listener is")
	})
}

// An app's own server that happens to use the port, while the sidecar is away or was never there,
// is not the sidecar.
func TestOnlyLoopbackListenersCount(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		to, got := server(t, net.JoinHostPort(serverIP4.String(), strconv.Itoa(servicePort)))
		to6, got6 := server(t, net.JoinHostPort(serverIP6.String(), strconv.Itoa(servicePort)))
		listens := []string{"0.0.0.0:15951", "[::]:15951", serverIP4.String() + ":15951", "[" + serverIP6.String() + "]:15951"}
		check := func(when string, sidecar uint64) {
			for _, listen := range listens {
				l := listenTCP(t, listen)
				mustDial(t, to)
				arrived(t, got, when+", a listener on "+listen)
				mustDial(t, to6)
				arrived(t, got6, when+", a listener on "+listen)
				if info := p.proof(); info.SidecarCgroup != sidecar {
					t.Errorf("%s: a listener on %s is taken for the sidecar: %+v, want cgroup %d", when, listen, info, sidecar)
				}
				l.Close()
			}
		}
		check("never a sidecar", 0)
		s := p.listen(listenerPort)
		sidecar := p.proof().SidecarCgroup
		if sidecar == 0 {
			t.Fatal("the sidecar's bind was not seen")
		}
		s.close()
		check("the sidecar is away", sidecar)

		// Beside the sidecar's own the port is free on other addresses.
		s = p.listen(listenerPort)
		for _, listen := range listens[2:] {
			l := listenTCP(t, listen)
			mustDial(t, to)
			s.next()
			if info := p.proof(); info.SidecarCgroup != sidecar {
				t.Errorf("a listener on %s took the sidecar's place: %+v", listen, info)
			}
			l.Close()
		}
	})
}

// Direct connections are counted while they are open, by where they go, for whoever asks.
func TestDirectConnectionsAreCounted(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{OutboundPorts: []uint16{50051, 50052}})
		a, _ := server(t, serverIP4.String()+":50051")
		b, _ := server(t, "["+serverIP6.String()+"]:50052")
		refused := netip.AddrPortFrom(serverIP4, 50052)

		want := func(why string, open4, open6 int64, total4, total6 uint64) {
			t.Helper()
			eventually(t, why, func() bool {
				d := p.directs()
				return d[a] == origdst.Direct{Destination: a, Open: open4, Total: total4} &&
					d[b] == origdst.Direct{Destination: b, Open: open6, Total: total6}
			}, func() any { return p.directs() })
		}
		if d := p.directs(); len(d) != 0 {
			t.Errorf("before any: got %v", d)
		}
		if _, err := dial(t.Context(), refused); err == nil {
			t.Fatal("nobody should listen at the refused address")
		}
		c1, c2, c3 := mustDial(t, a), mustDial(t, a), mustDial(t, b)
		m := rawConnect(t, unix.AF_INET6, a) // mapped: the same destination
		want("four opened", 3, 1, 3, 1)
		c1.Close()
		want("one closed in order", 2, 1, 3, 1)
		if err := c2.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		c2.Close()
		want("one reset", 1, 1, 3, 1)
		disconnect(t, m)
		want("one disconnected", 0, 1, 3, 1)

		// A connection through the sidecar is none, also with direct ones still open.
		s := p.listen(listenerPort)
		mustDial(t, a)
		s.next()
		want("the sidecar is there", 0, 1, 3, 1)
		c3.Close()
		want("all closed", 0, 0, 3, 1)
		if _, ok := p.directs()[refused]; ok {
			t.Error("a refused connect was counted as a connection")
		}
		if info := p.proof(); info.Direct != 4 || info.Redirected != 1 {
			t.Errorf("got %d direct, %d redirected, want 4 and 1", info.Direct, info.Redirected)
		}
	})
}

// A connection that its server closes is gone too, whichever way TCP ends it.
func TestDirectConnectionClosedByItsServer(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		to, got := server(t, serverIP4.String()+":50051")
		c := mustDial(t, to)
		peer := <-got
		peer.Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatalf("read after the server closed: %d, %v", n, err)
		}
		if d := p.directs()[to]; d.Open != 1 {
			t.Errorf("half closed: got %d open, want 1", d.Open)
		}
		c.Close()
		eventually(t, "closed by both", func() bool { return p.directs()[to].Open == 0 }, func() any { return p.directs() })
	})
}

// Beyond 511 destinations the rest is counted together.
func TestDirectConnectionsToManyDestinations(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		if out, err := exec.CommandContext(t.Context(), "ip", "route", "add", "local", "10.98.0.0/16", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		server(t, "0.0.0.0:50051")
		const all, known = 600, 511
		var conns []net.Conn
		for i := range all {
			conns = append(conns, mustDial(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 98, byte(i >> 8), byte(i)}), servicePort)))
		}
		d := p.directs()
		if len(d) != known+1 {
			t.Errorf("got %d entries, want %d destinations and the rest", len(d), known)
		}
		if rest := d[netip.AddrPort{}]; rest.Open != all-known || rest.Total != all-known {
			t.Errorf("the rest: got %+v, want %d", rest, all-known)
		}
		for _, c := range conns {
			c.Close()
		}
		eventually(t, "all closed", func() bool {
			for _, d := range p.directs() {
				if d.Open != 0 {
					return false
				}
			}
			return true
		}, func() any { return p.directs() })
	})
}

func eventually(t *testing.T, why string, ok func() bool, state func() any) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 15 s; last: %+v", why, state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
