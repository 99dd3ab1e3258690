// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"evenkeel.dev/redirect"
)

// Another's program that excludes ours, or that ours would silence, is named and nothing is done.
func TestRefusesToSilenceOthers(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name  string
		where int // 0: our cgroup, 1: its parent, 2: the grandparent
		flags uint32
		want  []string
	}{
		{"exclusive on the parent", 1, flagExclusive, []string{"as exclusive", "no program on the cgroups below"}},
		{"exclusive further up", 2, flagExclusive, []string{"as exclusive", "no program on the cgroups below"}},
		{"override on the parent", 1, flagOverride, []string{"BPF_F_ALLOW_OVERRIDE", "would stop running for this pod"}},
		{"override further up", 2, flagOverride, []string{"BPF_F_ALLOW_OVERRIDE", "would stop running for this pod"}},
		{"exclusive here", 0, flagExclusive, []string{"as exclusive", "does not mix"}},
		{"override here", 0, flagOverride, []string{"BPF_F_ALLOW_OVERRIDE", "does not mix"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dirs := threeCgroups(t)
			prog := idle(t, "their_connect")
			attachForeign(t, dirs[c.where], prog, ebpf.AttachCGroupInet4Connect, c.flags)
			_, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: dirs[0]})
			var conflict *redirect.ConflictError
			if !errors.As(err, &conflict) {
				t.Fatalf("got %v, want a ConflictError", err)
			}
			info, infoErr := prog.Info()
			if infoErr != nil {
				t.Fatal(infoErr)
			}
			id, _ := info.ID()
			if conflict.Hook != "connect4" || conflict.Program != id || conflict.Name != "their_connect" || conflict.Cgroup != dirs[c.where] {
				t.Errorf("got %+v, want connect4, program %d, their_connect, %s", conflict, id, dirs[c.where])
			}
			for _, want := range append(c.want, `"their_connect"`, dirs[c.where], "bpftool") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if n := ours(t, dirs[0]); n != 0 {
				t.Errorf("%d programs were attached all the same", n)
			}
		})
	}
}

// An override program that does not run for this pod anyway is no reason to refuse.
func TestAttachesWhereAnOverrideIsOutOfUse(t *testing.T) {
	needRoot(t)
	dirs := threeCgroups(t)
	attachForeign(t, dirs[2], idle(t, "their_connect"), ebpf.AttachCGroupInet4Connect, flagOverride)
	attachForeign(t, dirs[1], idle(t, "between"), ebpf.AttachCGroupInet4Connect, flagMulti)
	a, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: dirs[0]})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
}

// When the last hook fails nothing of the others stays.
func TestFailedAttachLeavesNothing(t *testing.T) {
	needRoot(t)
	dirs := threeCgroups(t)
	// The kernel takes 64 programs per hook.
	for range 64 {
		attachForeign(t, dirs[0], ebpfProgram(t, ebpf.AttachCGroupInet6Connect), ebpf.AttachCGroupInet6Connect, flagMulti)
	}
	_, err := redirect.Attach(t.Context(), redirect.Config{Cgroup: dirs[0]})
	if err == nil || !strings.Contains(err.Error(), "64 programs") || !strings.Contains(err.Error(), "connect6") {
		t.Errorf("got %v, want what is full", err)
	}
	if n := ours(t, dirs[0]); n != 64 {
		t.Errorf("%d programs are attached, want the 64 from before", n)
	}
}

func ebpfProgram(t *testing.T, at ebpf.AttachType) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(idleSpec("filler", at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// threeCgroups makes a cgroup, its parent and its grandparent, in this order.
func threeCgroups(t *testing.T) [3]string {
	t.Helper()
	top := newCgroup(t, "top")
	parent := filepath.Join(top, "parent")
	pod := filepath.Join(parent, "pod")
	mkCgroup(t, parent)
	mkCgroup(t, pod)
	return [3]string{pod, parent, top}
}

// ours counts the programs attached at all of our hooks.
func ours(t *testing.T, dir string) (n int) {
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
		for _, p := range res.Programs {
			prog, err := ebpf.NewProgramFromID(p.ID)
			if err != nil {
				continue
			}
			if info, err := prog.Info(); err == nil && info.Name != "their_connect" {
				n++
			}
			prog.Close()
		}
	}
	return n
}
