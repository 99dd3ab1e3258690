// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func file(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// entries reads a tar into memory.
func entries(t *testing.T, b []byte) map[string]*tar.Header {
	t.Helper()
	hs, _ := read(t, b)
	return hs
}

func read(t *testing.T, b []byte) (map[string]*tar.Header, map[string][]byte) {
	t.Helper()
	hs, data := map[string]*tar.Header{}, map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return hs, data
		}
		if err != nil {
			t.Fatal(err)
		}
		if data[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		hs[h.Name] = h
	}
}

func archiveOf(t *testing.T, spec Spec) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := Write(path, spec); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWrite(t *testing.T) {
	var rootfs bytes.Buffer
	w := tar.NewWriter(&rootfs)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	program := file(t, "program", "#!/bin/true\n", 0o750)
	for _, tt := range []struct {
		name   string
		spec   Spec
		layers [][]string // what each layer must have
	}{
		{
			name:   "empty base",
			spec:   Spec{Name: "e2e.local:5000/a/b:7", Files: map[string]string{"/opt/x/program": program}, Entrypoint: []string{"/opt/x/program"}, User: Nonroot},
			layers: [][]string{{"tmp/", "etc/passwd", "opt/", "opt/x/", "opt/x/program"}},
		},
		{
			name:   "over a root file system",
			spec:   Spec{Name: "e2e.local/b:1", RootFS: file(t, "rootfs.tar", rootfs.String(), 0o600), Files: map[string]string{"/opt/program": program}},
			layers: [][]string{{"usr/"}, {"opt/program"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, data := read(t, archiveOf(t, tt.spec))
			for name, b := range data {
				if digest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
					if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != digest {
						t.Errorf("blob %s has digest %x", name, sum)
					}
				}
			}
			var index struct {
				Manifests []struct {
					Digest      string
					Annotations map[string]string
				}
			}
			decode(t, data["index.json"], &index)
			if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != tt.spec.Name {
				t.Errorf("name: got %q, want %q", got, tt.spec.Name)
			}
			blob := func(digest string) []byte { return data["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] }
			var manifest struct {
				Config struct{ Digest string }
				Layers []struct {
					Digest string
					Size   int
				}
			}
			decode(t, blob(index.Manifests[0].Digest), &manifest)
			var config struct {
				Config struct {
					User       string
					Entrypoint []string
				}
				RootFS struct {
					DiffIDs []string `json:"diff_ids"`
				}
			}
			decode(t, blob(manifest.Config.Digest), &config)
			if config.Config.User != tt.spec.User || len(config.Config.Entrypoint) != len(tt.spec.Entrypoint) {
				t.Errorf("config: got %+v", config.Config)
			}
			if len(manifest.Layers) != len(tt.layers) || len(config.RootFS.DiffIDs) != len(tt.layers) {
				t.Fatalf("%d layers and %d diff ids, want %d", len(manifest.Layers), len(config.RootFS.DiffIDs), len(tt.layers))
			}
			for i, want := range tt.layers {
				l := blob(manifest.Layers[i].Digest)
				if len(l) != manifest.Layers[i].Size {
					t.Errorf("layer %d: size %d, descriptor says %d", i, len(l), manifest.Layers[i].Size)
				}
				hs := entries(t, l)
				for _, name := range want {
					if hs[name] == nil {
						t.Errorf("layer %d has no %s", i, name)
					}
				}
				if h := hs["opt/program"]; h != nil && h.Mode != 0o750 {
					t.Errorf("mode of the program: %o, want 750", h.Mode)
				}
				if h := hs["tmp/"]; h != nil && h.Mode != 0o1777 {
					t.Errorf("mode of /tmp: %o, want 1777", h.Mode)
				}
			}
		})
	}
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func TestWriteIsReproducible(t *testing.T) {
	spec := Spec{Name: "e2e.local/a:1", Files: map[string]string{"/b": file(t, "b", "b", 0o600), "/a": file(t, "a", "a", 0o600)}}
	if !bytes.Equal(archiveOf(t, spec), archiveOf(t, spec)) {
		t.Error("two archives of one spec differ")
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, tt := range []struct {
		spec Spec
		want string
	}{
		{Spec{Name: "e2e.local:5000/a"}, "no tag"},
		{Spec{Name: "a:1", Files: map[string]string{"relative": "/dev/null"}}, `"relative"`},
		{Spec{Name: "a:1", Files: map[string]string{"/x": "/does/not/exist"}}, "/does/not/exist"},
		{Spec{Name: "a:1", RootFS: "/does/not/exist"}, "/does/not/exist"},
	} {
		dir := t.TempDir()
		err := Write(filepath.Join(dir, "image.tar"), tt.spec)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got error %v, want one that says %s", tt.spec, err, tt.want)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("%+v: left behind %v (%v)", tt.spec, left, err)
		}
	}
}
