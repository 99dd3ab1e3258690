// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/xds/snapshot"
)

// FilesConfig configures the source that reads a directory.
type FilesConfig struct {
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// Dir holds *.yaml, *.yml and *.json; directories in it are not entered.
	Dir string
	// Settle is how long a file must be left alone before it is read: an editor
	// or a program that writes in place must be able to finish. Default: 20 ms.
	Settle time.Duration
	// Poll is how often the directory is looked at in any case, for file systems
	// that do not notify. Default: 2 s.
	Poll time.Duration
	// BlindPoll is how often it is looked at when the kernel gives no
	// notifications, as when fs.inotify.max_user_instances is used up. Default:
	// 100 ms.
	BlindPoll time.Duration
}

// Files is the source that reads a directory of YAML files, as the sandbox uses it.
type Files struct {
	cfg      FilesConfig
	log      *slog.Logger
	metrics  *metrics
	good     map[string]*goodFile                // by file name: what is in force
	have     map[ref]snapshot.Change             // what the sink has
	bad      map[string]struct{}                 // files whose newest content cannot be used
	missing  map[string]time.Time                // good files that are away, since when
	clashes  map[ref]string                      // objects that are in two files, as logged
	assigned map[ref]assignment                  // Services that were given a ClusterIP
	stat     map[string]fileStat                 // what was last seen of each file
	last     atomic.Int64                        // when the directory was last read
	readDir  func(string) ([]fs.DirEntry, error) // os.ReadDir
}

// goodFile is the last content of a file that could be used.
type goodFile struct{ docs []document }

type fileStat struct{ os.FileInfo }

// same reports whether neither the file nor its content was replaced. The file
// itself counts too: a rename may bring one of the same size and time.
func (a fileStat) same(b fileStat) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a.FileInfo, b.FileInfo)
}

// NewFiles looks whether the directory can be read.
func NewFiles(cfg FilesConfig) (*Files, error) {
	if cfg.Logger == nil {
		return nil, errors.New("watch: Logger: required")
	}
	cfg.Settle = cmp.Or(cfg.Settle, 20*time.Millisecond)
	cfg.Poll = cmp.Or(cfg.Poll, 2*time.Second)
	cfg.BlindPoll = cmp.Or(cfg.BlindPoll, 100*time.Millisecond)
	info, err := os.Stat(cfg.Dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", cfg.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("files: %w", err)
	}
	f := &Files{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(),
		good: map[string]*goodFile{}, have: map[ref]snapshot.Change{}, bad: map[string]struct{}{}, missing: map[string]time.Time{},
		clashes: map[ref]string{}, stat: map[string]fileStat{}, readDir: os.ReadDir,
	}
	f.last.Store(time.Now().UnixNano())
	f.metrics.age.set("files", func() float64 { return time.Since(time.Unix(0, f.last.Load())).Seconds() })
	if err := f.metrics.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("files: metrics: %w", err)
	}
	return f, nil
}

// Run reads the directory, and again whenever it changes, until ctx is done.
func (f *Files) Run(ctx context.Context, sink Sink) error {
	events, stop := f.notify()
	defer stop()
	f.read(ctx, sink, time.Now())
	sink.Synced()
	every := f.cfg.Poll
	if events == nil {
		every = f.cfg.BlindPoll
	}
	poll := time.NewTicker(every)
	defer poll.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		if len(f.missing) > 0 {
			again.Reset(f.patience())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			f.read(ctx, sink, time.Now())
		case <-poll.C:
			if !f.touched() {
				continue
			}
			f.read(ctx, sink, time.Now())
		case _, ok := <-events:
			if !ok {
				events = nil
				poll.Reset(f.cfg.BlindPoll)
				continue
			}
			f.read(ctx, sink, time.Now())
		}
	}
}

