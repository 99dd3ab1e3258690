// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package image writes the container images of the tests as OCI archives, which
// containerd imports without a registry.
//
// Layers are stored uncompressed: the archives never leave the machine, so
// compressing them and back would only cost time. The same input gives the same
// bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Spec describes one image.
type Spec struct {
	// Name is the image's full reference, as pods write it: "e2e.local/app:1".
	Name string
	// Files maps paths in the image to files on this machine. Their
	// permission bits are kept, owner and times are not.
	Files map[string]string
	// RootFS is a tar file of a root file system, over which Files are laid.
	// Zero: the base is empty but for /etc/passwd, /etc/group,
	// /etc/nsswitch.conf and /tmp.
	RootFS string
	// Entrypoint is the command; the pod's args are appended.
	Entrypoint []string
	// Env is the environment. Zero: a PATH.
	Env []string
	// User is "uid:gid". Zero: root.
	User string
}

// Nonroot is the user for whatever needs no privilege.
const Nonroot = "65532:65532"

var epoch = time.Unix(0, 0)

// Write makes the archive at file, whole or not at all.
func Write(file string, spec Spec) error {
	if err := write(file, spec); err != nil {
		return fmt.Errorf("image: write %s (%s): %w", file, spec.Name, err)
	}
	return nil
}

func write(file string, spec Spec) error {
	repository, tag, ok := cutTag(spec.Name)
	if !ok {
		return fmt.Errorf("name %q has no tag", spec.Name)
	}
	own := file + ".layer"
	defer os.Remove(own)
	if err := writeLayer(own, spec); err != nil {
		return err
	}
	var layers []layer
	for _, path := range []string{spec.RootFS, own} {
		if path == "" {
			continue
		}
		l, err := openLayer(path)
		if err != nil {
			return err
		}
		layers = append(layers, l)
	}
	env := spec.Env
	if len(env) == 0 {
		env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	a := archive{blobs: map[string][]byte{}}
	var diffIDs []string
	var descriptors []object
	for _, l := range layers {
		diffIDs = append(diffIDs, l.digest)
		descriptors = append(descriptors, object{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": l.digest, "size": l.size})
	}
	config := a.add("application/vnd.oci.image.config.v1+json", object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Env": env, "Entrypoint": spec.Entrypoint, "User": spec.User},
		// https://github.com/opencontainers/image-spec/blob/v1.1.1/config.md#layer-diffid:
		// "A layer DiffID is the digest over the layer's uncompressed tar archive"
		"rootfs": object{"type": "layers", "diff_ids": diffIDs},
	})
	manifest := a.add("application/vnd.oci.image.manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
		"layers": descriptors,
	})
	manifest["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	manifest["annotations"] = object{
		"io.containerd.image.name":          repository + ":" + tag,
		"org.opencontainers.image.ref.name": tag,
	}
	a.file("index.json", object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{manifest}})
	a.file("oci-layout", object{"imageLayoutVersion": "1.0.0"})
	if a.err != nil {
		return a.err
	}
	return a.write(file, layers)
}

// cutTag splits a reference; a registry's port is not a tag.
func cutTag(name string) (repository, tag string, ok bool) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 || strings.Contains(name[i:], "/") {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

type object = map[string]any

type archive struct {
	blobs map[string][]byte
	err   error
}

// add stores v as a blob and returns its descriptor.
func (a *archive) add(mediaType string, v object) object {
	b, err := json.Marshal(v)
	a.err = errors.Join(a.err, err)
	digest := sha256.Sum256(b)
	hexed := hex.EncodeToString(digest[:])
	a.blobs["blobs/sha256/"+hexed] = b
	return object{"mediaType": mediaType, "digest": "sha256:" + hexed, "size": len(b)}
}

func (a *archive) file(name string, v object) {
	b, err := json.Marshal(v)
	a.err = errors.Join(a.err, err)
	a.blobs[name] = b
}

func (a *archive) write(file string, layers []layer) error {
	out, err := os.Create(file + ".tmp")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	w := tar.NewWriter(out)
	put := func(name string, size int64, r io.Reader) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: epoch}); err != nil {
			return err
		}
		_, err := io.Copy(w, r)
		return err
	}
	names := make([]string, 0, len(a.blobs))
	for name := range a.blobs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := put(name, int64(len(a.blobs[name])), bytes.NewReader(a.blobs[name])); err != nil {
			return err
		}
	}
	for _, l := range layers {
		in, err := os.Open(l.path)
		if err != nil {
			return err
		}
		err = put("blobs/sha256/"+strings.TrimPrefix(l.digest, "sha256:"), l.size, in)
		in.Close()
		if err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), file)
}

// writeLayer makes the layer of spec.Files, with the base if there is no other.
func writeLayer(file string, spec Spec) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	l := layerWriter{w: tar.NewWriter(out), dirs: map[string]bool{}}
	if spec.RootFS == "" {
		l.dir("/tmp")
		l.text("/etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
		l.text("/etc/group", "root:x:0:\nnonroot:x:65532:\n")
		l.text("/etc/nsswitch.conf", "hosts: files dns\n")
	}
	targets := make([]string, 0, len(spec.Files))
	for target := range spec.Files {
		targets = append(targets, target)
	}
	slices.Sort(targets)
	for _, target := range targets {
		l.copy(target, spec.Files[target])
	}
	if l.err != nil {
		return l.err
	}
	if err := l.w.Close(); err != nil {
		return err
	}
	return out.Close()
}

// layerWriter keeps the first error; later calls do nothing.
type layerWriter struct {
	w    *tar.Writer
	dirs map[string]bool
	err  error
}

func (l *layerWriter) dir(name string) {
	if name == "/" || name == "." || l.dirs[name] || l.err != nil {
		return
	}
	l.dir(path.Dir(name))
	l.dirs[name] = true
	mode := int64(0o755)
	if name == "/tmp" {
		mode = 0o1777
	}
	l.err = errors.Join(l.err, l.w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[1:] + "/", Mode: mode, ModTime: epoch}))
}

func (l *layerWriter) text(target, s string) {
	l.put(target, 0o644, int64(len(s)), strings.NewReader(s))
}

func (l *layerWriter) copy(target, source string) {
	if !filepath.IsAbs(target) {
		l.err = errors.Join(l.err, fmt.Errorf("path %q in the image is not absolute", target))
		return
	}
	f, err := os.Open(source)
	if err != nil {
		l.err = errors.Join(l.err, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		l.err = errors.Join(l.err, err)
		return
	}
	l.put(target, int64(info.Mode().Perm()), info.Size(), f)
}

func (l *layerWriter) put(target string, mode, size int64, r io.Reader) {
	l.dir(path.Dir(target))
	if l.err != nil {
		return
	}
	if l.err = l.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: target[1:], Mode: mode, Size: size, ModTime: epoch}); l.err == nil {
		_, l.err = io.Copy(l.w, r)
	}
}

// layer is a tar file.
type layer struct {
	path   string
	digest string
	size   int64
}

func openLayer(path string) (layer, error) {
	f, err := os.Open(path)
	if err != nil {
		return layer{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	return layer{path: path, digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), size: size}, err
}
