// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package debian

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPresent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "header-1.h")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		p    Package
		want bool
	}{
		{Package{Name: "a", Command: "sh"}, true},
		{Package{Name: "a", Command: "no-such-command-anywhere"}, false},
		{Package{Name: "a", File: filepath.Join(filepath.Dir(file), "header-*.h")}, true},
		{Package{Name: "a", File: "/no/such/file"}, false},
	} {
		if got := tt.p.present(); got != tt.want {
			t.Errorf("%+v: got %v, want %v", tt.p, got, tt.want)
		}
	}
}

func TestEnsureWithNothingMissing(t *testing.T) {
	// An apt-get that is started would fail here.
	t.Setenv("PATH", "/usr/bin:/bin")
	if err := Ensure(t.Context(), []Package{{Name: "dash", Command: "sh"}}, nil); err != nil {
		t.Error(err)
	}
}

func TestEnsureNamesWhatIsMissing(t *testing.T) {
	missing := []Package{{Name: "first", Command: "no-such-command"}, {Name: "present", Command: "sh"}, {Name: "second", File: "/no/such/file"}}
	dir := t.TempDir()
	// sh is found in /bin by PATH, apt-get is not.
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "sh")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	err := Ensure(t.Context(), missing, nil)
	if err == nil || !strings.Contains(err.Error(), "first second") || strings.Contains(err.Error(), "present") {
		t.Errorf("without apt-get: got error %v, want one that names first and second", err)
	}
}

// What apt-get itself says is passed on, and a lock is waited for.
func TestAptGet(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "apt-get")
	script := `#!/bin/sh
[ -e "$0.once" ] && { echo "E: Unable to locate package"; exit 100; }
touch "$0.once"
echo "E: Could not get lock /var/lib/apt/lists/lock."
exit 100
`
	if err := os.WriteFile(fake, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	err := aptGet(t.Context(), fake, "install", "x")
	if err == nil || !strings.Contains(err.Error(), "Unable to locate package") {
		t.Errorf("got error %v, want that of the second try: the first met a lock", err)
	}
}
