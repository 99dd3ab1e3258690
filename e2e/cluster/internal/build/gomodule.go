// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// module makes the generated module in which r is built, once for all recipes
// of the same module, and returns its folder.
func (b *builder) module(ctx context.Context, r recipe) (string, error) {
	id := r.module
	if id == "" {
		id = r.name
	}
	if dir, ok := b.prepared[id]; ok {
		return dir, nil
	}
	dir := filepath.Join(b.cfg.Dir, "modules", strings.ReplaceAll(id, "/", "_")+"@"+orNone(r.version))
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	gomod := fmt.Sprintf("module cluster.invalid/%s\n\ngo %s\n", r.name, goDirective)
	if r.module != "" {
		gomod += fmt.Sprintf("\nrequire %s v%s\n", r.module, r.version)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(gomod), 0o644); err != nil {
		return "", err
	}
	if r.ownTree {
		src, err := ownTree(ctx, dir, r)
		if err == nil {
			b.prepared[id] = src
		}
		return src, err
	}
	if r.kubernetes {
		if err := replaceStaging(ctx, dir, r); err != nil {
			return "", err
		}
	}
	if err := b.writeSource(dir, r); err != nil {
		return "", err
	}
	if _, err := goCommand(ctx, dir, nil, "mod", "tidy"); err != nil {
		return "", err
	}
	b.prepared[id] = dir
	return dir, nil
}

// writeSource writes what makes "go mod tidy" find all that is needed by every
// recipe of this module: the recipe's own main package, or imports of the main
// packages under a build tag that is never set.
func (b *builder) writeSource(dir string, r recipe) error {
	if r.main != "" {
		return os.WriteFile(filepath.Join(dir, "main.go"), []byte(r.main), 0o644)
	}
	var s strings.Builder
	s.WriteString("//go:build tools\n\npackage tools\n\nimport (\n")
	for _, other := range b.all {
		if other.module != r.module {
			continue
		}
		for _, p := range other.packages {
			fmt.Fprintf(&s, "\t_ %q\n", p)
		}
	}
	s.WriteString(")\n")
	return os.WriteFile(filepath.Join(dir, "tools.go"), []byte(s.String()), 0o644)
}

type moduleInfo struct {
	Dir   string
	GoMod string
	Error string
}

// download fetches r's module and tells where it lies.
func download(ctx context.Context, dir string, r recipe) (moduleInfo, error) {
	var info moduleInfo
	out, err := goCommand(ctx, dir, nil, "mod", "download", "-json", r.module+"@v"+r.version)
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return info, fmt.Errorf("go mod download: %w", err)
	}
	if info.Error != "" {
		return info, fmt.Errorf("go mod download: %s", info.Error)
	}
	return info, nil
}

// replaceStaging points the staging modules at their published versions: the
// release's own go.mod requires them as v0.0.0 and replaces them by folders that
// are not part of the module.
func replaceStaging(ctx context.Context, dir string, r recipe) error {
	info, err := download(ctx, dir, r)
	if err != nil {
		return err
	}
	out, err := goCommand(ctx, dir, nil, "mod", "edit", "-json", info.GoMod)
	if err != nil {
		return err
	}
	var upstream struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(out), &upstream); err != nil {
		return fmt.Errorf("read %s: %w", info.GoMod, err)
	}
	staging := "v0." + strings.TrimPrefix(r.version, field(r.version, 0)+".")
	args := []string{"mod", "edit"}
	for _, m := range upstream.Require {
		if m.Version == "v0.0.0" {
			args = append(args, fmt.Sprintf("-replace=%[1]s=%[1]s@%s", m.Path, staging))
		}
	}
	if len(args) == 2 {
		return fmt.Errorf("%s requires no staging module at v0.0.0: its layout has changed", info.GoMod)
	}
	_, err = goCommand(ctx, dir, nil, args...)
	return err
}

// ownTree copies the module's tree to a writable folder.
func ownTree(ctx context.Context, dir string, r recipe) (string, error) {
	info, err := download(ctx, dir, r)
	if err != nil {
		return "", err
	}
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, os.DirFS(info.Dir)); err != nil {
		return "", err
	}
	// The module cache is read-only, and so is its copy.
	return src, filepath.WalkDir(src, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(path, i.Mode().Perm()|0o200)
	})
}

// goCommand runs the go command in dir and returns its output, trimmed.
func goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// A workspace or -mod=vendor of the caller must not reach the generated
	// modules.
	cmd.Env = append(os.Environ(), append([]string{"GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false"}, env...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", errors.New("no go command in PATH: install Go " + goDirective + " or newer")
		}
		return "", err
	}
	// Minutes of compiling should not starve what else runs here. If the
	// kernel refuses, the build is only less polite.
	_ = unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, 10)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("go %s (in %s): %w\n%s", strings.Join(args[:min(2, len(args))], " "), dir, err, lastLines(stderr.String()+stdout.String(), 20))
	}
	return strings.TrimSpace(stdout.String()), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
