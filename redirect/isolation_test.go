// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// Two sandboxes and an innocent, all in one network namespace.
func TestCgroupsDoNotTouchEachOther(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		pods := []*pod{}
		for i, name := range []string{"one", "two"} {
			q := &pod{t: t, cgroup: filepath.Join(p.cgroup, name)}
			q.sidecar, q.app = filepath.Join(q.cgroup, "sidecar"), filepath.Join(q.cgroup, "app")
			for _, dir := range []string{q.cgroup, q.sidecar, q.app} {
				mkCgroup(t, dir)
			}
			q.attach(redirect.Config{ListenerPort: uint16(16001 + i)})
			pods = append(pods, q)
		}
		t.Cleanup(func() { enter(t, p.app) })
		one, two := pods[0].listen(16001), pods[1].listen(16002)
		to, got := server(t, serverIP4.String()+":50051")

		enter(t, pods[0].app)
		mustDial(t, to)
		one.next()
		enter(t, pods[1].app)
		mustDial(t, to)
		two.next()
		enter(t, pods[0].sidecar)
		mustDial(t, to)
		arrived(t, got, "the first sidecar's own")
		enter(t, pods[1].sidecar)
		mustDial(t, to)
		arrived(t, got, "the second sidecar's own")
		enter(t, p.app)
		mustDial(t, to)
		arrived(t, got, "a process beside them")
		if _, err := origdst.ProofOfProcess(); err == nil {
			t.Error("a process beside them gets an answer")
		}
		one.none("others")
		two.none("others")
		// One listener goes: its app fails open, the other's does not notice.
		one.close()
		enter(t, pods[0].app)
		mustDial(t, to)
		arrived(t, got, "the first listener is gone")
		enter(t, pods[1].app)
		mustDial(t, to)
		two.next()
	})
}

// A copy on a cgroup below another's (a sandbox in an injected pod) acts alone for its processes.
func TestCopyBelowACopy(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		inner := &pod{t: t, cgroup: filepath.Join(p.cgroup, "inner")}
		inner.sidecar, inner.app = filepath.Join(inner.cgroup, "sidecar"), filepath.Join(inner.cgroup, "app")
		for _, dir := range []string{inner.cgroup, inner.sidecar, inner.app} {
			mkCgroup(t, dir)
		}
		t.Cleanup(func() { enter(t, p.app) })
		a := inner.attach(redirect.Config{ListenerPort: 16001})
		outerSidecar, innerSidecar := p.listen(listenerPort), inner.listen(16001)

		enter(t, inner.app)
		if info := inner.proof(); info.ListenerPort != 16001 || info.ProgramIDs != a.ProgramIDs {
			t.Errorf("the outer copy answers for the inner: %+v", info)
		}
		if err := origdst.Verify(); err != nil {
			t.Error(err)
		}
		c := mustDial(t, service4())
		if got := innerSidecar.next(); got.orig != service4() {
			t.Errorf("inner: got %v, %v", got.orig, got.err)
		}
		if c.RemoteAddr().String() != service4().String() {
			t.Errorf("getpeername: got %v", c.RemoteAddr())
		}
		// What the inner sidecar sends out is for the outer one.
		enter(t, inner.sidecar)
		mustDial(t, service4())
		if got := outerSidecar.next(); got.orig != service4() {
			t.Errorf("outer: got %v, %v", got.orig, got.err)
		}
		enter(t, p.app)
		mustDial(t, service4())
		outerSidecar.next()
		innerSidecar.none("the outer app")
	})
}

// Programs of others on our cgroup, above and below it run as before.
func TestForeignProgramsStillRun(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		middle := filepath.Join(p.cgroup, "middle")
		inner := filepath.Join(middle, "app")
		mkCgroup(t, middle)
		mkCgroup(t, inner)
		t.Cleanup(func() { enter(t, p.app) })
		calls := map[string]func() uint64{}
		for name, dir := range map[string]string{"above": p.cgroup, "beside": middle, "below": inner} {
			prog, n := counting(t)
			attachForeign(t, dir, prog, ebpf.AttachCGroupInet4Connect, flagMulti)
			calls[name] = n
		}
		q := &pod{t: t, cgroup: middle, sidecar: p.sidecar, app: inner}
		q.sidecar = filepath.Join(middle, "sidecar")
		mkCgroup(t, q.sidecar)
		q.attach(redirect.Config{})
		s := q.listen(listenerPort)
		mustDial(t, service4())
		s.next()
		for name, n := range calls {
			if n() != 1 {
				t.Errorf("the program %s ran %d times, want 1", name, n())
			}
		}
	})
}

