// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"errors"
	"net/netip"
	"os"
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
