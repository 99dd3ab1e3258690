// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func writeArchive(t *testing.T, d daemon, arches ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	for _, name := range d.binaries() {
		// Large enough for several flate blocks.
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("not really a program\n"), 10_000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	img := multiImage{reference: "registry.example:5000/evenkeel/" + d.name + ":v1.2.3"}
	for _, arch := range arches {
		if err := img.add(d, arch, "v1.2.3", dir); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := img.write(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unpack extracts an archive into a folder.
func unpack(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestArchiveIsAnImageLayout(t *testing.T) {
	for _, d := range daemons {
		t.Run(d.name, func(t *testing.T) {
			index, err := layout.ImageIndexFromPath(unpack(t, writeArchive(t, d, "amd64")))
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(index); err != nil {
				t.Fatal(err)
			}
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			if len(manifest.Manifests) != 1 {
				t.Fatalf("index.json names %d manifests, want 1", len(manifest.Manifests))
			}
			desc := manifest.Manifests[0]
			want := map[string]string{
				"io.containerd.image.name":          "registry.example:5000/evenkeel/" + d.name + ":v1.2.3",
				"org.opencontainers.image.ref.name": "v1.2.3",
			}
			for k, v := range want {
				if desc.Annotations[k] != v {
					t.Errorf("annotation %s: got %q, want %q", k, desc.Annotations[k], v)
				}
			}
			img, err := index.Image(desc.Digest)
			if err != nil {
				t.Fatal(err)
			}
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			if config.Config.User != d.user {
				t.Errorf("user: got %q, want %q", config.Config.User, d.user)
			}
			if got := strings.Join(config.Config.Entrypoint, " "); got != "/"+d.name {
				t.Errorf("entrypoint: got %q, want %q", got, "/"+d.name)
			}
			if config.Architecture != "amd64" || config.OS != "linux" {
				t.Errorf("platform: got %s/%s, want linux/amd64", config.OS, config.Architecture)
			}
			files := tar.NewReader(mutate.Extract(img))
			modes := map[string]int64{}
			for {
				h, err := files.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				modes["/"+strings.TrimSuffix(h.Name, "/")] = h.Mode & 0o7777
			}
			wantModes := map[string]int64{"/tmp": 0o1777, "/etc/passwd": 0o644}
			for _, name := range d.binaries() {
				wantModes["/"+name] = 0o755
			}
			for path, mode := range wantModes {
				if got, ok := modes[path]; !ok || got != mode {
					t.Errorf("%s: got mode %o (there: %v), want %o", path, got, ok, mode)
				}
			}
		})
	}
}

func TestSeveralArchitecturesMakeAnIndex(t *testing.T) {
	index, err := layout.ImageIndexFromPath(unpack(t, writeArchive(t, daemons[0], "amd64", "arm64")))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].MediaType != types.OCIImageIndex {
		t.Fatalf("index.json: got %+v, want one nested index", manifest.Manifests)
	}
	nested, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(nested); err != nil {
		t.Fatal(err)
	}
	images, err := nested.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, d := range images.Manifests {
		arches = append(arches, d.Platform.Architecture)
	}
	if got := strings.Join(arches, ","); got != "amd64,arm64" {
		t.Errorf("architectures: got %s, want amd64,arm64", got)
	}
}

func TestSameInputGivesSameBytes(t *testing.T) {
	a := writeArchive(t, daemons[1], "amd64", "arm64")
	b := writeArchive(t, daemons[1], "amd64", "arm64")
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same input differ")
	}
}

func TestParseReportsEveryMistake(t *testing.T) {
	var stderr bytes.Buffer
	_, err := parse([]string{"--arch=amd64,mips", "--only=sidecar,envoy", "--version=v1+dirty", "--registry=", "extra"}, &stderr)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`--arch: "mips"`, `--only: "envoy"`, `--version: "v1+dirty"`, `--registry: ""`, `unexpected argument "extra"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %s:\n%s", want, err)
		}
	}
}

// find returns the content of one file of a tar.
func find(t *testing.T, r *tar.Reader, name string) []byte {
	t.Helper()
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("find %s: %v", name, err)
		}
		if h.Name == name {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
}

// The whole way for one that exists in every checkout: compile, archive, say so.
func TestRunBuildsAStaticBinary(t *testing.T) {
	out := t.TempDir()
	var stdout, stderr bytes.Buffer
	if code := run([]string{"--out", out, "--only", "redirect", "--arch", runtime.GOARCH, "--version", "v9.9.9", "--registry", "example.org/e"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	file := filepath.Join(out, "redirect.tar")
	if want := file + " example.org/e/redirect:v9.9.9\n"; stdout.String() != want {
		t.Errorf("output: got %q, want %q", stdout.String(), want)
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(unpack(t, archive))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, name := range []string{"redirect", "hold"} {
		binary := find(t, tar.NewReader(mutate.Extract(img)), name)
		program, err := elf.NewFile(bytes.NewReader(binary))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range program.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s wants a dynamic linker, and the image has none", name)
			}
		}
		// The helper has no version: it is a step on the way to another program.
		if name == "redirect" && !bytes.Contains(binary, []byte("v9.9.9")) {
			t.Errorf("%s does not know its version", name)
		}
		if err := os.WriteFile(filepath.Join(root, name), binary, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	installsHelper(t, root)
	if code := run([]string{"--only", "nothing"}, &stdout, &stderr); code != 1 {
		t.Errorf("exit status with a wrong flag: got %d, want 1", code)
	}
}

// installsHelper: the init step of the image brings the image's helper. It does so
// first; then this one fails, for it is in no pod.
func installsHelper(t *testing.T, root string) {
	t.Helper()
	volume := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "redirect"), "init", "--cgroup="+filepath.Join(root, "none"), "--install-hold="+volume)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("it attached to a cgroup that does not exist: %s", out)
	}
	got, err := os.ReadFile(filepath.Join(volume, "hold"))
	want, wantErr := os.ReadFile(filepath.Join(root, "hold"))
	if err != nil || wantErr != nil || !bytes.Equal(got, want) {
		t.Errorf("the helper was not installed: %v, %v, %d of %d bytes", err, wantErr, len(got), len(want))
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(volume, "hold"), "--port=1", "--secret=s", "--timeout=1s", "--", "echo", "bye").Output()
	if err != nil || string(out) != "bye\n" {
		t.Errorf("the helper said %q, %v; want its command's word", out, err)
	}
}
