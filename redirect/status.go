// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// Status is the redirect on one cgroup as the kernel has it.
type Status struct {
	Cgroup   string    `json:"cgroup"`
	CgroupID uint64    `json:"cgroupID"`
	Programs []Program `json:"programs"`
	// Acting is false when programs of ours are attached that were never enabled (an attach was
	// cut short), and when there are none. What follows is then empty.
	Acting        bool      `json:"acting"`
	OutboundPorts []uint16  `json:"outboundPorts"`
	ListenerPort  uint16    `json:"listenerPort"`
	Sidecars      []Sidecar `json:"sidecars"`
	Redirected    uint64    `json:"redirected"`
	Direct        uint64    `json:"direct"`
	Lost          uint64    `json:"lost"`
	Directs       []Direct  `json:"directs"`
}

// Program is one of our programs on the cgroup.
type Program struct {
	Hook string `json:"hook"`
	ID   uint32 `json:"id"`
	Name string `json:"name"`
	Tag  string `json:"tag"`
}

// Sidecar is whose connections are left alone in one network namespace.
type Sidecar struct {
	// NetNS is the namespace's cookie; 0 stands for Config.SidecarCgroup, which holds in all.
	NetNS  uint64 `json:"netNS"`
	Cgroup uint64 `json:"cgroup"`
}

// Direct is the count of direct connections to one destination.
type Direct struct {
	// Destination is not valid for the sum of those that are not counted one by one.
	Destination netip.AddrPort `json:"destination"`
	Open        int64          `json:"open"`
	Total       uint64         `json:"total"`
}

// Query reads the state of the redirect on the cgroup. It needs CAP_NET_ADMIN and CAP_SYS_ADMIN;
// a process in the pod can ask origdst.Proof instead, without any.
func Query(ctx context.Context, path string) (Status, error) {
	cg, err := openCgroup(ctx, path)
	if err != nil {
		return Status{}, err
	}
	defer cg.Close()
	present, err := findAttached(cg)
	if err != nil {
		return Status{}, err
	}
	defer present.Close()
	if present.unreadable > 0 {
		return Status{}, fmt.Errorf("read the programs of %s: %w", cg.path, lacking(capSysAdmin, unix.EPERM))
	}
	st := Status{Cgroup: cg.path, CgroupID: cg.id}
	if st.Programs, err = present.list(); err != nil {
		return Status{}, err
	}
	maps, err := present.allMaps()
	if err != nil {
		return Status{}, err
	}
	if maps == nil {
		return st, nil
	}
	defer maps.Close()
	return st, st.read(maps)
}

// StatusOf is what a process without privileges can tell: the state of the copy that acts on it.
func StatusOf(info origdst.Info, directs []origdst.Direct) Status {
	st := Status{
		Acting:        true,
		OutboundPorts: info.Ports,
		ListenerPort:  info.ListenerPort,
		Redirected:    info.Redirected,
		Direct:        info.Direct,
		Lost:          info.Lost,
	}
	for _, h := range hooks() {
		st.Programs = append(st.Programs, Program{Hook: h.name, ID: info.ProgramIDs[h.index], Name: h.program})
	}
	if info.SidecarCgroup != 0 {
		st.Sidecars = []Sidecar{{NetNS: info.NetNS, Cgroup: info.SidecarCgroup}}
	}
	for _, d := range directs {
		st.Directs = append(st.Directs, Direct(d))
	}
	return st
}

func (a *attached) list() ([]Program, error) {
	var all []Program
	for i, h := range hooks() {
		for _, p := range a.programs[i] {
			info, err := p.Info()
			if err != nil {
				return nil, fmt.Errorf("%s program: %w", h.name, err)
			}
			id, _ := info.ID()
			all = append(all, Program{Hook: h.name, ID: uint32(id), Name: info.Name, Tag: info.Tag})
		}
	}
	return all, nil
}

