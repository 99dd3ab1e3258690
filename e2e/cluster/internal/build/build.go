// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package build makes every program and base image of the cluster from Go
// modules and keeps them in a cache folder.
//
// Each program has a folder of its own in the cache, named by its name, version
// and a hash of all that went into it (version, packages, flags, generated
// source, toolchain): so a change rebuilds just that program, and two checkouts
// with different versions share one cache. The programs are never part of this
// module's go.mod: each set is built in a generated module below the cache.
//
// A cold build takes about 7 minutes on 2 cores.
package build

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster/image"
)

//go:embed pause/main.go
var pauseMain string

// Config is what the build needs.
type Config struct {
	// Dir is the cache folder.
	Dir string
	// Progress receives one line before and after each program that must be
	// built. Zero: nothing is told.
	Progress func(line string)
}

// Programs are the built files.
type Programs struct {
	paths  map[string]string
	images []string
}

// Path returns the file of a program, or the folder of a set ("cni").
func (p *Programs) Path(name string) string {
	path, ok := p.paths[name]
	if !ok {
		panic("build: no recipe makes " + name)
	}
	return path
}

// Images are the archives of the base images.
func (p *Programs) Images() []string { return p.images }

// Run builds what is missing in the cache. Only one build runs in a folder at a
// time; another one waits.
func Run(ctx context.Context, cfg Config) (*Programs, error) {
	p, err := run(ctx, cfg, recipes())
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	return p, nil
}

func run(ctx context.Context, cfg Config, all []recipe) (*Programs, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	goVersion, err := goCommand(ctx, cfg.Dir, nil, "env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer lock.Close()

	p := &Programs{paths: map[string]string{}}
	b := builder{cfg: cfg, all: all, prepared: map[string]string{}}
	for i, r := range all {
		dir := filepath.Join(cfg.Dir, "programs", r.key(goVersion))
		p.paths[r.name] = filepath.Join(dir, r.name)
		if len(r.packages) > 1 {
			p.paths[r.name] = dir
		}
		if r.image != "" {
			p.images = append(p.images, filepath.Join(dir, r.name+".tar"))
		}
		if _, err := os.Stat(dir); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		begin := time.Now()
		label := fmt.Sprintf("[%d/%d] %s %s", i+1, len(all), r.name, r.version)
		cfg.Progress(label + " …")
		if err := b.build(ctx, r, dir); err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		cfg.Progress(fmt.Sprintf("%s … %.0fs", label, time.Since(begin).Seconds()))
	}
	return p, nil
}

// lockDir waits for the folder's lock, which ends with the process.
func lockDir(ctx context.Context, cfg Config) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(cfg.Dir, "build.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !told {
			cfg.Progress("another build is under way in " + cfg.Dir + ": waiting for it")
			told = true
		}
		if err := ctx.Err(); err != nil {
			f.Close()
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// recipeFormat is part of every cache key: raise it when the way in which a
// recipe is carried out changes.
const recipeFormat = "1"

// key names the folder of what the recipe makes.
func (r recipe) key(goVersion string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%+v", recipeFormat, goVersion, runtime.GOARCH, r)
	return fmt.Sprintf("%s-%s-%s", r.name, orNone(r.version), hex.EncodeToString(h.Sum(nil))[:12])
}

func orNone(version string) string {
	if version == "" {
		return "own"
	}
	return version
}

// field returns the i-th part of a dotted version.
func field(version string, i int) string { return strings.Split(version, ".")[i] }

type builder struct {
	cfg Config
	all []recipe
	// prepared maps a module path to the folder of its generated module.
	prepared map[string]string
}

// build makes dir, whole or not at all.
func (b *builder) build(ctx context.Context, r recipe, dir string) error {
	module, err := b.module(ctx, r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	env := []string{"CGO_ENABLED=0"}
	args := []string{"build", "-mod=mod"}
	if r.trimpath {
		args = append(args, "-trimpath")
	}
	if r.ownTree {
		env = []string{"CGO_ENABLED=1"}
	}
	if r.tags != "" {
		args = append(args, "-tags", r.tags)
	}
	args = append(args, "-ldflags", strings.TrimSpace("-s -w "+r.ldflags))
	switch {
	case len(r.packages) > 1:
		args = append(args, "-o", tmp+"/")
		args = append(args, r.packages...)
	case len(r.packages) == 1:
		args = append(args, "-o", filepath.Join(tmp, r.name), r.packages[0])
	default:
		args = append(args, "-o", filepath.Join(tmp, r.name), ".")
	}
	if _, err := goCommand(ctx, module, env, args...); err != nil {
		return err
	}
	if r.image != "" {
		spec := image.Spec{Name: r.image, User: r.imageUser, Entrypoint: []string{"/" + r.name}, Files: map[string]string{"/" + r.name: filepath.Join(tmp, r.name)}}
		if err := image.Write(filepath.Join(tmp, r.name+".tar"), spec); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}
