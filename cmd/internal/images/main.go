// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command images builds the daemons and writes each as an OCI archive, without
// Docker: one static binary on an empty base.
//
//	go run ./cmd/internal/images --version v1.2.3 --arch amd64,arm64
//	ctr -n k8s.io images import bin/images/sidecar.tar
//
// The archive is an OCI image layout in a tar, as `ctr images import`, `podman
// load` and `skopeo copy oci-archive:` read it. With several architectures it
// holds an image index. The same sources, version and Go toolchain give the same
// bytes: nothing in it depends on time, place or the order of a directory.
//
// # Limitations
//
// Linux only. There is no CA bundle in the images: the daemons trust only the
// CAs that they are given. Nothing is pushed to a registry; use skopeo or crane.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// daemon is one image. All have their binary at /NAME as the entrypoint.
type daemon struct {
	name string
	user string
	// brings are further binaries, at their names: for other containers.
	brings []string
}

const nonroot = "65532:65532"

var daemons = []daemon{
	{name: "sidecar", user: nonroot},
	// Attaching BPF programs needs effective capabilities, which added ones are
	// only for uid 0.
	{name: "redirect", user: "0:0", brings: []string{"hold"}},
	{name: "injector", user: nonroot},
	{name: "xds", user: nonroot},
}

// config is what the flags say.
type config struct {
	out      string
	registry string
	version  string
	arches   []string
	names    []string
}

var (
	knownArches = []string{"amd64", "arm64"}
	// https://github.com/distribution/reference: tags are word characters,
	// dots and dashes, at most 128.
	tagCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 2
	}
	if err == nil {
		err = build(ctx, cfg, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "images:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (*config, error) {
	fs := flag.NewFlagSet("images", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var names []string
	for _, d := range daemons {
		names = append(names, d.name)
	}
	var cfg config
	fs.StringVar(&cfg.out, "out", "bin/images", "`folder` for the archives")
	fs.StringVar(&cfg.registry, "registry", "ghcr.io/evenkeel", "`prefix` of the image names")
	fs.StringVar(&cfg.version, "version", "dev", "`version` to stamp into the binaries; also the tag")
	arch := fs.String("arch", "amd64", "comma-separated `list` of amd64 and arm64")
	only := fs.String("only", strings.Join(names, ","), "comma-separated `list` of images")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	cfg.arches = strings.Split(*arch, ",")
	cfg.names = strings.Split(*only, ",")
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	for _, a := range cfg.arches {
		if !slices.Contains(knownArches, a) {
			errs = append(errs, fmt.Errorf("--arch: %q: want %s", a, strings.Join(knownArches, " or ")))
		}
	}
	for _, n := range cfg.names {
		if !slices.Contains(names, n) {
			errs = append(errs, fmt.Errorf("--only: %q: want of %s", n, strings.Join(names, ", ")))
		}
	}
	if v := cfg.version; v == "" || len(v) > 128 || strings.Trim(v, tagCharacters) != "" || strings.ContainsAny(v[:1], ".-") {
		errs = append(errs, fmt.Errorf("--version: %q is no image tag", v))
	}
	if cfg.registry == "" || strings.HasSuffix(cfg.registry, "/") {
		errs = append(errs, fmt.Errorf("--registry: %q: want HOST/PATH without a slash at the end", cfg.registry))
	}
	return &cfg, errors.Join(errs...)
}

func build(ctx context.Context, cfg *config, stdout io.Writer) error {
	if err := os.MkdirAll(cfg.out, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "evenkeel-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, d := range daemons {
		if !slices.Contains(cfg.names, d.name) {
			continue
		}
		reference := cfg.registry + "/" + d.name + ":" + cfg.version
		img := multiImage{reference: reference}
		for _, arch := range cfg.arches {
			dir := filepath.Join(tmp, d.name, arch)
			for _, name := range d.binaries() {
				if err := compile(ctx, name, arch, cfg.version, filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			if err := img.add(d, arch, cfg.version, dir); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
		}
		file := filepath.Join(cfg.out, d.name+".tar")
		if err := img.write(file); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		fmt.Fprintf(stdout, "%s %s\n", file, reference)
	}
	return nil
}

func (d daemon) binaries() []string { return append([]string{d.name}, d.brings...) }

func compile(ctx context.Context, name, arch, version, output string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X evenkeel.dev/cmd/internal/run.Version="+version,
		"-o", output, "evenkeel.dev/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", name, arch, err, out)
	}
	return nil
}
