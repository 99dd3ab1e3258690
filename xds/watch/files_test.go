// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"evenkeel.dev/xds/snapshot"
)

// sink keeps what exists.
type sink struct {
	mu      sync.Mutex
	objects map[ref]snapshot.Change
	synced  int
	history []string // "Service default/a", "-Service default/a"
}

func newSink() *sink { return &sink{objects: map[ref]snapshot.Change{}} }

func (s *sink) Apply(changes []snapshot.Change, seen time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		r := ref{c.Kind, c.Key}
		text := c.Kind.String() + " " + c.Key.String()
		if c == (snapshot.Change{Kind: c.Kind, Key: c.Key}) {
			delete(s.objects, r)
			text = "-" + text
		} else {
			s.objects[r] = c
		}
		s.history = append(s.history, text)
	}
}

func (s *sink) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced++
}

// services renders what exists as "name=clusterIP".
func (s *sink) services() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, c := range s.objects {
		if c.Service != nil {
			list = append(list, fmt.Sprintf("%s=%s", c.Key.Name, c.Service.ClusterIPs[0]))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (s *sink) events() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// folder is a directory under the eyes of a Files.
type folder struct {
	t    *testing.T
	dir  string
	sink *sink
	log  *logBuffer
}

func newFolder(t *testing.T, change func(*FilesConfig), files map[string]string) *folder {
	t.Helper()
	f := &folder{t: t, dir: t.TempDir(), sink: newSink(), log: &logBuffer{}}
	for name, content := range files {
		f.write(name, content)
	}
	cfg := FilesConfig{Logger: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Dir: f.dir, Poll: time.Hour}
	if change != nil {
		change(&cfg)
	}
	src, err := NewFiles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, f.sink) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	f.until("it is synced", func() bool { f.sink.mu.Lock(); defer f.sink.mu.Unlock(); return f.sink.synced == 1 })
	return f
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	f.t.Fatalf("never came true: %s; have %q, events %q, log:\n%s", what, f.sink.services(), f.sink.events(), f.log.String())
}

func (f *folder) wantServices(want string) {
	f.t.Helper()
	f.until("services are "+want, func() bool { return f.sink.services() == want })
}

func (f *folder) wantLog(parts ...string) {
	f.t.Helper()
	f.until(fmt.Sprintf("the log says %q", parts), func() bool {
		for line := range strings.Lines(f.log.String()) {
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
				return true
			}
		}
		return false
	})
}

func serviceYAML(name, ip string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n  - port: 50051\n", name, ip)
}

func TestFiles(t *testing.T) {
	f := newFolder(t, nil, map[string]string{
		"a.yaml":  serviceYAML("a", "10.0.0.1") + serviceYAML("b", "10.0.0.2"),
		"c.yml":   serviceYAML("c", "10.0.0.3"),
		"d.json":  `{"apiVersion":"v1","kind":"Service","metadata":{"name":"d"},"spec":{"clusterIP":"10.0.0.4"}}`,
		".e.yaml": serviceYAML("hidden", "10.0.0.5"),
		"f.yaml~": serviceYAML("backup", "10.0.0.6"),
		"g.txt":   "nothing",
	})
	f.wantServices("a=10.0.0.1 b=10.0.0.2 c=10.0.0.3 d=10.0.0.4")

	f.write("a.yaml", serviceYAML("a", "10.0.1.1")) // changed, and b is gone
	f.wantServices("a=10.0.1.1 c=10.0.0.3 d=10.0.0.4")
	if err := os.Remove(f.path("c.yml")); err != nil {
		t.Fatal(err)
	}
	f.wantServices("a=10.0.1.1 d=10.0.0.4")
	f.write("new.yaml", serviceYAML("n", "10.0.0.9"))
	f.wantServices("a=10.0.1.1 d=10.0.0.4 n=10.0.0.9")
	f.write("d.json", "")
	f.wantServices("a=10.0.1.1 n=10.0.0.9") // an empty file stays empty: that is what it says
}

