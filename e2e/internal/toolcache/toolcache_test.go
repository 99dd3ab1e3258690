// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package toolcache

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestInstall(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	broken := errors.New("registry is away")
	if _, err := Install("tool-1", func(dir string) error {
		return errors.Join(broken, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
	}); !errors.Is(err, broken) {
		t.Fatalf("Install = %v, want the installer's error", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "evenkeel", "interop", "*tool-1*[^k]")); len(left) > 0 {
		t.Errorf("a failed installation left %v", left)
	}
	var fills atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := Install("tool-1", func(dir string) error {
				fills.Add(1)
				return os.WriteFile(filepath.Join(dir, "tool"), nil, 0o755)
			})
			if err != nil || !Exists(filepath.Join(dir, "tool")) {
				t.Errorf("Install = %q, %v: no tool in it", dir, err)
			}
		})
	}
	all.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("installed %d times, want once", n)
	}
}
