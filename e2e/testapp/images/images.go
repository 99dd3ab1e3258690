// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package images builds the container images of the test programs.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"evenkeel.dev/e2e/cluster/debian"
	"evenkeel.dev/e2e/cluster/image"
	"evenkeel.dev/e2e/internal/toolcache"
	"evenkeel.dev/e2e/testapp/node"
	"evenkeel.dev/e2e/testapp/python"
)

// Names of the images, as pods write them.
const (
	GoName     = "e2e.local/testapp:1"
	PythonName = "e2e.local/testapp-python:1"
	NodeName   = "e2e.local/testapp-node:1"
)

const (
	// debianSuite is the distribution of the images that need one; its Python must
	// be pythonVersion.
	debianSuite   = "bookworm"
	pythonVersion = "3.11"
	grpcioVersion = "1.85.3"
)

// Config says where to build.
type Config struct {
	// CacheDir keeps the archives and root file systems. Zero:
	// "evenkeel/images" in the user's cache folder.
	CacheDir string
	// Progress receives a line for each step that takes long. Zero: nothing is
	// told.
	Progress func(line string)
}

func (c Config) withDefaults() (Config, error) {
	if c.CacheDir == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return c, err
		}
		c.CacheDir = filepath.Join(dir, "evenkeel", "images")
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c, os.MkdirAll(c.CacheDir, 0o755)
}

// Go builds the image of the Go test program, from the module of the working
// directory, and returns its archive.
func Go(ctx context.Context, cfg Config) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("images: %w", err)
	}
	tmp, err := os.MkdirTemp(cfg.CacheDir, "testapp-")
	if err != nil {
		return "", fmt.Errorf("images: %w", err)
	}
	defer os.RemoveAll(tmp)
	binary := filepath.Join(tmp, "testapp")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, "evenkeel.dev/e2e/testapp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("images: build testapp: %w\n%s", err, out)
	}
	archive := filepath.Join(cfg.CacheDir, "testapp.tar")
	return archive, image.Write(archive, image.Spec{
		Name: GoName, User: image.Nonroot, Entrypoint: []string{"/testapp"},
		Files: map[string]string{"/testapp": binary},
	})
}

// Python builds the image of the grpcio programs and returns its archive: a Debian
// root file system, grpcio, the programs. The first time takes a minute and
// installs mmdebstrap and pip if they are missing (root).
func Python(ctx context.Context, cfg Config) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("images: Python: %w", err)
	}
	archive, err := interpreted{
		name: PythonName, rootfs: pythonRootFS, recipe: []string{pythonVersion, grpcioVersion},
		programs: map[string]string{"/opt/main.py": pythonMain, "/opt/client.py": python.Client, "/opt/server.py": python.Server},
		packages: pythonPackages, at: "/opt/packages",
		entrypoint: []string{"/usr/bin/python3", "/opt/main.py"},
		env:        []string{"PYTHONPATH=/opt/packages", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"},
	}.write(ctx, cfg)
	if err != nil {
		return "", fmt.Errorf("images: Python: %w", err)
	}
	return archive, nil
}

// pythonMain runs client.py or server.py, as the first argument says.
const pythonMain = `import runpy, sys
runpy.run_path("/opt/%s.py" % sys.argv[1], run_name="__main__")
`

// Node builds the image of the @grpc/grpc-js server and returns its archive. What
// it needs is as for Python, with npm instead of pip.
func Node(ctx context.Context, cfg Config) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("images: Node: %w", err)
	}
	archive, err := interpreted{
		name: NodeName, rootfs: nodeRootFS, recipe: []string{toolcache.GRPCNode},
		programs:   map[string]string{"/opt/server.js": node.Server},
		packages:   func(context.Context, Config) (string, error) { return toolcache.NodePackages() },
		at:         "/opt",
		entrypoint: []string{"/usr/bin/node", "/opt/server.js"},
	}.write(ctx, cfg)
	if err != nil {
		return "", fmt.Errorf("images: Node: %w", err)
	}
	return archive, nil
}

// interpreted is an image of programs for an interpreter.
type interpreted struct {
	name   string
	rootfs debianPackages
	// recipe tells versions apart, besides the programs.
	recipe []string
	// programs are texts by their paths in the image.
	programs map[string]string
	// packages makes a folder of libraries, which the image has at the path at.
	packages   func(context.Context, Config) (string, error)
	at         string
	entrypoint []string
	env        []string // besides PATH
}

