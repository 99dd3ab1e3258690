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
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// hook names one of our programs for what tests do to it behind the library's back.
type testHook struct {
	program string
	attach  ebpf.AttachType
}

func testHooks() []testHook {
	return []testHook{
		{bpf.EvenkeelProgEvkConnect4, ebpf.AttachCGroupInet4Connect},
		{bpf.EvenkeelProgEvkConnect6, ebpf.AttachCGroupInet6Connect},
		{bpf.EvenkeelProgEvkGetpeer4, ebpf.AttachCgroupInet4GetPeername},
		{bpf.EvenkeelProgEvkGetpeer6, ebpf.AttachCgroupInet6GetPeername},
		{bpf.EvenkeelProgEvkPostBind4, ebpf.AttachCGroupInet4PostBind},
		{bpf.EvenkeelProgEvkPostBind6, ebpf.AttachCGroupInet6PostBind},
		{bpf.EvenkeelProgEvkSockops, ebpf.AttachCGroupSockOps},
		{bpf.EvenkeelProgEvkGetsockopt, ebpf.AttachCGroupGetsockopt},
	}
}

// oneCopy asserts that exactly one program hangs at each of our hooks.
func oneCopy(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, h := range testHooks() {
		res, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: h.attach})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Programs) != 1 {
			t.Errorf("%s: %d programs attached, want 1", h.program, len(res.Programs))
		}
	}
}

// attachForeign attaches a program of somebody else.
func attachForeign(t *testing.T, dir string, prog *ebpf.Program, at ebpf.AttachType, flags uint32) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: at, Flags: flags}); err != nil {
		t.Fatal(err)
	}
}

const (
	flagExclusive = 0
	flagOverride  = 1
	flagMulti     = 2
)

// idle is a connect4 program that does nothing but allow.
func idle(t *testing.T, name string) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(idleSpec(name, ebpf.AttachCGroupInet4Connect))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

func idleSpec(name string, at ebpf.AttachType) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{
		Name: name, Type: ebpf.CGroupSockAddr, AttachType: at, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	}
}

// counting is a connect4 program that counts its calls in the map returned.
func counting(t *testing.T) (*ebpf.Program, func() uint64) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "counting", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog, func() uint64 {
		var n uint64
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// An init container runs again; so may an agent. Connections live on through it.
func TestAttachTwiceIsOneCopy(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		first := p.attach(redirect.Config{})
		if first.Outcome != redirect.Attached {
			t.Errorf("first: got %q", first.Outcome)
		}
		direct, _ := server(t, serverIP4.String()+":50051")
		mustDial(t, direct)
		s := p.listen(listenerPort)
		fd := rawConnect(t, unix.AF_INET, service4())
		a := s.next()

		for range 3 {
			again := p.attach(redirect.Config{})
			if again.Outcome != redirect.Kept || again.ProgramIDs != first.ProgramIDs {
				t.Errorf("again: got %q with programs %v, want kept with %v", again.Outcome, again.ProgramIDs, first.ProgramIDs)
			}
			oneCopy(t, p.cgroup)
		}
		if got := peerName(t, fd); got != service4() {
			t.Errorf("getpeername of a connection from before: got %v", got)
		}
		control(a.conn, func(fd int) {
			if got, err := origdst.Lookup(fd); got != service4() {
				t.Errorf("original of a connection from before: got %v, %v", got, err)
			}
		})
		if d := p.directs()[direct]; d.Open != 1 {
			t.Errorf("direct count from before: got %+v", d)
		}
		mustDial(t, service4())
		s.next()

		// Other settings: the same copy, told.
		if a := p.attach(redirect.Config{OutboundPorts: []uint16{50051, 9090}}); a.Outcome != redirect.Kept {
			t.Errorf("with another port: got %q", a.Outcome)
		}
		other := netip.AddrPortFrom(clusterIP4, 9090)
		mustDial(t, other)
		if a := s.next(); a.orig != other {
			t.Errorf("the new port: got %v", a.orig)
		}
		// And one that is no longer asked for.
		p.attach(redirect.Config{OutboundPorts: []uint16{9090}})
		if got := p.proof().Ports; !slices.Equal(got, []uint16{9090}) {
			t.Errorf("proof: got ports %v", got)
		}
		mustDial(t, direct)
		s.none("a port that was taken away")
	})
}

