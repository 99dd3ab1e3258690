// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"testing"
	"unsafe"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// origdst writes the layouts of evenkeel.h once more, by hand, and tests its own against these
// numbers; here they are those of the compiled programs.
func TestLayoutOfTheContract(t *testing.T) {
	for name, c := range map[string]struct{ got, want uintptr }{
		"evk_addr":                  {unsafe.Sizeof(bpf.EvenkeelEvkAddr{}), 20},
		"evk_direct":                {unsafe.Sizeof(bpf.EvenkeelEvkDirect{}), 40},
		"evk_direct.open":           {unsafe.Offsetof(bpf.EvenkeelEvkDirect{}.Open), 24},
		"evk_config":                {unsafe.Sizeof(bpf.EvenkeelEvkConfig{}), 184},
		"evk_config.listener_port":  {unsafe.Offsetof(bpf.EvenkeelEvkConfig{}.ListenerPort), 6},
		"evk_config.sidecar_cgroup": {unsafe.Offsetof(bpf.EvenkeelEvkConfig{}.SidecarCgroup), 16},
		"evk_config.prog_ids":       {unsafe.Offsetof(bpf.EvenkeelEvkConfig{}.ProgIds), 24},
		"evk_config.ports":          {unsafe.Offsetof(bpf.EvenkeelEvkConfig{}.Ports), 56},
		"evk_state":                 {unsafe.Sizeof(bpf.EvenkeelEvkState{}), 32},
		"EVK_HOOKS":                 {uintptr(len(bpf.EvenkeelEvkConfig{}.ProgIds)), origdst.NumHooks},
		"EVK_MAX_PORTS":             {uintptr(len(bpf.EvenkeelEvkConfig{}.Ports)), MaxOutboundPorts},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d: raise EVK_ABI and change origdst with it", name, c.got, c.want)
		}
	}
}

// A program's name in the kernel is how it is recognised; the kernel cuts it at 15 bytes.
func TestProgramNamesFit(t *testing.T) {
	seen := map[int]bool{}
	for _, h := range hooks() {
		if len(h.program) > 15 {
			t.Errorf("%s has %d bytes", h.program, len(h.program))
		}
		seen[h.index] = true
	}
	if len(seen) != origdst.NumHooks {
		t.Errorf("indexes %v, want each once", seen)
	}
}
