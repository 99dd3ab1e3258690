// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// The sandbox detaches; a pod needs not.
func TestDetachTakesOnlyOurs(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		foreign, calls := counting(t)
		attachForeign(t, p.cgroup, foreign, ebpf.AttachCGroupInet4Connect, flagMulti)
		p.attach(redirect.Config{})
		if n, err := redirect.Detach(t.Context(), p.cgroup); err != nil || n != origdst.NumHooks {
			t.Fatalf("detach: got %d, %v, want %d", n, err, origdst.NumHooks)
		}
		if _, err := origdst.ProofOfProcess(); !errors.Is(err, origdst.ErrNotEffective) {
			t.Errorf("after detach: got %v", err)
		}
		to, got := server(t, serverIP4.String()+":50051")
		mustDial(t, to)
		arrived(t, got, "detached")
		if calls() != 1 {
			t.Errorf("the foreign program ran %d times, want 1: it must have stayed", calls())
		}
		if n, err := redirect.Detach(t.Context(), p.cgroup); err != nil || n != 0 {
			t.Errorf("second detach: got %d, %v", n, err)
		}
	})
}

// Revert needs no more than Attach.
func TestRevert(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		a := p.attach(redirect.Config{})
		kept := p.attach(redirect.Config{})
		if err := kept.Revert(t.Context()); err != nil {
			t.Fatal(err)
		}
		oneCopy(t, p.cgroup) // what was kept stays
		if err := a.Revert(t.Context()); err != nil {
			t.Fatal(err)
		}
		st, err := redirect.Query(t.Context(), p.cgroup)
		if err != nil || len(st.Programs) != 0 {
			t.Errorf("after revert: %+v, %v", st, err)
		}
	})
}

// The programs end with the cgroup: nothing has to be cleaned up after a pod.
func TestProgramsEndWithTheCgroup(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(newCgroup(t, "parent"), "pod")
	mkCgroup(t, dir)
	a, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: dir})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	alive := func() (n int) {
		for _, id := range a.ProgramIDs {
			if prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
				prog.Close()
				n++
			}
		}
		return n
	}
	if n := alive(); n != origdst.NumHooks {
		t.Fatalf("after Close %d programs live, want all %d: they must not need us", n, origdst.NumHooks)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel frees them", func() bool { return alive() == 0 }, func() any { return alive() })
}

// The sidecar listened before the redirect came: an agent attaching to a running pod.
func TestLateAttach(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		s := p.listen(listenerPort)
		to, got := server(t, net.JoinHostPort(serverIP4.String(), "50051"))
		p.attach(redirect.Config{})
		mustDial(t, to)
		arrived(t, got, "whose the listener is was not told: redirecting could loop")
		if p.proof().SidecarCgroup != 0 {
			t.Error("no bind was seen")
		}

		id, err := redirect.CgroupID(p.sidecar)
		if err != nil {
			t.Fatal(err)
		}
		p.attach(redirect.Config{SidecarCgroup: id})
		mustDial(t, to)
		if a := s.next(); a.orig != to {
			t.Errorf("got %v", a.orig)
		}
		enter(t, p.sidecar)
		mustDial(t, to)
		arrived(t, got, "the sidecar's own")
		if !p.proof().Own() {
			t.Error("the sidecar does not know itself")
		}
		enter(t, p.app)
		// Attaching again without the id does not forget it.
		p.attach(redirect.Config{})
		mustDial(t, to)
		s.next()
	})
}

func TestStatus(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		st, err := redirect.Query(t.Context(), p.cgroup)
		if err != nil || st.Acting || len(st.Programs) != 0 || !strings.Contains(st.String(), "no redirect acts on "+p.cgroup) {
			t.Errorf("nothing attached: %+v, %v", st, err)
		}
		a := p.attach(redirect.Config{OutboundPorts: []uint16{9090, 50051, 9090}, ListenerPort: 15999})
		direct, _ := server(t, serverIP4.String()+":50051")
		mustDial(t, direct)
		s := p.listen(15999)
		mustDial(t, service4())
		s.next()
		st, err = redirect.Query(t.Context(), p.cgroup)
		if err != nil {
			t.Fatal(err)
		}
		sidecar, err := redirect.CgroupID(p.sidecar)
		if err != nil {
			t.Fatal(err)
		}
		if !st.Acting || st.ListenerPort != 15999 || !slices.Equal(st.OutboundPorts, []uint16{9090, 50051}) ||
			st.Redirected != 1 || st.Direct != 1 || st.Lost != 0 || len(st.Programs) != origdst.NumHooks ||
			len(st.Sidecars) != 1 || st.Sidecars[0].Cgroup != sidecar || st.Sidecars[0].NetNS == 0 ||
			!slices.Equal(st.Directs, []redirect.Direct{{Destination: direct, Open: 1, Total: 1}}) {
			t.Errorf("got %+v", st)
		}
		for _, prog := range st.Programs {
			if !slices.Contains(a.ProgramIDs[:], prog.ID) || prog.Tag == "" {
				t.Errorf("program %+v is none of %v", prog, a.ProgramIDs)
			}
		}
		for _, want := range []string{"ports [9090 50051]", "port 15999", "1 connects redirected, 1 connections direct", "direct: 10.99.0.1:50051, 1 open of 1"} {
			if !strings.Contains(st.String(), want) {
				t.Errorf("text lacks %q:\n%s", want, st)
			}
		}
	})
}

func TestConfigErrors(t *testing.T) {
	many := make([]uint16, redirect.MaxOutboundPorts+1)
	for i := range many {
		many[i] = uint16(i + 1)
	}
	_, err := redirect.Attach(t.Context(), redirect.Config{OutboundPorts: append(many, 0, 15951)})
	for _, want := range []string{"no directory given as Cgroup", "67 ports, at most 64", "0 is not a port", "15951 is also ListenerPort"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	for _, dir := range []string{"/proc", "/nonexistent", cgroupRoot(t)} {
		if _, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: dir}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want a refusal that names it", dir, err)
		}
	}
}

// As many ports as there may be, the last as good as the first.
func TestAllPortsOfTheBound(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		var ports []uint16
		for i := range redirect.MaxOutboundPorts {
			ports = append(ports, uint16(20000+7*i))
		}
		p.attach(redirect.Config{OutboundPorts: ports})
		if got := p.proof().Ports; !slices.Equal(got, ports) {
			t.Errorf("proof: got %v, want %v", got, ports)
		}
		s := p.listen(listenerPort)
		for _, port := range ports {
			mustDial(t, netip.AddrPortFrom(clusterIP4, port))
			if a := s.next(); a.orig.Port() != port {
				t.Errorf("got %v, want port %d", a.orig, port)
			}
		}
	})
}