// notify reports changes of the directory; nil if the system cannot tell them.
func (f *Files) notify() (<-chan struct{}, func()) {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(f.cfg.Dir); err != nil {
			_ = w.Close()
		}
	}
	if err != nil {
		f.log.Warn("no notifications of changed files; looking at the directory instead", "dir", f.cfg.Dir, "every", f.cfg.BlindPoll, "error", err)
		return nil, func() {}
	}
	out := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		for {
			select {
			case ev, ok := <-w.Events:
				if !ok {
					return
				}
				if ev.Op == fsnotify.Chmod {
					continue
				}
			case err, ok := <-w.Errors:
				if !ok {
					return
				}
				// An overflow of the kernel's queue: something was missed, so read all.
				f.log.Warn("notifications of changed files", "dir", f.cfg.Dir, "error", err)
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() {
		_ = w.Close()
		<-done
	}
}

// names lists the files to read, sorted.
func (f *Files) names() ([]string, error) {
	entries, err := f.readDir(f.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		n := e.Name()
		// Hidden files are those of editors; ..data is a ConfigMap volume's.
		if strings.HasPrefix(n, ".") || e.IsDir() {
			continue
		}
		switch filepath.Ext(n) {
		case ".yaml", ".yml", ".json":
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (f *Files) statOf(name string) (fileStat, error) {
	info, err := os.Stat(filepath.Join(f.cfg.Dir, name))
	switch {
	case err != nil:
		return fileStat{}, err
	case !info.Mode().IsRegular():
		// Reading a named pipe would wait for a writer, perhaps for ever.
		return fileStat{}, fmt.Errorf("not a regular file (%s)", info.Mode().Type())
	}
	return fileStat{info}, nil
}

// touched reports whether a look at the directory shows a change.
func (f *Files) touched() bool {
	names, err := f.names()
	if err != nil {
		return true // read says what is wrong
	}
	f.last.Store(time.Now().UnixNano())
	now := map[string]fileStat{}
	for _, n := range names {
		if st, err := f.statOf(n); err == nil {
			now[n] = st
		}
	}
	return !maps.EqualFunc(now, f.stat, fileStat.same)
}

// read brings the sink up to what the files say.
func (f *Files) read(ctx context.Context, sink Sink, seen time.Time) {
	names, err := f.names()
	if err != nil {
		f.metrics.errors.WithLabelValues("files").Inc()
		f.log.Error("cannot read the directory; what was read before stays in force", "dir", f.cfg.Dir, "error", err)
		return
	}
	f.last.Store(time.Now().UnixNano())
	present := map[string]struct{}{}
	for _, n := range names {
		present[n] = struct{}{}
		st, err := f.statOf(n)
		if errors.Is(err, fs.ErrNotExist) {
			delete(present, n) // removed, or between the two halves of a rename
			continue
		}
		if old, ok := f.stat[n]; ok && err == nil && old.same(st) {
			continue
		}
		if !f.load(ctx, n) {
			return // ctx is done
		}
	}
	f.dropMissing(present, time.Now())
	for n := range f.stat {
		if _, ok := present[n]; !ok {
			delete(f.stat, n)
			delete(f.bad, n)
		}
	}
	f.metrics.invalid.Set(float64(len(f.bad)))
	if changes := f.merge(); len(changes) > 0 {
		sink.Apply(changes, seen)
	}
}

// dropMissing forgets files that are gone. Some editors move a file away before
// they write the new one, so it has to stay away for a while, as an empty file
// has to stay empty; Run looks again.
func (f *Files) dropMissing(present map[string]struct{}, now time.Time) {
	for n := range f.good {
		since, waiting := f.missing[n]
		if _, ok := present[n]; ok {
			delete(f.missing, n)
			continue
		}
		switch {
		case !waiting:
			f.missing[n] = now
		case now.Sub(since) >= f.patience():
			f.log.Info("file is gone, and what it defined", "file", n)
			delete(f.good, n)
			delete(f.missing, n)
		}
	}
}

// patience is how long a file must be empty or away to be taken at its word.
func (f *Files) patience() time.Duration { return 10 * f.cfg.Settle }

// load reads one file, keeping the last good content if the new one is not. It
// returns false when ctx is done.
func (f *Files) load(ctx context.Context, name string) bool {
	data, st, err := f.settled(ctx, name)
	if ctx.Err() != nil {
		return false
	}
	if errors.Is(err, fs.ErrNotExist) {
		return true // gone meanwhile; the event of it is on its way
	}
	var docs []document
	if err == nil {
		f.stat[name] = st
		docs, err = decodeFile(name, data)
	}
	if err != nil {
		f.bad[name] = struct{}{}
		f.metrics.errors.WithLabelValues("files").Inc()
		f.complain(name, err)
		return true
	}
	delete(f.bad, name)
	for _, d := range docs {
		for _, a := range d.advice {
			f.log.Warn("a field was ignored", "file", a.File, "line", a.Line, "object", a.Object, "field", a.Field, "problem", a.Text)
		}
	}
	f.log.Debug("file read", "file", name, "objects", len(docs))
	f.good[name] = &goodFile{docs}
	return true
}

// complain logs each mistake of a file on its own.
func (f *Files) complain(name string, err error) {
	kept := "nothing of it is in force"
	if f.good[name] != nil {
		kept = "its last good content stays in force"
	}
	for _, e := range flatten(err) {
		if fe, ok := errors.AsType[*FieldError](e); ok {
			f.log.Error("file cannot be used; "+kept, "file", fe.File, "line", fe.Line, "object", fe.Object, "field", fe.Field, "problem", fe.Text)
			continue
		}
		f.log.Error("file cannot be used; "+kept, "file", name, "problem", e)
	}
}

func flatten(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// maxFile bounds a file: more than any cluster's Services in YAML.
const maxFile = 256 << 20

// settled reads a file that nobody is writing any more: its size and time are
// the same before and after, with Settle in between. A program that truncates
// and writes leaves the file empty for a moment, which would be a valid file
// that defines nothing, so an empty one has to stay so for longer.
func (f *Files) settled(ctx context.Context, name string) ([]byte, fileStat, error) {
	before, err := f.statOf(name)
	if err != nil {
		return nil, fileStat{}, err
	}
	t := time.NewTimer(0)
	defer t.Stop()
	<-t.C
	for {
		wait := f.cfg.Settle
		if before.Size() == 0 {
			wait = f.patience()
		}
		if before.Size() > maxFile {
			return nil, before, fmt.Errorf("%d bytes: more than %d are not read", before.Size(), maxFile)
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, fileStat{}, ctx.Err()
		}
		data, err := os.ReadFile(filepath.Join(f.cfg.Dir, name))
		if err != nil {
			return nil, before, err
		}
		after, err := f.statOf(name)
		if err != nil {
			return nil, before, err
		}
		if after.same(before) && int64(len(data)) == after.Size() {
			return data, after, nil
		}
		before = after
	}
}

// merge compares what all good files define with what the sink has.
func (f *Files) merge() []snapshot.Change {
	want := map[ref]snapshot.Change{}
	from := map[ref]string{}
	clashes := map[ref]string{}
	for _, name := range slices.Sorted(maps.Keys(f.good)) {
		for _, d := range f.good[name].docs {
			r := ref{d.change.Kind, d.change.Key}
			if first, ok := from[r]; ok {
				clash := fmt.Sprintf("%s:%d", name, d.line)
				clashes[r] = clash
				if f.clashes[r] != clash {
					f.log.Error("object is defined twice; the first one is in force", "kind", r.kind.String(), "object", r.key.String(),
						"first", first, "second", clash)
				}
				continue
			}
			from[r] = fmt.Sprintf("%s:%d", name, d.line)
			want[r] = d.change
		}
	}
	f.clashes = clashes
	f.assign(want)
	var changes []snapshot.Change
	for r := range f.have {
		if _, ok := want[r]; !ok {
			changes = append(changes, snapshot.Change{Kind: r.kind, Key: r.key})
		}
	}
	for r, c := range want {
		if old, ok := f.have[r]; !ok || old != c {
			changes = append(changes, c)
		}
	}
	f.have = want
	return changes
}
