// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"strings"
	"testing"
)

func TestRolloutMisused(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent/kubeconfig")
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 2, "accepts between 1 and 2 arg(s)"},
		{"pricing", 2, "want KIND/NAME, such as deploy/pricing"},
		{"cronjob/nightly", 2, `kind "cronjob" is none that rolls out`},
		{"deploy/pricing -o yaml", 2, `"yaml" is neither text nor json`},
		{"deploy/pricing -o json --watch", 2, "not together with -o json"},
		{"deploy/pricing --nonsense", 2, "--nonsense"},
		{"deploy/pricing", 1, "no cluster"},
	} {
		status, stdout, stderr := runCLI(t, append([]string{"rollout", "status"}, strings.Fields(c.args)...)...)
		if status != c.status || !strings.Contains(stderr, c.want) || stdout != "" {
			t.Errorf("rollout status %s: status %d, stdout %q, stderr %q; want %d and %q", c.args, status, stdout, stderr, c.status, c.want)
		}
	}
	if status, stdout, _ := runCLI(t, "rollout"); status != 0 || !strings.Contains(stdout, "status") {
		t.Errorf("rollout: status %d, %q; want its help", status, stdout)
	}
}