// Two at the same time are one after the other.
func TestConcurrentAttachIsOneCopy(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		var wg sync.WaitGroup
		outcomes := make(chan redirect.Outcome, 8)
		for range cap(outcomes) {
			wg.Go(func() {
				a, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: p.cgroup})
				if err != nil {
					t.Error(err)
					return
				}
				a.Close()
				outcomes <- a.Outcome
			})
		}
		wg.Wait()
		close(outcomes)
		var fresh int
		for o := range outcomes {
			if o == redirect.Attached {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%d of the calls attached a copy, want 1", fresh)
		}
		oneCopy(t, p.cgroup)
		if err := origdst.Verify(); err != nil {
			t.Error(err)
		}
	})
}

// A copy of another build with the same ABI hands its maps, and so its connections, over.
func TestReplacesOtherBuildKeepingConnections(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		otherBuild(t, p.cgroup)
		if p.proof().ListenerPort != listenerPort {
			t.Fatal("the other build does not act")
		}
		s := p.listen(listenerPort)
		fd := rawConnect(t, unix.AF_INET, service4())
		accepted := s.next()

		// Load it with connects while it is replaced: none may lose its destination.
		stop, failed := make(chan struct{}), make(chan error, 1)
		var n int
		go func() {
			defer close(failed)
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := dial(t.Context(), service4())
				if err != nil {
					failed <- err
					return
				}
				c.Close()
				n++
			}
		}()
		a := p.attach(redirect.Config{})
		close(stop)
		if err := <-failed; err != nil {
			t.Errorf("dial while replacing: %v", err)
		}
		for range n {
			got := <-s.got
			if got.orig != service4() {
				t.Errorf("a connect while replacing: got %v, %v", got.orig, got.err)
			}
			got.conn.Close()
		}
		if a.Outcome != redirect.Replaced {
			t.Errorf("got %q, want replaced", a.Outcome)
		}
		oneCopy(t, p.cgroup)
		if err := origdst.Verify(); err != nil {
			t.Error(err)
		}
		if got := peerName(t, fd); got != service4() {
			t.Errorf("getpeername of a connection from before: got %v", got)
		}
		control(accepted.conn, func(fd int) {
			if got, err := origdst.Lookup(fd); got != service4() {
				t.Errorf("original of a connection from before: got %v, %v", got, err)
			}
		})
		if info := p.proof(); info.SidecarCgroup == 0 || info.ProgramIDs != a.ProgramIDs {
			t.Errorf("the sidecar was forgotten, or the old programs answer: %+v, want programs %v", info, a.ProgramIDs)
		}
	})
}

// otherBuild attaches our programs, each with one more instruction.
func otherBuild(t *testing.T, dir string) {
	t.Helper()
	spec, err := bpf.LoadEvenkeel()
	if err != nil {
		t.Fatal(err)
	}
	for _, prog := range spec.Programs {
		first := prog.Instructions[0]
		more := asm.Mov.Imm(asm.R0, 0).WithMetadata(first.Metadata)
		prog.Instructions[0].Metadata = asm.Metadata{}
		prog.Instructions = append(asm.Instructions{more}, prog.Instructions...)
	}
	var objects bpf.EvenkeelObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	defer objects.Close()
	cfg := bpf.EvenkeelEvkConfig{Magic: 0x4c4b5645, Abi: origdst.ABI, ListenerPort: listenerPort, Enabled: 1, N_ports: 1}
	cfg.Ports[0] = servicePort
	if err := objects.EvkConfig.Put(uint32(0), cfg); err != nil {
		t.Fatal(err)
	}
	if err := objects.EvkPorts.Put(uint16(servicePort), uint8(1)); err != nil {
		t.Fatal(err)
	}
	if err := objects.EvkState.Put(uint32(0), bpf.EvenkeelEvkState{DirectSlots: 1}); err != nil {
		t.Fatal(err)
	}
	progs := map[string]*ebpf.Program{
		bpf.EvenkeelProgEvkConnect4: objects.EvkConnect4, bpf.EvenkeelProgEvkConnect6: objects.EvkConnect6,
		bpf.EvenkeelProgEvkGetpeer4: objects.EvkGetpeer4, bpf.EvenkeelProgEvkGetpeer6: objects.EvkGetpeer6,
		bpf.EvenkeelProgEvkPostBind4: objects.EvkPostBind4, bpf.EvenkeelProgEvkPostBind6: objects.EvkPostBind6,
		bpf.EvenkeelProgEvkSockops: objects.EvkSockops, bpf.EvenkeelProgEvkGetsockopt: objects.EvkGetsockopt,
	}
	for _, h := range testHooks() {
		attachForeign(t, dir, progs[h.program], h.attach, flagMulti)
	}
}

