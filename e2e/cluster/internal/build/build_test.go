// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const version = "go1.26.0"

func TestEveryRecipeHasItsOwnKey(t *testing.T) {
	seen := map[string]string{}
	for _, r := range recipes() {
		key := r.key(version)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have the key %s", r.name, other, key)
		}
		seen[key] = r.name
		if r.module != "" && r.main == "" && len(r.packages) == 0 && !r.ownTree {
			t.Errorf("%s: nothing to build", r.name)
		}
	}
}

func TestKeyChangesWithWhateverGoesIn(t *testing.T) {
	base := recipe{name: "x", module: "m", version: "1.0.0", packages: []string{"m/x"}, ldflags: "-X a=b", tags: "t"}
	changes := map[string]func(*recipe){
		"version":  func(r *recipe) { r.version = "1.0.1" },
		"packages": func(r *recipe) { r.packages = []string{"m/x", "m/y"} },
		"ldflags":  func(r *recipe) { r.ldflags = "" },
		"tags":     func(r *recipe) { r.tags = "" },
		"trimpath": func(r *recipe) { r.trimpath = true },
		"main":     func(r *recipe) { r.main = "package main" },
		"image":    func(r *recipe) { r.image = "x:1" },
	}
	for name, change := range changes {
		r := base
		change(&r)
		if r.key(version) == base.key(version) {
			t.Errorf("a change of %s keeps the key: the old program would be used", name)
		}
	}
	if base.key(version) == base.key("go1.27.0") {
		t.Error("a change of the toolchain keeps the key")
	}
	if again := base; again.key(version) != base.key(version) {
		t.Error("the key of one recipe varies")
	}
}

func ownRecipe(name, main string) recipe {
	return recipe{name: name, trimpath: true, main: main, image: "e2e.local/" + name + ":1"}
}

func TestRunBuildsOnce(t *testing.T) {
	dir := t.TempDir()
	var lines []string
	cfg := Config{Dir: dir, Progress: func(line string) { lines = append(lines, line) }}
	all := []recipe{ownRecipe("pause", pauseMain)}
	p, err := run(t.Context(), cfg, all)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "[1/1] pause") {
		t.Errorf("progress: %q", lines)
	}
	if _, err := os.Stat(p.Images()[0]); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(p.Path("pause"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = run(t.Context(), cfg, all); err != nil {
		t.Fatal(err)
	}
	again, err := os.Stat(p.Path("pause"))
	if err != nil {
		t.Fatal(err)
	}
	if !again.ModTime().Equal(info.ModTime()) || len(lines) != 2 {
		t.Errorf("built a second time: %q", lines)
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := run(t.Context(), Config{Dir: dir}, []recipe{ownRecipe("broken", "package main\n\nfunc main() { undefined() }\n")})
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got error %v, want the compiler's, with the program's name", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "programs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	left = slices.DeleteFunc(left, func(s string) bool { return strings.HasSuffix(s, ".tmp") })
	if len(left) > 0 {
		t.Errorf("a failed build is in the cache: %v", left)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx, Config{Dir: t.TempDir()}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
}

func TestPathOfWhatIsNotBuilt(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic: a wrong name would become an empty path")
		}
	}()
	(&Programs{}).Path("nothing")
}
