// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"evenkeel.dev/xds/snapshot"
	"evenkeel.dev/xds/watch"
)

// manifests follows the YAML files, by the control plane's own reader, and keeps CMD's hosts file as they say.
type manifests struct {
	hosts     string // path; "": none is kept
	base      []byte // the machine's own hosts file
	namespace string
	logger    *slog.Logger
	synced    chan struct{}
	stop      func()

	mu       sync.Mutex
	services map[snapshot.ObjectKey]*snapshot.Service
	slices   map[snapshot.ObjectKey]*snapshot.Slice
}

// followManifests reads the files in cfg.Dir and, where hosts names one, writes the hosts file. It goes on until stop is called. A
// file that cannot be used is an error now, and a line on cfg.Notices later.
func followManifests(ctx context.Context, cfg Config, hosts string) (*manifests, error) {
	var base []byte
	if hosts != "" {
		var err error
		if base, err = os.ReadFile(hostsPath); err != nil {
			return nil, fmt.Errorf("the command sees Services by name through %s, which must exist: %w", hostsPath, err)
		}
	}
	complaints := &complaints{next: cfg.Logger.Handler()}
	files, err := watch.NewFiles(watch.FilesConfig{Logger: slog.New(complaints), Dir: cfg.Dir})
	if err != nil {
		return nil, err
	}
	m := &manifests{
		hosts: hosts, base: base, namespace: cfg.Namespace, logger: cfg.Logger,
		services: make(map[snapshot.ObjectKey]*snapshot.Service),
		slices:   make(map[snapshot.ObjectKey]*snapshot.Slice),
		synced:   make(chan struct{}),
	}
	m.write() // an empty directory is never applied
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var failed error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		failed = files.Run(run, m)
	}()
	m.stop = func() {
		cancel()
		<-ended
	}
	select {
	case <-m.synced:
	case <-ended:
		cancel()
		return nil, fmt.Errorf("follow the files in %s: %w", cfg.Dir, failed)
	case <-ctx.Done():
		cancel() // without waiting: a file system that hangs must not keep the user
		return nil, context.Cause(ctx)
	}
	if err := complaints.switchTo(cfg.Notices); err != nil {
		m.stop()
		return nil, fmt.Errorf("the files in %s: %w", cfg.Dir, err)
	}
	return m, nil
}

// Apply is part of watch.Sink; the source calls it from one goroutine.
func (m *manifests) Apply(changes []snapshot.Change, _ time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		switch {
		case c.Kind == snapshot.KindService && c.Service != nil:
			m.services[c.Key] = c.Service
		case c.Kind == snapshot.KindService:
			delete(m.services, c.Key)
		case c.Kind == snapshot.KindSlice && c.Slice != nil:
			m.slices[c.Key] = c.Slice
		case c.Kind == snapshot.KindSlice:
			delete(m.slices, c.Key)
		}
	}
	m.write()
}

// Synced is part of watch.Sink.
func (m *manifests) Synced() { close(m.synced) }

// write writes the hosts file in place: a mount is of the file, not of its name, so a renamed new one would not be seen. For the
// moment of the write a reader may see the file half new; resolvers read it at each look-up.
func (m *manifests) write() {
	if m.hosts == "" {
		return
	}
	text := hostsFile(m.base, slices.Collect(maps.Values(m.services)), slices.Collect(maps.Values(m.slices)), m.namespace)
	if err := overwrite(m.hosts, text); err != nil {
		m.logger.Error("the Services' names for the command could not be written", "error", err)
	}
}

func overwrite(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Truncate(int64(len(text))), f.Close())
}

// empty: no file has a Service.
func (m *manifests) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.services) == 0
}

// notRedirected lists the ports of Services that are not among the outbound ports.
func (m *manifests) notRedirected(outbound []uint16) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var left []string
	for key, svc := range m.services {
		for _, port := range svc.Ports {
			dialled := port.Port
			if svc.Headless && port.TargetPort != 0 {
				dialled = port.TargetPort
			}
			if !slices.Contains(outbound, dialled) {
				left = append(left, fmt.Sprintf("%s:%d", key, dialled))
			}
		}
	}
	slices.Sort(left)
	return left
}

// complaints is a slog.Handler in front of the log: it collects what the reader says about unusable files while the sandbox
// starts, and afterwards shows it to the user at once.
type complaints struct {
	next slog.Handler

	mu       sync.Mutex
	errs     []error
	warnings []string
	notices  io.Writer // nil while collecting
}

// Enabled is part of slog.Handler.
func (c *complaints) Enabled(context.Context, slog.Level) bool { return true }

// Handle is part of slog.Handler.
func (c *complaints) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		c.add(r)
	}
	if !c.next.Enabled(ctx, r.Level) {
		return nil
	}
	return c.next.Handle(ctx, r)
}

func (c *complaints) add(r slog.Record) {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if text := a.Value.String(); text != "" && text != "0" {
			fmt.Fprintf(&b, "; %s: %s", a.Key, text)
		}
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.notices != nil:
		fmt.Fprintf(c.notices, "evenkeel: %s\n", b.String())
	case r.Level >= slog.LevelError:
		c.errs = append(c.errs, errors.New(b.String()))
	default:
		c.warnings = append(c.warnings, b.String())
	}
}

// switchTo ends the collecting: errors that were collected are returned, warnings shown.
func (c *complaints) switchTo(notices io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notices = notices
	for _, text := range c.warnings {
		fmt.Fprintf(notices, "evenkeel: %s\n", text)
	}
	return errors.Join(c.errs...)
}

// WithAttrs and WithGroup are part of slog.Handler; the reader uses neither for what is shown.
func (c *complaints) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup is part of slog.Handler.
func (c *complaints) WithGroup(string) slog.Handler { return c }
