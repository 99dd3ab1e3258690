// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// binary is the program under test, built as users have it. Anybody may execute it.
var binary string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == testClientCommand {
		os.Exit(testClientMain(os.Args[2:]))
	}
	os.Exit(testMain(m))
}

// heedSignals undoes nohup and a shell's "&", which make their child ignore
// signals, and so everything that it starts.
func heedSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // handled, not ignored: the default in a child
		}
	}
}

func testMain(m *testing.M) int {
	heedSignals()
	dir, err := os.MkdirTemp("", "evenkeel-cli-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "evenkeel")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build evenkeel: %s\n%s", err, out)
		return 1
	}
	before := remains()
	status := m.Run()
	if err := goleak.Find(); status == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		status = 1
	}
	if left := newRemains(before); status == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left on the machine:", left)
		status = 1
	}
	return status
}

// remains lists what sandboxes leave on a machine when they leave something: cgroups, temporary files, and processes of our binary.
// What belongs to other sandboxes on this machine, as those of tests of other packages, is left out.
func remains() map[string]bool {
	found := map[string]bool{}
	living := map[string]bool{}
	for _, parent := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		paths, _ := filepath.Glob(filepath.Join(parent, "evenkeel-sandbox-*"))
		for _, path := range paths {
			if foreign(path) {
				living[filepath.Base(path)] = true
				continue
			}
			found[path] = true
		}
	}
	for _, pattern := range []string{"evenkeel-sandbox-*", "evenkeel-*.log"} {
		paths, _ := filepath.Glob(filepath.Join(os.TempDir(), pattern))
		for _, path := range paths {
			if !living[filepath.Base(path)] {
				found[path] = true
			}
		}
	}
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if path, err := os.Readlink(exe); err == nil && path == binary {
			argv, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "cmdline"))
			found[filepath.Dir(exe)+" "+strings.ReplaceAll(string(argv), "\x00", " ")] = true
		}
	}
	return found
}

// foreign tells whether the scope with this cgroup belongs to a janitor that is not of our binary.
func foreign(cgroup string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		argv, _ := os.ReadFile(line)
		if strings.Contains(string(argv), "internal-janitor\x00"+cgroup+"\x00") {
			exe, _ := os.Readlink(filepath.Join(filepath.Dir(line), "exe"))
			return exe != binary
		}
	}
	return false
}

func newRemains(before map[string]bool) []string {
	var left []string
	for what := range remains() {
		if !before[what] {
			left = append(left, what)
		}
	}
	return left
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: eBPF redirect, cgroups, mount namespaces")
	}
}

// manifests is a directory with one Service, shop/pricing, that has no endpoints.
func manifests(t *testing.T) string {
	t.Helper()
	dir := readable(t)
	write(t, filepath.Join(dir, "pricing.yaml"), `apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec: {clusterIP: 10.96.3.4, ports: [{name: grpc, port: 50051}]}
`)
	return dir
}

// readable is a temporary directory that other users may enter.
func readable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// write replaces a file whole, as readable to all.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// process is a started evenkeel.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout lockedBuffer
	stderr lockedBuffer
	ended  chan struct{}
}

// start starts evenkeel with args in a process group of its own.
func start(t *testing.T, prepare func(*exec.Cmd), args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// A process that the program leaves behind with our pipes must fail the test, not hang it.
	p.cmd.WaitDelay = 10 * time.Second
	if prepare != nil {
		prepare(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		if err := p.cmd.Wait(); errors.Is(err, exec.ErrWaitDelay) {
			t.Errorf("%v has ended, but somebody still holds its stdout or stderr", args)
		}
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			p.signal(syscall.SIGKILL)
			<-p.ended
		}
		if t.Failed() {
			t.Logf("evenkeel %v\nstdout: %s\nstderr: %s", args, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// signal sends a signal to the process alone. One that has ended is past it.
func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

// wait waits for the end and returns the exit status.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(60 * time.Second):
		p.t.Fatalf("did not end within 60 s; stdout %q, stderr %q", p.stdout.String(), p.stderr.String())
	}
	if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return -int(ws.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// says waits until stdout holds text.
func (p *process) says(text string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("stdout holds %q", text), func() bool { return strings.Contains(p.stdout.String(), text) })
}

func (p *process) eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for ended := p.ended; !ok(); {
		select {
		case <-ended:
			// What is waited for may have come with the end, and may still be on its way through a terminal.
			ended, deadline = nil, time.Now().Add(2*time.Second)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not seen: %s; stdout %q, stderr %q", what, p.stdout.String(), p.stderr.String())
		}
	}
}

// runCLI runs evenkeel to its end.
func runCLI(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	p := start(t, nil, args...)
	status = p.wait()
	return status, p.stdout.String(), p.stderr.String()
}

// leavesNothing checks, after the program, that the machine is as before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := remains()
	t.Cleanup(func() {
		// An abandoned scope is removed by its janitor some milliseconds after the sandbox was killed.
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for {
			left := newRemains(before)
			if len(left) == 0 {
				return
			}
			select {
			case <-ctx.Done():
				t.Errorf("left behind: %q", left)
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// lockedBuffer is written by exec's goroutine and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
