// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestLinks: the sidecar runs in every pod, so what it links is paid for in
// every pod. No Kubernetes package, no eBPF loader, no control plane.
func TestLinks(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, dep := range deps {
		for _, banned := range []string{
			"k8s.io/", "sigs.k8s.io/", "github.com/cilium/ebpf", "github.com/spf13/cobra",
			"evenkeel.dev/xds/server", "evenkeel.dev/xds/snapshot", "evenkeel.dev/xds/watch", "evenkeel.dev/injector",
		} {
			if strings.HasPrefix(dep+"/", banned+"/") || strings.HasPrefix(dep, banned) {
				t.Errorf("links %s", dep)
			}
		}
	}
	if len(deps) < 100 {
		t.Errorf("only %d packages: go list did not do what it should", len(deps))
	}
}
