// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// Every probe finds its feature here, so one that is wrong for its program type would show; and
// the same kind of probe can also fail.
func TestProbesFindWhatThisKernelHas(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads eBPF programs")
	}
	for _, f := range kernelFeatures() {
		if err := f.probe(); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	if err := Probe(); err != nil {
		t.Error(err)
	}
	if err := features.HaveProgramHelper(ebpf.CGroupSockopt, asm.FnSkAssign); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("a helper that getsockopt programs cannot have: got %v", err)
	}
	if err := tryLoad(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachSkLookup, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	}); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("an attach type of another program type: got %v", err)
	}
}

// An old kernel: every missing feature by name, with its release.
func TestMissingFeaturesAreNamed(t *testing.T) {
	err := missing([]feature{
		{"one", "5.8", func() error { return fmt.Errorf("x: %w", ebpf.ErrNotSupported) }},
		{"two", "5.9", func() error { return nil }},
		{"three", "5.15", func() error { return ebpf.ErrNotSupported }},
		{"four", "5.16", func() error { return errors.New("cannot tell") }},
	})
	if !errors.Is(err, ErrKernel) {
		t.Fatalf("got %v, want ErrKernel", err)
	}
	var fe *FeatureError
	if !errors.As(err, &fe) || fe.Feature != "one" || fe.Kernel != "5.8" {
		t.Errorf("got %+v", fe)
	}
	text := err.Error()
	for _, want := range []string{"lacks one, which Linux 5.8 brought", "lacks three, which Linux 5.15 brought", "needs Linux " + MinimumKernel} {
		if !strings.Contains(text, want) {
			t.Errorf("the error lacks %q: %s", want, text)
		}
	}
	for _, not := range []string{"two", "four"} {
		if strings.Contains(text, not) {
			t.Errorf("the error names %q: %s", not, text)
		}
	}
	// No feature may be younger than the floor that we promise.
	for _, f := range kernelFeatures() {
		var major, minor int
		if _, err := fmt.Sscanf(f.kernel, "%d.%d", &major, &minor); err != nil || major > 5 || (major == 5 && minor > 15) {
			t.Errorf("%s came with %s, the floor is %s (%v)", f.name, f.kernel, MinimumKernel, err)
		}
	}
}