func (st *Status) read(maps *bpf.EvenkeelMaps) error {
	cfg, err := readConfig(maps)
	if err != nil {
		return err
	}
	if cfg.Magic != magic || cfg.Abi != loadABI {
		return fmt.Errorf("the redirect on %s is of another release (version %d of its contract, this binary knows %d): ask with that release's binary", st.Cgroup, cfg.Abi, loadABI)
	}
	if maps.EvkState == nil || maps.EvkSidecars == nil || maps.EvkDirect == nil {
		return errors.New("the redirect is attached in part: its state, sidecar or direct map is missing; attach again")
	}
	st.Acting = true
	st.ListenerPort = cfg.ListenerPort
	st.OutboundPorts = slices.Clone(cfg.Ports[:min(int(cfg.N_ports), len(cfg.Ports))])
	if cfg.SidecarCgroup != 0 {
		st.Sidecars = append(st.Sidecars, Sidecar{Cgroup: cfg.SidecarCgroup})
	}
	var sidecar Sidecar
	entries := maps.EvkSidecars.Iterate()
	for entries.Next(&sidecar.NetNS, &sidecar.Cgroup) {
		st.Sidecars = append(st.Sidecars, sidecar)
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read the sidecar map: %w", err)
	}
	var state bpf.EvenkeelEvkState
	if err := maps.EvkState.Lookup(uint32(0), &state); err != nil {
		return fmt.Errorf("read the state map: %w", err)
	}
	st.Redirected, st.Direct, st.Lost = state.Redirected, state.Direct, state.Lost
	for slot := range min(state.DirectSlots, maps.EvkDirect.MaxEntries()) {
		var d bpf.EvenkeelEvkDirect
		if err := maps.EvkDirect.Lookup(slot, &d); err != nil {
			return fmt.Errorf("read the map of direct connections: %w", err)
		}
		if d.Used == 0 && d.Total == 0 {
			continue
		}
		out := Direct{Open: d.Open, Total: d.Total}
		if d.Used != 0 {
			out.Destination = addrPort(d.Dst)
		}
		st.Directs = append(st.Directs, out)
	}
	return nil
}

func addrPort(a bpf.EvenkeelEvkAddr) netip.AddrPort {
	// The words are in network byte order as they lie in memory.
	raw := *(*[16]byte)(unsafe.Pointer(&a.Addr))
	return netip.AddrPortFrom(netip.AddrFrom16(raw).Unmap(), a.Port)
}

// String is the state for a person.
func (st Status) String() string {
	var b strings.Builder
	where := "this process"
	if st.Cgroup != "" {
		where = fmt.Sprintf("%s (cgroup %d)", st.Cgroup, st.CgroupID)
	}
	switch {
	case len(st.Programs) == 0:
		return "no redirect acts on " + where + "\n"
	case st.Acting:
		fmt.Fprintf(&b, "redirect on %s: ports %v to 127.0.0.1 and ::1, port %d\n", where, st.OutboundPorts, st.ListenerPort)
	default:
		fmt.Fprintf(&b, "remains of an interrupted attach on %s, they do nothing:\n", where)
	}
	for _, p := range st.Programs {
		fmt.Fprintf(&b, "  %-13s program %d", p.Hook, p.ID)
		if p.Tag != "" {
			fmt.Fprintf(&b, ", tag %s", p.Tag)
		}
		b.WriteByte('\n')
	}
	if !st.Acting {
		return b.String()
	}
	if len(st.Sidecars) == 0 {
		b.WriteString("  no sidecar has bound its listener yet: all connections go direct\n")
	}
	for _, s := range st.Sidecars {
		fmt.Fprintf(&b, "  sidecar: cgroup %d in network namespace %d\n", s.Cgroup, s.NetNS)
	}
	fmt.Fprintf(&b, "  %d connects redirected, %d connections direct, %d destinations lost\n", st.Redirected, st.Direct, st.Lost)
	for _, d := range st.Directs {
		dst := "other destinations"
		if d.Destination.IsValid() {
			dst = d.Destination.String()
		}
		fmt.Fprintf(&b, "  direct: %s, %d open of %d\n", dst, d.Open, d.Total)
	}
	return b.String()
}

// the order of origdst.Hooks is the order of prog_ids.
var _ [origdst.NumHooks]uint32 = bpf.EvenkeelEvkConfig{}.ProgIds
