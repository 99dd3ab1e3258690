// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain makes the test binary also the processes of a scope, and checks at the end that the tests left nothing on the machine.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case JanitorCommand:
			os.Exit(JanitorMain(os.Args[2:], os.Stderr))
		case EnterCommand:
			os.Exit(EnterMain(os.Args[2:], os.Stderr))
		case holderCommand:
			os.Exit(holderMain())
		}
	}
	status := m.Run()
	if err := goleak.Find(); status == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		status = 1
	}
	if left := leftovers(); status == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		status = 1
	}
	os.Exit(status)
}

// leftovers lists the cgroups of scopes whose owner is gone.
func leftovers() []string {
	parent, err := ownCgroup()
	if err != nil {
		return nil
	}
	all, _ := filepath.Glob(filepath.Join(parent, scopePrefix+"*"))
	var left []string
	for _, dir := range all {
		if lock, err := lockCgroup(dir); err == nil { // other sandboxes of this machine have theirs locked
			lock.Close()
			left = append(left, dir)
		}
	}
	return left
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: cgroups and mount namespaces")
	}
}

// newScope opens a scope that ends with the test at the latest.
func newScope(t *testing.T) *Scope {
	t.Helper()
	needRoot(t)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil && len(text) > 0 {
			t.Logf("log:\n%s", text)
		}
	})
	s, err := NewScope(ScopeConfig{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeScope(t, s) })
	return s
}

// closeScope ends a scope, once.
func closeScope(t *testing.T, s *Scope) {
	t.Helper()
	if s.dir == "" {
		return
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.dir = ""
}

// script is a shell command for StartCommand.
func script(text string) Command {
	return Command{Path: "/bin/sh", Argv: []string{"sh", "-c", text}}
}

// eventually waits until ok, for something that happens in another process.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// gone tells whether no process has the pid; a zombie is gone too.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
