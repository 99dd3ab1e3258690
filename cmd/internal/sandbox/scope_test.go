// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestScopeLeavesNothing(t *testing.T) {
	s := newScope(t)
	cgroup, dir, janitor := s.cgroup, s.dir, s.janitor.Process.Pid
	if mode, err := os.Stat(dir); err != nil || mode.Mode().Perm() != 0o700 {
		t.Errorf("private directory: %v, %v", mode, err)
	}
	// A command that daemonises: another session, another parent, no terminal.
	pids := filepath.Join(t.TempDir(), "pids")
	cmd, err := s.StartCommand("app", "", script("setsid sh -c 'sleep 1000 & echo $! >"+pids+"' & wait; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("the command ended with %v, want status 3", err)
	}
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || gone(daemon) {
		t.Fatalf("the daemon %q does not run before the end: %v", text, err)
	}
	closeScope(t, s)
	for what, isGone := range map[string]bool{
		"daemon": gone(daemon), "janitor": gone(janitor), "cgroup": missing(cgroup), "directory": missing(dir),
	} {
		if !isGone {
			t.Errorf("the %s is still there", what)
		}
	}
}

func TestStartCommandMountsHostsForItAlone(t *testing.T) {
	s := newScope(t)
	before, err := os.ReadFile(hostsPath)
	if err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("10.96.0.1\tpricing.shop\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := script("cat /etc/hosts; cat /proc/self/cgroup")
	c.Stdout = out
	cmd, err := s.StartCommand("app", hosts, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(got), "10.96.0.1\tpricing.shop\n") {
		t.Errorf("the command saw\n%s", got)
	}
	if want := filepath.Base(s.cgroup) + "/app\n"; !strings.Contains(string(got), want) {
		t.Errorf("the command was not in cgroup %s:\n%s", want, got)
	}
	if after, err := os.ReadFile(hostsPath); err != nil || string(after) != string(before) {
		t.Errorf("the machine's own %s changed: %s, %v", hostsPath, after, err)
	}
}

func TestEnterFailures(t *testing.T) {
	s := newScope(t)
	text := filepath.Join(t.TempDir(), "not-a-program")
	if err := os.WriteFile(text, []byte("hello"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path, hosts string
		status            int
		want              string
	}{
		{"vanished", filepath.Join(t.TempDir(), "none"), "", StatusNotFound, "no such file"},
		{"not a program", text, "", StatusNotRunnable, "exec format error"},
		{"hosts file is missing", "/bin/true", "/nonexistent/hosts", StatusFailed, "/etc/hosts"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			errs, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer errs.Close()
			cmd, err := s.StartCommand("app", tc.hosts, Command{Path: tc.path, Argv: []string{"prog"}, Stderr: errs})
			if err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := exitStatus(cmd.ProcessState); got != tc.status {
				t.Errorf("status %d, want %d", got, tc.status)
			}
			if said, _ := os.ReadFile(errs.Name()); !strings.Contains(string(said), tc.want) {
				t.Errorf("it said %q, want something with %q", said, tc.want)
			}
		})
	}
}

func TestExitStatusOfSignals(t *testing.T) {
	s := newScope(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGSEGV} {
		cmd, err := s.StartCommand("app", "", script(fmt.Sprintf("kill -%d $$", int(sig))))
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := exitStatus(cmd.ProcessState); got != 128+int(sig) {
			t.Errorf("%s: status %d, want %d", signalName(sig), got, 128+int(sig))
		}
	}
}

func TestLookCommand(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		status int
		want   string
	}{
		{"no-such-command-anywhere", StatusNotFound, "no-such-command-anywhere: command not found"},
		{filepath.Join(dir, "none"), StatusNotFound, "no such file"},
		{plain, StatusNotRunnable, "permission denied"},
		{"sh", 0, ""},
	} {
		_, err := LookCommand([]string{tc.name})
		var missing *CommandNotFound
		switch {
		case tc.status == 0:
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		case !errors.As(err, &missing) || missing.Status != tc.status || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s: error %v, want status %d and %q", tc.name, err, tc.status, tc.want)
		}
	}
}

// holderCommand is a process of the test binary that holds a scope until it is killed.
const holderCommand = "test-holder"

func holderMain() int {
	log, err := os.CreateTemp("", "evenkeel-test-*")
	if err != nil {
		return 1
	}
	os.Remove(log.Name())
	s, err := NewScope(ScopeConfig{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Log: log})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := script("setsid sh -c 'sleep 1000 & echo $!; wait' & wait")
	c.Stdout = os.Stdout
	cmd, err := s.StartCommand("app", "", c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.cgroup)
	fmt.Println(s.dir)
	fmt.Println(s.janitor.Process.Pid)
	fmt.Println(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		return 1
	}
	return 0
}

// held is what a holder said.
type held struct {
	cmd         *exec.Cmd
	cgroup, dir string
	pids        []int // janitor, command, daemon in any order
	janitor     int
}

// kill ends the holder as nothing can resist. A second time it does nothing.
func (h *held) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

func startHolder(t *testing.T) *held {
	t.Helper()
	needRoot(t)
	cmd := exec.Command("/proc/self/exe", holderCommand)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &held{cmd: cmd}
	t.Cleanup(h.kill)
	lines := bufio.NewScanner(io.LimitReader(out, 4096))
	for range 5 {
		if !lines.Scan() {
			t.Fatal("the holder ended early")
		}
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "/sys"):
			h.cgroup = line
		case strings.HasPrefix(line, "/"):
			h.dir = line
		default:
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatalf("holder said %q", line)
			}
			h.pids = append(h.pids, pid)
		}
	}
	for _, pid := range h.pids {
		if argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(argv), JanitorCommand) {
			h.janitor = pid
		}
	}
	if h.janitor == 0 {
		t.Fatal("no janitor found")
	}
	return h
}

func TestKilledSandboxLeavesNothing(t *testing.T) {
	h := startHolder(t)
	h.kill()
	for _, pid := range h.pids {
		eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
	}
	eventually(t, "the cgroup is gone", func() bool { return missing(h.cgroup) })
	eventually(t, "the directory is gone", func() bool { return missing(h.dir) })
}

func TestNextScopeSweepsWhatWasKilledWithItsJanitor(t *testing.T) {
	orphaned, alive := startHolder(t), startHolder(t)
	if err := syscall.Kill(orphaned.janitor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the janitor is gone", func() bool { return gone(orphaned.janitor) })
	orphaned.kill()
	if missing(orphaned.cgroup) {
		t.Fatal("the cgroup went by itself: nothing is tested here")
	}
	closeScope(t, newScope(t))
	if !missing(orphaned.cgroup) || !missing(orphaned.dir) {
		t.Error("the orphan was not swept")
	}
	for _, pid := range orphaned.pids {
		eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return gone(pid) })
	}
	if missing(alive.cgroup) || missing(alive.dir) {
		t.Error("a living sandbox was swept away")
	}
	alive.kill()
	eventually(t, "the other's cgroup is gone", func() bool { return missing(alive.cgroup) })
}

func TestCloseDoesTheWorkOfADeadJanitor(t *testing.T) {
	s := newScope(t)
	if err := s.janitor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cgroup, dir := s.cgroup, s.dir
	closeScope(t, s)
	if !missing(cgroup) || !missing(dir) {
		t.Error("something was left")
	}
}
