// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// Outcome is what Attach found and did.
type Outcome string

const (
	// Attached: there was no copy of ours, now there is.
	Attached Outcome = "attached"
	// Kept: a copy of the same programs was there; its settings are now those asked for.
	Kept Outcome = "kept"
	// Replaced: a copy of other programs of ours was there and is gone.
	Replaced Outcome = "replaced"
)

// ErrOtherSettings says that a copy with other settings is attached and that this process may
// not change it.
var ErrOtherSettings = errors.New("the redirect is attached already, with other settings")

// Attachment is the redirect on one cgroup. The programs live as long as the cgroup, whatever
// becomes of this value and this process; it only remembers how to take back what Attach did.
type Attachment struct {
	// Outcome is what Attach did.
	Outcome Outcome
	// Cgroup and CgroupID are what the redirect acts on.
	Cgroup   string
	CgroupID uint64
	// ProgramIDs are the kernel's ids of the programs, in the order of origdst.Hooks.
	ProgramIDs [origdst.NumHooks]uint32

	objects *bpf.EvenkeelObjects
}

// Attach makes the redirect act on the cgroup and all below it. Attaching again is harmless: never
// is there a second acting copy, and a copy of other programs of ours gives way, hook by hook,
// keeping its connections and counters when both have the same ABI.
//
// It needs CAP_BPF and CAP_NET_ADMIN. Reading what is attached takes CAP_SYS_ADMIN; without it
// (the init step) a copy that answers the proof getsockopt of this process is kept if it has
// the same settings, else ErrOtherSettings.
//
// When it fails nothing was changed.
func Attach(ctx context.Context, cfg Config) (*Attachment, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cg, err := openCgroup(ctx, cfg.Cgroup)
	if err != nil {
		return nil, err
	}
	defer cg.Close()
	if err := checkConflicts(cg); err != nil {
		return nil, err
	}
	present, err := findAttached(cg)
	if err != nil {
		return nil, err
	}
	defer present.Close()

	if present.unreadable > 0 {
		a, err := keepUnread(cg, cfg, present)
		if a != nil || err != nil {
			return a, err
		}
	}
	return attachOver(cg, cfg, present)
}

// keepUnread is for a process without CAP_SYS_ADMIN: is one of the programs that it cannot read
// the copy that its predecessor attached? The copy itself tells, by its program ids.
func keepUnread(cg *cgroup, cfg Config, present *attached) (*Attachment, error) {
	info, err := origdst.ProofOfProcess()
	if errors.Is(err, origdst.ErrNotEffective) {
		// Somebody else's programs, or ours that were never enabled and so never act.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for i, h := range hooks() {
		if !slices.Contains(present.ids[i], ebpf.ProgramID(info.ProgramIDs[h.index])) {
			return nil, nil // a copy on another cgroup, above this one
		}
	}
	if info.ListenerPort != cfg.ListenerPort || !slices.Equal(info.Ports, cfg.OutboundPorts) {
		return nil, fmt.Errorf("%w: it sends ports %v to %d, asked for are %v to %d; changing them needs CAP_SYS_ADMIN: recreate the pod",
			ErrOtherSettings, info.Ports, info.ListenerPort, cfg.OutboundPorts, cfg.ListenerPort)
	}
	cfg.Logger.Info("redirect was attached already", "cgroup", cg.path, "ports", info.Ports, "listener_port", info.ListenerPort)
	return &Attachment{Outcome: Kept, Cgroup: cg.path, CgroupID: cg.id, ProgramIDs: info.ProgramIDs}, nil
}

// attachOver attaches a new copy in place of what is present.
func attachOver(cg *cgroup, cfg Config, present *attached) (*Attachment, error) {
	old, err := present.allMaps()
	if err != nil {
		return nil, err
	}
	outcome := Attached
	if old != nil {
		outcome = Replaced
		defer old.Close()
		if raw, err := readConfig(old); err != nil || raw.Magic != magic || raw.Abi != loadABI {
			old = nil // another layout: start with maps of our own
		}
	}
	objects, err := load(old)
	if err != nil {
		return nil, err
	}
	a := &Attachment{Outcome: outcome, Cgroup: cg.path, CgroupID: cg.id, objects: objects}

	if old != nil && present.same(&objects.EvenkeelPrograms) {
		a.Outcome = Kept
		defer a.Close()
		if a.ProgramIDs, err = present.firstIDs(); err != nil {
			return nil, err
		}
		if err := configure(&objects.EvenkeelMaps, cfg, a.ProgramIDs, acting); err != nil {
			return nil, err
		}
		cfg.Logger.Info("redirect was attached already", "cgroup", cg.path, "ports", cfg.OutboundPorts, "listener_port", cfg.ListenerPort)
		return a, nil
	}

	if a.ProgramIDs, err = programIDs(&objects.EvenkeelPrograms); err != nil {
		objects.Close()
		return nil, err
	}
	if old == nil {
		err = configure(&objects.EvenkeelMaps, cfg, a.ProgramIDs, inert)
	}
	undo := func() error { return nil }
	if err == nil {
		undo, err = attachPrograms(cg, &objects.EvenkeelPrograms, present)
	}
	if err == nil {
		err = configure(&objects.EvenkeelMaps, cfg, a.ProgramIDs, acting)
	}
	if err != nil {
		err = errors.Join(err, undo())
		objects.Close()
		return nil, err
	}
	if err := detachPrograms(cg, present.rest()); err != nil {
		cfg.Logger.Warn("remains of an older redirect could not be removed; they do nothing", "cgroup", cg.path, "error", err)
	}
	cfg.Logger.Info("redirect "+string(a.Outcome), "cgroup", cg.path, "cgroup_id", cg.id,
		"ports", cfg.OutboundPorts, "listener_port", cfg.ListenerPort)
	return a, nil
}

