// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// The contract's numbers, as in bpf/evenkeel.h.
const (
	magic   = 0x4c4b5645
	loadABI = origdst.ABI
)

// load brings the programs into the kernel, attached to nothing. With maps of an older copy of
// the same ABI they share its memory, and so its live connections and counters.
func load(old *bpf.EvenkeelMaps) (*bpf.EvenkeelObjects, error) {
	opts := &ebpf.CollectionOptions{}
	if old != nil {
		opts.MapReplacements = map[string]*ebpf.Map{}
		for name, slot := range mapSlots(old) {
			if *slot != nil {
				opts.MapReplacements[name] = *slot
			}
		}
	}
	objects := &bpf.EvenkeelObjects{}
	if err := bpf.LoadEvenkeelObjects(objects, opts); err != nil {
		return nil, explainLoad(err)
	}
	if old == nil {
		// Slot 0 of the direct connections stands for all that have no slot of their own.
		if err := objects.EvkState.Put(uint32(0), bpf.EvenkeelEvkState{DirectSlots: 1}); err != nil {
			objects.Close()
			return nil, fmt.Errorf("prepare the state map: %w", err)
		}
	}
	return objects, nil
}

// explainLoad turns "operation not permitted" and "invalid argument" into what is missing.
func explainLoad(err error) error {
	if errors.Is(err, unix.EPERM) {
		for _, c := range []capability{capBPF, capNetAdmin} {
			if held, capErr := effectiveCapabilities(); capErr == nil && held&(1<<c|1<<capSysAdmin) == 0 {
				return fmt.Errorf("load the redirect's programs: %w", lacking(c, unix.EPERM))
			}
		}
	}
	if missing := Probe(); missing != nil {
		return fmt.Errorf("load the redirect's programs: %w", missing)
	}
	if tail := verifierTail(err); tail != "" {
		return fmt.Errorf("load the redirect's programs: the kernel's verifier refused them although it has every feature that they need; please report this with the kernel's version: %w\n%s", err, tail)
	}
	return fmt.Errorf("load the redirect's programs: %w", err)
}

// rawConfig is the content of the configuration map, disabled.
func (c Config) rawConfig() bpf.EvenkeelEvkConfig {
	raw := bpf.EvenkeelEvkConfig{
		Magic:         magic,
		Abi:           loadABI,
		ListenerPort:  c.ListenerPort,
		N_ports:       uint32(len(c.OutboundPorts)),
		SidecarCgroup: c.SidecarCgroup,
	}
	copy(raw.Ports[:], c.OutboundPorts)
	return raw
}
