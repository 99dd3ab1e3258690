// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Files of the state directory. Each says that something was so before a worker,
// or the container, was started again.
const (
	latchReady    = "ready"    // the ready hold was over
	latchStarted  = "started"  // the start hold was over: the app runs
	latchDraining = "draining" // the hook was called, at the Unix nanoseconds in the file
)

// staleDrain is the age from which the begin of a drain is of no use: the pod
// lives on.
const staleDrain = 10 * time.Minute

// latches are those files. The zero value keeps nothing.
type latches struct {
	log *slog.Logger
	dir string
}

func (l latches) has(name string) bool {
	_, ok := l.read(name)
	return ok
}

func (l latches) read(name string) (string, bool) {
	if l.dir == "" {
		return "", false
	}
	text, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("it is not known what was so before this restart", "latch", name, "error", err)
	}
	return string(text), err == nil
}

func (l latches) set(name, text string) {
	if l.dir == "" {
		return
	}
	// Renamed into place: what is read is whole.
	file := filepath.Join(l.dir, name)
	err := os.WriteFile(file+".new", []byte(text), 0o644)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		l.log.Warn("state cannot be kept for a restart", "latch", name, "error", err)
	}
}

func (l latches) clear(name string) {
	if l.dir == "" {
		return
	}
	if err := os.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("state cannot be taken back", "latch", name, "error", err)
	}
}

// draining is when the drain began that a restart has cut. Zero: none has.
func (l latches) draining(now time.Time) time.Time {
	text, ok := l.read(latchDraining)
	if !ok {
		return time.Time{}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	began := time.Unix(0, n)
	if age := now.Sub(began); err != nil || age < 0 || age > staleDrain {
		l.clear(latchDraining)
		return time.Time{}
	}
	// On the clock of this process, which no change of the wall clock moves.
	return now.Add(-now.Sub(began))
}