func (i interpreted) write(ctx context.Context, cfg Config) (string, error) {
	recipe := append([]string{debianSuite, runtime.GOARCH, strings.Join(i.rootfs.packages, ",")}, i.recipe...)
	for _, at := range slices.Sorted(maps.Keys(i.programs)) {
		recipe = append(recipe, at, i.programs[at])
	}
	key := hash(recipe...)
	archive := filepath.Join(cfg.CacheDir, "testapp-"+i.rootfs.name+"-"+key+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	rootfs, err := i.rootfs.make(ctx, cfg)
	if err != nil {
		return "", err
	}
	packages, err := i.packages(ctx, cfg)
	if err != nil {
		return "", err
	}
	files := map[string]string{}
	err = filepath.WalkDir(packages, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files[i.at+strings.TrimPrefix(path, packages)] = path
		}
		return err
	})
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cfg.CacheDir, "programs-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for at, text := range i.programs {
		files[at] = filepath.Join(tmp, filepath.Base(at))
		if err := os.WriteFile(files[at], []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return archive, image.Write(archive, image.Spec{
		Name: i.name, User: image.Nonroot, RootFS: rootfs, Files: files, Entrypoint: i.entrypoint,
		Env: append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, i.env...),
	})
}

// debianPackages is a Debian root file system: what it has beyond the essential
// packages.
type debianPackages struct {
	name     string
	packages []string
}

var (
	// grpcio needs the C++ library.
	pythonRootFS = debianPackages{"python", []string{"python3-minimal", "libpython3-stdlib", "libstdc++6"}}
	nodeRootFS   = debianPackages{"node", []string{"nodejs"}}
)

// make makes it as a tar, cached by its recipe.
func (p debianPackages) make(ctx context.Context, cfg Config) (string, error) {
	include := strings.Join(p.packages, ",")
	file := filepath.Join(cfg.CacheDir, fmt.Sprintf("rootfs-%s-%s.tar", debianSuite, hash(include, runtime.GOARCH)))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if os.Geteuid() != 0 {
		return "", errors.New("making a root file system needs root: run as root")
	}
	if err := debian.Ensure(ctx, debian.RootFS(), cfg.Progress); err != nil {
		return "", err
	}
	cfg.Progress("making a Debian root file system with " + include + " …")
	args := []string{"--variant=essential", "--include=" + include}
	for _, dir := range []string{"doc", "man", "locale", "info"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
	}
	args = append(args, debianSuite, file+".tmp.tar")
	defer os.Remove(file + ".tmp.tar")
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, lastLines(string(out), 20))
	}
	return file, os.Rename(file+".tmp.tar", file)
}

// pythonPackages installs grpcio into a folder, cached by version. The wheels are
// for the image's Python, whatever runs pip.
func pythonPackages(ctx context.Context, cfg Config) (string, error) {
	dir := filepath.Join(cfg.CacheDir, fmt.Sprintf("grpcio-%s-py%s-%s", grpcioVersion, pythonVersion, runtime.GOARCH))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	platform, ok := map[string]string{"amd64": "manylinux2014_x86_64", "arm64": "manylinux2014_aarch64"}[runtime.GOARCH]
	if !ok {
		return "", fmt.Errorf("no wheels of grpcio are known for %s", runtime.GOARCH)
	}
	if err := exec.CommandContext(ctx, "python3", "-m", "pip", "--version").Run(); err != nil {
		if err := debian.Ensure(ctx, []debian.Package{{Name: "python3-pip", File: "/usr/lib/python3/dist-packages/pip/__init__.py"}}, cfg.Progress); err != nil {
			return "", err
		}
	}
	cfg.Progress("installing grpcio " + grpcioVersion + " …")
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--target", tmp, "--only-binary=:all:", "--no-compile",
		"--implementation=cp", "--python-version="+pythonVersion, "--platform="+platform, "--root-user-action=ignore", "grpcio=="+grpcioVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("pip install grpcio: %w\n%s", err, lastLines(string(out), 20))
	}
	return dir, os.Rename(tmp, dir)
}

func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:12]
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
