// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in the images.
var epoch = time.Unix(0, 0).UTC()

// multiImage is one image in one or more architectures.
type multiImage struct {
	reference string
	adds      []mutate.IndexAddendum
}

// add makes the image of the binaries in dir.
func (m *multiImage) add(d daemon, arch, version, dir string) error {
	var binaries []file
	for _, name := range d.binaries() {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		binaries = append(binaries, file{name, 0o755, b})
	}
	content, err := layerTar(binaries)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	diffID, err := layer.DiffID()
	if err != nil {
		return err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layer); err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: v1.Time{Time: epoch},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
		Config: v1.Config{
			Entrypoint: []string{"/" + d.name},
			User:       d.user,
			WorkingDir: "/",
			Env:        []string{"PATH=/"},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "evenkeel " + d.name,
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return err
	}
	m.adds = append(m.adds, mutate.IndexAddendum{
		Add:        img,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
	})
	return nil
}

type file struct {
	name string
	mode int64
	data []byte
}

// layerTar is the whole file system: who we are, a place for temporary files,
// and the binaries.
func layerTar(binaries []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, dir := range []tar.Header{{Name: "etc/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}} {
		dir.Typeflag, dir.ModTime, dir.Format = tar.TypeDir, epoch, tar.FormatPAX
		if err := w.WriteHeader(&dir); err != nil {
			return nil, err
		}
	}
	for _, f := range append([]file{
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n")},
	}, binaries...) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: epoch, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

// write makes the archive, whole or not at all. One architecture: the layout's
// index.json names the manifest itself; several: an index of them.
func (m *multiImage) write(file string) error {
	out, err := os.Create(file + ".tmp")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	if err := m.writeTo(out); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

func (m *multiImage) writeTo(out io.Writer) error {
	a := archive{w: tar.NewWriter(out), seen: map[string]bool{}}
	for _, add := range m.adds {
		img, ok := add.Add.(v1.Image)
		if !ok {
			return fmt.Errorf("unexpected %T in the index", add.Add)
		}
		if err := a.image(img); err != nil {
			return err
		}
	}
	top := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), m.adds...)
	annotations := map[string]string{
		// Where containerd takes the whole name from; the specification's own
		// key is only for the tag:
		// https://github.com/opencontainers/image-spec/blob/v1.1.1/annotations.md
		"io.containerd.image.name":          m.reference,
		"org.opencontainers.image.ref.name": tagOf(m.reference),
	}
	var add mutate.IndexAddendum
	if len(m.adds) == 1 {
		add = m.adds[0]
	} else {
		raw, err := top.RawManifest()
		if err != nil {
			return err
		}
		digest, err := top.Digest()
		if err != nil {
			return err
		}
		if err := a.blob(digest, raw); err != nil {
			return err
		}
		add = mutate.IndexAddendum{Add: top}
	}
	add.Annotations = annotations
	index, err := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), add).RawManifest()
	if err != nil {
		return err
	}
	if err := a.file("index.json", index); err != nil {
		return err
	}
	if err := a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return a.w.Close()
}

// tagOf returns what is behind the last colon; every reference here has a tag.
func tagOf(reference string) string {
	return reference[strings.LastIndexByte(reference, ':')+1:]
}

// archive writes the blobs of an OCI image layout, each once.
type archive struct {
	w    *tar.Writer
	seen map[string]bool
}

func (a *archive) image(img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return err
		}
		if err := a.blob(digest, b); err != nil {
			return err
		}
	}
	name, err := img.ConfigName()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	if err := a.blob(name, config); err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	return a.blob(digest, manifest)
}

func (a *archive) blob(digest v1.Hash, b []byte) error {
	return a.file(filepath.Join("blobs", digest.Algorithm, digest.Hex), b)
}

func (a *archive) file(name string, b []byte) error {
	if a.seen[name] {
		return nil
	}
	a.seen[name] = true
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: epoch, Format: tar.FormatPAX}
	if err := a.w.WriteHeader(h); err != nil {
		return err
	}
	_, err := a.w.Write(b)
	return err
}
