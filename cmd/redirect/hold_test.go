// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstallHold(t *testing.T) {
	dir, volume := t.TempDir(), t.TempDir()
	helper := filepath.Join(dir, "hold")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", helper, "evenkeel.dev/cmd/hold").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	installed := filepath.Join(volume, "hold")
	for range 2 { // init steps run again
		if err := installHold(helper, volume); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(installed)
		if err != nil || info.Mode().Perm() != 0o555 {
			t.Errorf("%v, %v; want mode 0555", info, err)
		}
	}
	if left, err := os.ReadDir(volume); err != nil || len(left) != 1 {
		t.Errorf("the volume holds %v, %v; want the helper alone", left, err)
	}
	// It is the helper: without a sidecar it becomes the command at once.
	out, err := exec.CommandContext(t.Context(), installed, "--port=1", "--secret=s", "--timeout=1s", "--", "echo", "bye").Output()
	if err != nil || string(out) != "bye\n" {
		t.Errorf("%q, %v", out, err)
	}

	for name, c := range map[string]struct{ from, to, want string }{
		"no helper in the image": {filepath.Join(dir, "none"), volume, "none"},
		"no volume":              {helper, filepath.Join(dir, "nothing"), "nothing"},
	} {
		if err := installHold(c.from, c.to); err == nil || !strings.Contains(err.Error(), "--install-hold: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
