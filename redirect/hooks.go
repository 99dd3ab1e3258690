// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"github.com/cilium/ebpf"

	"evenkeel.dev/redirect/bpf"
	"evenkeel.dev/redirect/origdst"
)

// hook is one of the places in the kernel where a program of ours is attached.
type hook struct {
	name   string // as origdst.Hooks prints it
	index  int    // into evk_config.prog_ids, as in enum evk_hook
	attach ebpf.AttachType
	kind   ebpf.ProgramType
	// program is our program's name in the kernel: how an own older copy is recognised.
	program string
	of      func(*bpf.EvenkeelPrograms) *ebpf.Program
}

// hooks lists them in the order of attaching. The programs do nothing until all are attached
// (evk_config.enabled), so the order matters only when an older copy is replaced: connect last,
// so that what the new connect stores is read by new programs.
func hooks() [origdst.NumHooks]hook {
	return [...]hook{
		{"getsockopt", 7, ebpf.AttachCGroupGetsockopt, ebpf.CGroupSockopt, bpf.EvenkeelProgEvkGetsockopt, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkGetsockopt }},
		{"sockops", 6, ebpf.AttachCGroupSockOps, ebpf.SockOps, bpf.EvenkeelProgEvkSockops, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkSockops }},
		{"getpeername4", 2, ebpf.AttachCgroupInet4GetPeername, ebpf.CGroupSockAddr, bpf.EvenkeelProgEvkGetpeer4, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkGetpeer4 }},
		{"getpeername6", 3, ebpf.AttachCgroupInet6GetPeername, ebpf.CGroupSockAddr, bpf.EvenkeelProgEvkGetpeer6, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkGetpeer6 }},
		{"post_bind4", 4, ebpf.AttachCGroupInet4PostBind, ebpf.CGroupSock, bpf.EvenkeelProgEvkPostBind4, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkPostBind4 }},
		{"post_bind6", 5, ebpf.AttachCGroupInet6PostBind, ebpf.CGroupSock, bpf.EvenkeelProgEvkPostBind6, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkPostBind6 }},
		{"connect4", 0, ebpf.AttachCGroupInet4Connect, ebpf.CGroupSockAddr, bpf.EvenkeelProgEvkConnect4, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkConnect4 }},
		{"connect6", 1, ebpf.AttachCGroupInet6Connect, ebpf.CGroupSockAddr, bpf.EvenkeelProgEvkConnect6, func(p *bpf.EvenkeelPrograms) *ebpf.Program { return p.EvkConnect6 }},
	}
}