// What an interrupted attach has left does nothing, and goes with the next.
func TestInterruptedAttachIsInertAndCleanedUp(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		for range 2 {
			var objects bpf.EvenkeelObjects
			if err := bpf.LoadEvenkeelObjects(&objects, nil); err != nil {
				t.Fatal(err)
			}
			// All is written but the switch.
			cfg := bpf.EvenkeelEvkConfig{Magic: 0x4c4b5645, Abi: origdst.ABI, ListenerPort: listenerPort, N_ports: 1}
			cfg.Ports[0] = servicePort
			if err := errors.Join(objects.EvkConfig.Put(uint32(0), cfg), objects.EvkPorts.Put(uint16(servicePort), uint8(1))); err != nil {
				t.Fatal(err)
			}
			attachForeign(t, p.cgroup, objects.EvkGetsockopt, ebpf.AttachCGroupGetsockopt, flagMulti)
			attachForeign(t, p.cgroup, objects.EvkConnect4, ebpf.AttachCGroupInet4Connect, flagMulti)
			attachForeign(t, p.cgroup, objects.EvkPostBind4, ebpf.AttachCGroupInet4PostBind, flagMulti)
			objects.Close()
		}
		early := p.listen(listenerPort)
		to, got := server(t, serverIP4.String()+":50051")
		mustDial(t, to)
		arrived(t, got, "an interrupted attach")
		early.close()
		if _, err := origdst.ProofOfProcess(); !errors.Is(err, origdst.ErrNotEffective) {
			t.Errorf("proof of an interrupted attach: got %v, want ErrNotEffective", err)
		}
		st, err := redirect.Query(t.Context(), p.cgroup)
		if err != nil || st.Acting || len(st.Programs) != 6 {
			t.Errorf("status of the remains: got %+v, %v", st, err)
		}
		if a := p.attach(redirect.Config{}); a.Outcome != redirect.Attached {
			t.Errorf("got %q, want attached", a.Outcome)
		}
		oneCopy(t, p.cgroup)
		s := p.listen(listenerPort)
		mustDial(t, service4())
		s.next()
	})
}

// A program that somebody detaches is missed by Verify, by name, and brought back by Attach.
func TestVerifyMissesADetachedProgram(t *testing.T) {
	inPod(t, func(t *testing.T, p *pod) {
		for _, h := range testHooks() {
			a := p.attach(redirect.Config{})
			if err := origdst.Verify(); err != nil {
				t.Fatalf("complete: %v", err)
			}
			detachOne(t, p.cgroup, h.attach)
			err := origdst.Verify()
			if !errors.Is(err, origdst.ErrNotEffective) {
				t.Errorf("%s detached: Verify got %v, want ErrNotEffective", h.program, err)
			}
			name := map[string]string{bpf.EvenkeelProgEvkGetpeer4: "getpeername4", bpf.EvenkeelProgEvkGetpeer6: "getpeername6"}[h.program]
			if name == "" {
				name = strings.TrimPrefix(h.program, "evk_")
			}
			if h.attach != ebpf.AttachCGroupGetsockopt && !strings.Contains(err.Error(), ": "+name) {
				t.Errorf("%s detached: the error does not name it: %v", h.program, err)
			}
			a.Close()
		}
		p.attach(redirect.Config{})
		oneCopy(t, p.cgroup)
		if err := origdst.Verify(); err != nil {
			t.Error(err)
		}
	})
}

func detachOne(t *testing.T, dir string, at ebpf.AttachType) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: at})
	if err != nil || len(res.Programs) != 1 {
		t.Fatalf("%v: %v programs, %v", at, res, err)
	}
	prog, err := ebpf.NewProgramFromID(res.Programs[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: at}); err != nil {
		t.Fatal(err)
	}
}

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

// pending counts the entries of the map that hands destinations over.
func (p *pod) pending() int {
	p.t.Helper()
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.proof().ProgramIDs[6])) // sockops
	if err != nil {
		p.t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		p.t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			p.t.Fatal(err)
		}
		defer m.Close()
		if mi, err := m.Info(); err != nil || mi.Name != bpf.EvenkeelMapEvkPending {
			continue
		}
		n := 0
		var key bpf.EvenkeelEvkPendingKey
		var value bpf.EvenkeelEvkAddr
		for entries := m.Iterate(); entries.Next(&key, &value); {
			n++
		}
		return n
	}
	p.t.Fatal("no pending map")
	return 0
}
