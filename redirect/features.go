// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// MinimumKernel is the oldest kernel with every feature that the redirect uses.
const MinimumKernel = "5.15"

// ErrKernel is matched by every *FeatureError.
var ErrKernel = errors.New("the kernel lacks a feature of the redirect")

// FeatureError says which feature of the kernel is missing.
type FeatureError struct {
	// Feature is what is missing, in words.
	Feature string
	// Kernel is the first release that has it.
	Kernel string
}

func (e *FeatureError) Error() string {
	return fmt.Sprintf("this kernel lacks %s, which Linux %s brought (Evenkeel needs Linux %s or newer, with CONFIG_CGROUP_BPF)", e.Feature, e.Kernel, MinimumKernel)
}

// Is makes errors.Is(err, ErrKernel) true.
func (e *FeatureError) Is(target error) bool { return target == ErrKernel }

// feature is one thing that the programs need, and how to find out without attaching anything.
type feature struct {
	name, kernel string
	probe        func() error // nil: there; ebpf.ErrNotSupported: missing; else: cannot tell
}

// Probe asks the running kernel for each feature and returns a *FeatureError for each that is
// missing, joined; nil when all are there or it cannot tell. It needs CAP_BPF and CAP_NET_ADMIN.
func Probe() error { return missing(kernelFeatures()) }

func missing(all []feature) error {
	var errs []error
	for _, f := range all {
		if errors.Is(f.probe(), ebpf.ErrNotSupported) {
			errs = append(errs, &FeatureError{Feature: f.name, Kernel: f.kernel})
		}
	}
	return errors.Join(errs...)
}

func kernelFeatures() []feature {
	helper := func(pt ebpf.ProgramType, fn asm.BuiltinFunc) func() error {
		return func() error { return features.HaveProgramHelper(pt, fn) }
	}
	return []feature{
		{"programs on connect() (BPF_PROG_TYPE_CGROUP_SOCK_ADDR)", "4.17", func() error { return features.HaveProgramType(ebpf.CGroupSockAddr) }},
		{"programs on getsockopt() (BPF_PROG_TYPE_CGROUP_SOCKOPT)", "5.3", func() error { return features.HaveProgramType(ebpf.CGroupSockopt) }},
		{"socket storage (BPF_MAP_TYPE_SK_STORAGE)", "5.2", func() error { return features.HaveMapType(ebpf.SkStorage) }},
		{"a look for listeners at connect() (bpf_skc_lookup_tcp)", "5.2", helper(ebpf.CGroupSockAddr, asm.FnSkcLookupTcp)},
		{"the caller's cgroup at connect() (bpf_get_current_cgroup_id)", "5.7", helper(ebpf.CGroupSockAddr, asm.FnGetCurrentCgroupId)},
		{"programs on getpeername() (BPF_CGROUP_INET4_GETPEERNAME)", "5.8", haveGetPeerName},
		{"socket storage at bind() (bpf_sk_storage_get)", "5.9", helper(ebpf.CGroupSock, asm.FnSkStorageGet)},
		{"atomic operations with a result (BPF_FETCH)", "5.12", haveFetch},
		{"network namespace cookies in sockops (bpf_get_netns_cookie)", "5.15", helper(ebpf.SockOps, asm.FnGetNetnsCookie)},
		{"network namespace cookies in getsockopt() (bpf_get_netns_cookie)", "5.15", helper(ebpf.CGroupSockopt, asm.FnGetNetnsCookie)},
	}
}

func haveGetPeerName() error {
	return tryLoad(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCgroupInet4GetPeername, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
}

func haveFetch() error {
	return tryLoad(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
			asm.FetchAdd.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return(),
		},
	})
}

func tryLoad(spec *ebpf.ProgramSpec) error {
	prog, err := ebpf.NewProgram(spec)
	if err == nil {
		return prog.Close()
	}
	if held, capErr := effectiveCapabilities(); capErr == nil && held&(1<<capBPF|1<<capSysAdmin) == 0 {
		return err // refused for want of a capability: says nothing of the kernel
	}
	return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
}