// attachPrograms attaches one program per hook, in place of the oldest of ours where there is
// one. The function it returns takes back what was done.
func attachPrograms(cg *cgroup, programs *bpf.EvenkeelPrograms, present *attached) (undo func() error, err error) {
	var done []func() error
	undo = func() error {
		var errs []error
		for _, f := range slices.Backward(done) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	for i, h := range hooks() {
		opts := link.RawAttachProgramOptions{
			Target:  cg.fd(),
			Program: h.of(programs),
			Attach:  h.attach,
			Flags:   uint32(allowMulti),
		}
		back := func() error {
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: cg.fd(), Program: opts.Program, Attach: h.attach})
		}
		if len(present.programs[i]) > 0 {
			former := present.programs[i][0]
			opts.Anchor = link.ReplaceProgram(former)
			back = func() error {
				return link.RawAttachProgram(link.RawAttachProgramOptions{
					Target: cg.fd(), Program: former, Attach: h.attach, Flags: uint32(allowMulti),
					Anchor: link.ReplaceProgram(opts.Program),
				})
			}
		}
		if err := link.RawAttachProgram(opts); err != nil {
			return undo, explainAttach(h, cg, err)
		}
		done = append(done, back)
	}
	return undo, nil
}

// activity is evk_config.enabled.
type activity uint32

const (
	// inert: the programs do nothing and answer nothing.
	inert activity = 0
	// acting: set once all are attached.
	acting activity = 1
)

// configure writes the settings. Programs read them while they are written, so a fresh copy gets
// them whole while inert, and then again with the switch.
func configure(maps *bpf.EvenkeelMaps, cfg Config, ids [origdst.NumHooks]uint32, act activity) error {
	raw := cfg.rawConfig()
	raw.ProgIds = ids
	raw.Enabled = uint32(act)
	if raw.SidecarCgroup == 0 {
		// Whoever attached before us may have known it; a cgroup's id is never used again.
		former, err := readConfig(maps)
		if err != nil {
			return err
		}
		raw.SidecarCgroup = former.SidecarCgroup
	}
	for _, port := range cfg.OutboundPorts {
		if err := maps.EvkPorts.Put(port, uint8(1)); err != nil {
			return fmt.Errorf("write the map of ports: %w", err)
		}
	}
	if err := maps.EvkConfig.Put(uint32(0), raw); err != nil {
		return fmt.Errorf("write the configuration map: %w", err)
	}
	return removeOtherPorts(maps.EvkPorts, cfg.OutboundPorts)
}

// removeOtherPorts leaves only those wanted in the map.
func removeOtherPorts(m *ebpf.Map, wanted []uint16) error {
	var (
		port   uint16
		is     uint8
		others []uint16
	)
	entries := m.Iterate()
	for entries.Next(&port, &is) {
		if !slices.Contains(wanted, port) {
			others = append(others, port)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read the map of ports: %w", err)
	}
	for _, port := range others {
		if err := m.Delete(port); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("write the map of ports: %w", err)
		}
	}
	return nil
}

// same reports whether exactly one program of ours is attached at each hook, and each is the
// program that we would attach.
func (a *attached) same(fresh *bpf.EvenkeelPrograms) bool {
	for i, h := range hooks() {
		if len(a.programs[i]) != 1 {
			return false
		}
		there, err := a.programs[i][0].Info()
		if err != nil {
			return false
		}
		ours, err := h.of(fresh).Info()
		if err != nil || there.Tag != ours.Tag {
			return false
		}
	}
	return true
}

// firstIDs returns the ids of the first program at each hook, by index.
func (a *attached) firstIDs() (ids [origdst.NumHooks]uint32, err error) {
	for i, h := range hooks() {
		if ids[h.index], err = programID(a.programs[i][0]); err != nil {
			return ids, err
		}
	}
	return ids, nil
}

// rest is what attachPrograms has not replaced: all but the first program of each hook.
func (a *attached) rest() *attached {
	r := &attached{}
	for i, progs := range a.programs {
		if len(progs) > 1 {
			r.programs[i] = progs[1:]
		}
	}
	return r
}

func programIDs(programs *bpf.EvenkeelPrograms) (ids [origdst.NumHooks]uint32, err error) {
	for _, h := range hooks() {
		if ids[h.index], err = programID(h.of(programs)); err != nil {
			return ids, err
		}
	}
	return ids, nil
}

func programID(p *ebpf.Program) (uint32, error) {
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("id of %s: %w", p, err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("id of %s: not told by this kernel", p)
	}
	return uint32(id), nil
}

// Revert detaches what Attach has attached; a copy that was kept stays. It needs no more than
// Attach did, unlike Detach.
func (a *Attachment) Revert(ctx context.Context) error {
	if a.objects == nil || a.Outcome == Kept {
		return nil
	}
	dir, err := openCgroup(ctx, a.Cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	own := &attached{}
	for i, h := range hooks() {
		own.programs[i] = []*ebpf.Program{h.of(&a.objects.EvenkeelPrograms)}
	}
	return detachPrograms(dir, own)
}

// Close frees what Revert needs. The programs stay attached.
func (a *Attachment) Close() error {
	if a.objects == nil {
		return nil
	}
	objects := a.objects
	a.objects = nil
	return objects.Close()
}
