// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// attached is what of ours hangs at a cgroup.
type attached struct {
	// programs are ours, per hook (index into hooks()), oldest first.
	programs [origdst.NumHooks][]*ebpf.Program
	// unreadable counts the programs at our hooks whose names this process may not read
	// (BPF_PROG_GET_FD_BY_ID wants CAP_SYS_ADMIN); ids has them all, per hook.
	unreadable int
	ids        [origdst.NumHooks][]ebpf.ProgramID
}

// findAttached lists the programs of the cgroup and opens those of ours, known by their names.
func findAttached(cg *cgroup) (*attached, error) {
	a := &attached{}
	for i, h := range hooks() {
		ids, _, err := queryPrograms(cg.fd(), h.attach, attachedHere)
		if err != nil {
			a.Close()
			return nil, err
		}
		a.ids[i] = ids
		for _, id := range ids {
			prog, err := ebpf.NewProgramFromID(id)
			switch {
			case errors.Is(err, unix.EPERM):
				a.unreadable++
				continue
			case errors.Is(err, unix.ENOENT):
				continue // detached since the query
			case err != nil:
				a.Close()
				return nil, fmt.Errorf("%s program %d of %s: %w", h.name, id, cg.path, err)
			}
			info, err := prog.Info()
			if err != nil || !h.isOurs(prog.Type(), info.Name) {
				prog.Close()
				if err != nil {
					a.Close()
					return nil, fmt.Errorf("%s program %d of %s: %w", h.name, id, cg.path, err)
				}
				continue
			}
			a.programs[i] = append(a.programs[i], prog)
		}
	}
	return a, nil
}

func (h hook) isOurs(kind ebpf.ProgramType, name string) bool {
	return kind == h.kind && name == h.program
}

func (a *attached) Close() {
	for _, progs := range a.programs {
		for _, p := range progs {
			p.Close()
		}
	}
}

// maps opens the maps of the copy that acts, or returns nil when none does: of several copies
// (an attach was cut short and another succeeded) only one was ever enabled.
func (a *attached) maps() (*bpf.EvenkeelMaps, error) {
	for _, progs := range a.programs {
		for _, p := range progs {
			maps, err := mapsOf(p)
			if err != nil {
				return nil, err
			}
			cfg, err := readConfig(maps)
			if err == nil && cfg.Enabled != 0 {
				return maps, nil
			}
			maps.Close()
		}
	}
	return nil, nil
}

// mapsOf opens the maps of a program of ours. Those that this program does not use stay nil.
func mapsOf(p *ebpf.Program) (*bpf.EvenkeelMaps, error) {
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("maps of %s: %w", p, err)
	}
	ids, _ := info.MapIDs()
	maps := &bpf.EvenkeelMaps{}
	slots := mapSlots(maps)
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			maps.Close()
			return nil, fmt.Errorf("maps of %s: %w", p, err)
		}
		mi, err := m.Info()
		if err != nil {
			m.Close()
			maps.Close()
			return nil, fmt.Errorf("maps of %s: %w", p, err)
		}
		slot, ok := slots[mi.Name]
		if !ok {
			m.Close()
			continue
		}
		*slot = m
	}
	return maps, nil
}

// mapSlots gives the fields of maps by the maps' names.
func mapSlots(maps *bpf.EvenkeelMaps) map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		bpf.EvenkeelMapEvkConfig:   &maps.EvkConfig,
		bpf.EvenkeelMapEvkDirect:   &maps.EvkDirect,
		bpf.EvenkeelMapEvkDirectIx: &maps.EvkDirectIx,
		bpf.EvenkeelMapEvkPending:  &maps.EvkPending,
		bpf.EvenkeelMapEvkPorts:    &maps.EvkPorts,
		bpf.EvenkeelMapEvkSidecars: &maps.EvkSidecars,
		bpf.EvenkeelMapEvkSockets:  &maps.EvkSockets,
		bpf.EvenkeelMapEvkState:    &maps.EvkState,
	}
}

// allMaps completes what mapsOf gives for one program from the other programs of the same copy:
// each program uses only some of the maps.
func (a *attached) allMaps() (*bpf.EvenkeelMaps, error) {
	first, err := a.maps()
	if first == nil || err != nil {
		return nil, err
	}
	want, err := mapID(first.EvkConfig)
	if err != nil {
		first.Close()
		return nil, err
	}
	slots := mapSlots(first)
	for _, progs := range a.programs {
		for _, p := range progs {
			more, err := mapsOf(p)
			if err != nil {
				first.Close()
				return nil, err
			}
			if id, err := mapID(more.EvkConfig); err != nil || id != want {
				more.Close()
				continue
			}
			for name, slot := range mapSlots(more) {
				if *slots[name] == nil {
					*slots[name], *slot = *slot, nil
				}
			}
			more.Close()
		}
	}
	return first, nil
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	if m == nil {
		return 0, errors.New("program has no configuration map")
	}
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("configuration map: %w", err)
	}
	id, _ := info.ID()
	return id, nil
}

func readConfig(maps *bpf.EvenkeelMaps) (bpf.EvenkeelEvkConfig, error) {
	var cfg bpf.EvenkeelEvkConfig
	if maps.EvkConfig == nil {
		return cfg, errors.New("program has no configuration map")
	}
	if err := maps.EvkConfig.Lookup(uint32(0), &cfg); err != nil {
		return cfg, fmt.Errorf("read the configuration map: %w", err)
	}
	return cfg, nil
}

// verifierTail is the end of a verifier's log, where the reason is.
func verifierTail(err error) string {
	var ve *ebpf.VerifierError
	if !errors.As(err, &ve) || len(ve.Log) == 0 {
		return ""
	}
	return strings.Join(ve.Log[max(0, len(ve.Log)-12):], "\n")
}