// A network namespace made inside the pod (kind, docker in docker) has a loopback of its own:
// nothing there is taken for the pod's sidecar, and what it dials is none of our business.
func TestNetworkNamespaceInsideThePod(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		before := p.proof()

		done := make(chan struct{})
		go func() {
			defer close(done)
			lockForEver()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			(&pod{t: t}).upNetwork()
			to, got := server(t, serverIP4.String()+":50051")
			c := mustDial(t, to)
			arrived(t, got, "nobody listens in the inner namespace")
			c.Close()
			// Its own sidecar, by the same port; the process is the app's.
			server(t, "127.0.0.1:15951")
			inner, err := origdst.ProofOfProcess()
			if err != nil || inner.NetNS == before.NetNS || !inner.Own() {
				t.Errorf("inner proof: %+v, %v", inner, err)
			}
			c = mustDial(t, to)
			arrived(t, got, "the inner sidecar's own")
			c.Close()
		}()
		<-done
		if t.Failed() {
			return
		}
		after := p.proof()
		if after.SidecarCgroup != before.SidecarCgroup || after.Direct != 0 {
			t.Errorf("the pod's sidecar was displaced, or the inner connections counted: before %+v, after %+v", before, after)
		}
		mustDial(t, service4())
		s.next()
	})
}

// Go listens with MPTCP unless told otherwise. Such a listener works for plain TCP clients, and
// the programs cannot tell it from a plain one (its subflow is TCP); but of an MPTCP client the
// sidecar then learns nothing. Hence the rule of origdst's Limitations.
func TestMultipathListener(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		enter(t, p.sidecar)
		fd := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if err := unix.Bind(fd, sockaddr(unix.AF_INET, netip.MustParseAddrPort("127.0.0.1:15951"))); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(fd, 16); err != nil {
			t.Fatal(err)
		}
		enter(t, p.app)
		for _, proto := range []int{unix.IPPROTO_TCP, unix.IPPROTO_MPTCP} {
			c := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, proto)
			if err := unix.Connect(c, sockaddr(unix.AF_INET, service4())); err != nil {
				t.Fatal(err)
			}
			a, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			orig, err := origdst.Lookup(a)
			unix.Close(a)
			switch {
			case proto == unix.IPPROTO_TCP && orig != service4():
				t.Errorf("plain client: got %v, %v, want %v", orig, err, service4())
			case proto == unix.IPPROTO_MPTCP && err == nil:
				t.Errorf("MPTCP client: got %v: MPTCP listeners work now, and the rule can go", orig)
			}
		}
	})
}

// An app may use MPTCP. What it dials comes to the sidecar as plain TCP.
func TestMultipathClientIsRedirected(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		fd := rawSocket(t, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if err := unix.Connect(fd, sockaddr(unix.AF_INET, service4())); err != nil {
			t.Fatal(err)
		}
		if a := s.next(); a.orig != service4() {
			t.Errorf("got %v, %v", a.orig, a.err)
		}
		// The kernel asks our program about the MPTCP socket, which the connect of its subflow
		// has not marked: a limitation told in doc.go.
		if got := peerName(t, fd); got == service4() {
			t.Error("getpeername of MPTCP sockets works now: strike the limitation from doc.go")
		}
	})
}

// SYN cookies make the accepted socket another way.
func TestSynCookies(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		sysctl(t, "net/ipv4/tcp_syncookies", "2") // always
		p.attach(redirect.Config{})
		s := p.listen(listenerPort)
		for _, to := range []netip.AddrPort{service4(), service6()} {
			mustDial(t, to)
			if a := s.next(); a.orig != to {
				t.Errorf("got %v, %v, want %v", a.orig, a.err, to)
			}
		}
	})
}

// The programs of a copy that nobody enabled, or none, answer nothing.
func TestNotEffective(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		if _, err := origdst.ProofOfProcess(); err == nil || !strings.Contains(err.Error(), "not effective") {
			t.Errorf("proof without a redirect: %v", err)
		}
		if err := origdst.Verify(); err == nil || !strings.Contains(err.Error(), "not effective") {
			t.Errorf("verify without a redirect: %v", err)
		}
	})
}

// lockForEver keeps this goroutine's thread to itself, and ends the thread with the goroutine:
// namespaces that it changes are not left to others.
func lockForEver() { runtime.LockOSThread() }