// Editors do not write in place: they write another file and rename, some after
// they have moved the old one away. The objects must not go away in between.
func TestFilesEditors(t *testing.T) {
	dances := map[string]func(f *folder, content string){
		"rename over": func(f *folder, content string) {
			f.write(".a.yaml.swp", content)
			if err := os.Rename(f.path(".a.yaml.swp"), f.path("a.yaml")); err != nil {
				t.Fatal(err)
			}
		},
		"truncate and write slowly": func(f *folder, content string) {
			w, err := os.OpenFile(f.path("a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(60 * time.Millisecond) // empty for a while
			for i := range content {
				if _, err := w.WriteString(content[i : i+1]); err != nil {
					t.Fatal(err)
				}
				if i%20 == 0 {
					time.Sleep(2 * time.Millisecond)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"same size and time": func(f *folder, content string) {
			info, err := os.Stat(f.path("a.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			f.write(".new", content)
			if err := os.Chtimes(f.path(".new"), info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(f.path(".new"), f.path("a.yaml")); err != nil {
				t.Fatal(err)
			}
		},
		"symbolic link of a ConfigMap volume": func(f *folder, content string) {
			if err := os.Mkdir(f.path("..2"), 0o755); err != nil {
				t.Fatal(err)
			}
			f.write("..2/a.yaml", content)
			if err := os.Symlink("..2/a.yaml", f.path("tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(f.path("tmp"), f.path("a.yaml")); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, name := range slices.Sorted(maps.Keys(dances)) {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t, nil, map[string]string{"a.yaml": serviceYAML("a", "10.0.0.1") + serviceYAML("b", "10.0.0.2")})
			f.wantServices("a=10.0.0.1 b=10.0.0.2")
			dances[name](f, serviceYAML("a", "10.0.0.7")+serviceYAML("b", "10.0.0.2"))
			f.wantServices("a=10.0.0.7 b=10.0.0.2")
			for _, e := range f.sink.events() {
				if strings.HasPrefix(e, "-") {
					t.Errorf("an object went away: %q", f.sink.events())
				}
			}
		})
	}
}

func TestFilesMovedAwayAndBack(t *testing.T) {
	f := newFolder(t, nil, map[string]string{"a.yaml": serviceYAML("a", "10.0.0.1")})
	if err := os.Rename(f.path("a.yaml"), f.path("a.yaml~")); err != nil {
		t.Fatal(err)
	}
	f.write("a.yaml", serviceYAML("a", "10.0.0.2"))
	f.wantServices("a=10.0.0.2")
	for _, e := range f.sink.events() {
		if strings.HasPrefix(e, "-") {
			t.Errorf("an object went away: %q", f.sink.events())
		}
	}
}

// A malformed file keeps its last good content and costs no other file anything.
func TestFilesMalformed(t *testing.T) {
	f := newFolder(t, nil, map[string]string{
		"a.yaml": serviceYAML("a", "10.0.0.1"), "b.yaml": serviceYAML("b", "10.0.0.2"), "bad.yaml": serviceYAML("z", "10.0.0.300"),
	})
	f.wantServices("a=10.0.0.1 b=10.0.0.2")
	f.wantLog("level=ERROR", "nothing of it is in force", "file=bad.yaml", "line=7", "field=spec.clusterIP", "10.0.0.300")

	f.write("a.yaml", serviceYAML("a", "10.0.0.7")+serviceYAML("c", "10.0.0.x"))
	f.wantLog("level=ERROR", "its last good content stays in force", "file=a.yaml", "line=16", "object=\"Service c\"", "field=spec.clusterIP")
	f.write("b.yaml", serviceYAML("b", "10.0.0.8"))
	f.wantServices("a=10.0.0.1 b=10.0.0.8") // the good file is read, the other is as it was

	f.write("a.yaml", serviceYAML("a", "10.0.0.7")+serviceYAML("c", "10.0.0.9"))
	f.wantServices("a=10.0.0.7 b=10.0.0.8 c=10.0.0.9")
	f.write("bad.yaml", serviceYAML("z", "10.0.0.30"))
	f.wantServices("a=10.0.0.7 b=10.0.0.8 c=10.0.0.9 z=10.0.0.30")
}

// A pipe has no content until somebody writes it: the reader must not wait for that.
func TestFilesNotRegular(t *testing.T) {
	f := newFolder(t, nil, map[string]string{"a.yaml": serviceYAML("a", "10.0.0.1")})
	if err := syscall.Mkfifo(f.path("pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", f.path("null.yaml")); err != nil {
		t.Fatal(err)
	}
	f.wantLog("pipe.yaml", "not a regular file")
	f.wantLog("null.yaml", "not a regular file")
	f.write("b.yaml", serviceYAML("b", "10.0.0.2"))
	f.wantServices("a=10.0.0.1 b=10.0.0.2")
}

func TestFilesDefinedTwice(t *testing.T) {
	f := newFolder(t, nil, map[string]string{"a.yaml": serviceYAML("s", "10.0.0.1"), "b.yaml": "\n" + serviceYAML("s", "10.0.0.2")})
	f.wantServices("s=10.0.0.1")
	f.wantLog("level=ERROR", "defined twice", `object=default/s`, "first=a.yaml:2", "second=b.yaml:3")
	if err := os.Remove(f.path("a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.wantServices("s=10.0.0.2")
}

func TestFilesDirectoryGone(t *testing.T) {
	f := newFolder(t, func(c *FilesConfig) { c.Poll = 20 * time.Millisecond }, map[string]string{"a.yaml": serviceYAML("a", "10.0.0.1")})
	if err := os.Rename(f.dir, f.dir+".away"); err != nil {
		t.Fatal(err)
	}
	f.wantLog("level=ERROR", "cannot read the directory", f.dir)
	if got := f.sink.services(); got != "a=10.0.0.1" {
		t.Errorf("services are %q; want what was read before", got)
	}
	if err := os.Rename(f.dir+".away", f.dir); err != nil {
		t.Fatal(err)
	}
	f.write("b.yaml", serviceYAML("b", "10.0.0.2"))
	f.wantServices("a=10.0.0.1 b=10.0.0.2")
}

// Without notifications, looking at the directory finds the same.
func TestFilesPoll(t *testing.T) {
	f := newFolder(t, func(c *FilesConfig) { c.Poll = 20 * time.Millisecond }, map[string]string{"a.yaml": serviceYAML("a", "10.0.0.1")})
	src, err := NewFiles(FilesConfig{Logger: slog.New(slog.DiscardHandler), Dir: f.dir})
	if err != nil {
		t.Fatal(err)
	}
	s := newSink()
	src.read(t.Context(), s, time.Now())
	if src.touched() {
		t.Error("touched, though nothing was")
	}
	for what, do := range map[string]func(){
		"changed": func() { f.write("a.yaml", serviceYAML("a", "10.0.0.2")) },
		"new":     func() { f.write("b.yaml", serviceYAML("b", "10.0.0.3")) },
		"removed": func() { _ = os.Remove(f.path("a.yaml")) },
	} {
		do()
		if !src.touched() {
			t.Errorf("a file was %s, and nothing noticed", what)
		}
		src.read(t.Context(), s, time.Now())
	}
}

func TestNewFilesErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, part := range map[string]string{file: "not a directory", file + "/y": "not a directory", file + "z": "no such file"} {
		if _, err := NewFiles(FilesConfig{Logger: slog.Default(), Dir: dir}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("NewFiles(%s): %v; want one that says %q", dir, err, part)
		}
	}
}

// An Ingress is read, in this version only; a kind of that name of others is not ours.
func TestFilesIngress(t *testing.T) {
	const ingress = "---\napiVersion: %s\nkind: Ingress\nmetadata: {name: i}\nspec:\n  defaultBackend: {service: {name: web, port: {number: 80}}}\n"
	docs, err := decodeFile("a.yaml", []byte(fmt.Sprintf(ingress, "networking.k8s.io/v1")+fmt.Sprintf(ingress, "config.openshift.io/v1")))
	if err != nil || len(docs) != 1 {
		t.Fatalf("%d objects, %v", len(docs), err)
	}
	if got := fmt.Sprint(docs[0].change.Key, docs[0].change.Route.Backends); got != "default/i [default/web]" {
		t.Error(got)
	}
	_, err = decodeFile("a.yaml", []byte(fmt.Sprintf(ingress, "networking.k8s.io/v1beta1")))
	if err == nil || !strings.Contains(err.Error(), "a.yaml:2: Ingress: apiVersion") {
		t.Errorf("an old version: %v", err)
	}
}
