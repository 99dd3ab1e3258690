// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// scopePrefix starts the name of every cgroup and every temporary directory that is ours.
	scopePrefix = "evenkeel-sandbox-"
	// cleanupTimeout bounds how long the end of a scope waits for killed processes to be gone: SIGKILL takes microseconds,
	// unless a process is stuck in the kernel.
	cleanupTimeout = 10 * time.Second
)

// Cgroups says whether a scope has a cgroup.
type Cgroups uint8

const (
	// CgroupsRequired: without a cgroup the scope cannot be made. The eBPF redirect needs one.
	CgroupsRequired Cgroups = iota
	// CgroupsIfAllowed: without the right to make a cgroup, the scope does without; processes of CMD which left
	// their process tree are then found by their parent alone.
	CgroupsIfAllowed
)

// ScopeConfig configures a Scope.
type ScopeConfig struct {
	// Logger receives what the scope does. Required.
	Logger *slog.Logger
	// Log receives the output of Evenkeel's own processes. Required.
	Log *os.File
	// Cgroups says whether a cgroup is needed. Zero: it is.
	Cgroups Cgroups
}

// Scope holds all that a run leaves on the machine while it lasts: one cgroup2 directory with the processes in it, one private
// temporary directory, and the janitor, a process that removes both as soon as the run is over, whatever ended it.
type Scope struct {
	logger   *slog.Logger
	log      *os.File
	launcher *launcher

	dir    string   // private temporary directory, 0700
	cgroup string   // cgroup2 directory; "" without one
	lock   *os.File // the cgroup directory, locked: the owner is alive

	mu         sync.Mutex
	components []*component

	janitor *exec.Cmd
	witness *witness // its questions are the lifeline: closed, by us or by our death, the janitor begins
}

// NewScope makes the scope's directories and starts its janitor. Close ends it.
func NewScope(cfg ScopeConfig) (*Scope, error) {
	s := &Scope{logger: cfg.Logger, log: cfg.Log, launcher: newLauncher()}
	if err := s.open(cfg.Cgroups); err != nil {
		return nil, errors.Join(err, s.abandon())
	}
	return s, nil
}

func (s *Scope) open(cgroups Cgroups) error {
	if err := s.makeCgroup(); err != nil {
		denied := errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, errNoCgroup2)
		if cgroups == CgroupsRequired || !denied {
			return err
		}
		s.logger.Info("run without a cgroup", "reason", err)
		if err := adoptOrphans(); err != nil {
			return err
		}
	}
	// Named like the cgroup, so that whoever sweeps the one finds the other. Mkdir refuses what exists: nobody can have put
	// a directory of theirs there.
	name := scopePrefix + randomName()
	if s.cgroup != "" {
		name = filepath.Base(s.cgroup)
	}
	dir := filepath.Join(tempDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	s.dir = dir
	return s.startJanitor()
}

// makeCgroup makes the scope's cgroup below the caller's own, after removing what killed runs may have left there.
func (s *Scope) makeCgroup() error {
	parent, err := ownCgroup()
	if err != nil {
		return err
	}
	sweep(parent, s.logger)
	for range 8 {
		dir := filepath.Join(parent, scopePrefix+randomName())
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		lock, err := lockCgroup(dir)
		if err != nil {
			// Another run's sweep saw the directory before its lock: it is theirs to remove, take another name.
			s.logger.Debug("cgroup was swept before it was locked", "cgroup", dir, "error", err)
			continue
		}
		s.cgroup, s.lock = dir, lock
		return nil
	}
	return fmt.Errorf("make a cgroup below %s: each one was removed at once by something else", parent)
}

// Dir is the scope's private directory, for files that are to go with it.
func (s *Scope) Dir() string { return s.dir }

// Close kills every process in the scope, removes its directories, and waits until that is done. It goes the same way as the
// death of this process: it lets go of the lifeline and the janitor does the work.
func (s *Scope) Close() error {
	s.launcher.close()
	if s.cgroup == "" {
		if err := s.killProcesses(); err != nil {
			s.logger.Warn("processes are left", "error", err)
		}
	}
	s.witness.questions.Close()
	err := s.janitor.Wait()
	for _, c := range s.components {
		<-c.done // killed by now; reaped here
	}
	s.witness.answers.Close()
	if s.lock != nil {
		defer s.lock.Close()
	}
	if err == nil {
		return nil
	}
	// The janitor failed or was killed: do its work here.
	s.logger.Warn("the janitor failed", "error", err)
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := cleanup(ctx, s.cgroup, s.dir); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// killProcesses is what the janitor cannot do without a cgroup.
func (s *Scope) killProcesses() error {
	for _, c := range s.components {
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	return killDescendants(s.janitor.Process.Pid)
}

// abandon undoes a scope that was never whole: there may be no janitor yet.
func (s *Scope) abandon() error {
	s.launcher.close()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	err := cleanup(ctx, s.cgroup, s.dir)
	if s.lock != nil {
		s.lock.Close()
	}
	return err
}

// subgroup makes a cgroup inside the scope. Without cgroups it returns "".
func (s *Scope) subgroup(name string) (string, error) {
	if s.cgroup == "" {
		return "", nil
	}
	dir := filepath.Join(s.cgroup, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a cgroup: %w", err)
	}
	return dir, nil
}

// cleanup is the end of every scope: no process, no cgroup (its programs go with it), no file.
func cleanup(ctx context.Context, cgroup, dir string) error {
	var errs []error
	if cgroup != "" {
		if err := killCgroup(ctx, cgroup); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, removeCgroup(cgroup))
		}
	}
	if dir != "" {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// sweep removes the cgroups of runs that were killed together with their janitor. A directory is an orphan when its lock is
// free. Failing to remove one is no reason not to run.
func sweep(parent string, logger *slog.Logger) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), scopePrefix) {
			continue
		}
		dir := filepath.Join(parent, entry.Name())
		lock, err := lockCgroup(dir)
		if err != nil {
			continue // its owner lives
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err = cleanup(ctx, dir, filepath.Join(tempDir(), entry.Name()))
		cancel()
		lock.Close()
		logger.Info("removed what a killed sandbox left behind", "cgroup", dir, "error", err)
	}
}

// tempDir is where the private directory goes: the usual place for temporary files, unless its path leaves no room for the
// name of a unix socket, which is at most 107 bytes (unix(7): sun_path).
func tempDir() string {
	if dir := os.TempDir(); len(dir) <= 60 {
		return dir
	}
	return "/tmp"
}

func randomName() string {
	var b [4]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return hex.EncodeToString(b[:])
}
