// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// counter is a command that says each SIGINT and ends at SIGTERM with status 9. wait is there for a trap to run at once.
const counter = `trap 'echo INT' INT; trap 'echo TERM; exit 9' TERM; trap 'echo HUP; exit 8' HUP; echo up; while :; do sleep 1000 & wait $!; done`

func TestSignalsReachTheCommandOnce(t *testing.T) {
	needRoot(t)
	for _, tc := range []struct {
		name   string
		target func(p *process) int
	}{
		{"sent to the sandbox alone", func(p *process) int { return p.cmd.Process.Pid }},
		{"sent to the process group", func(p *process) int { return -p.cmd.Process.Pid }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leavesNothing(t)
			p := start(t, nil, "sandbox", "-f", manifests(t), "--", "sh", "-c", counter)
			p.says("up")
			for i := 1; i <= 3; i++ {
				if err := syscall.Kill(tc.target(p), syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				p.eventually(fmt.Sprint(i, " times INT"), func() bool { return strings.Count(p.stdout.String(), "INT") >= i })
			}
			time.Sleep(500 * time.Millisecond) // for a second delivery, which must not come
			if got := p.stdout.String(); got != "up\nINT\nINT\nINT\n" {
				t.Errorf("the command got %q, want each SIGINT once", got)
			}
			if err := syscall.Kill(tc.target(p), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if got := p.wait(); got != 9 {
				t.Errorf("exit status %d, want 9", got)
			}
		})
	}
}

func TestSignalsThatEndTheCommand(t *testing.T) {
	needRoot(t)
	for _, tc := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGHUP, 129}, {syscall.SIGINT, 130}, {syscall.SIGQUIT, 131}, {syscall.SIGTERM, 143}, {syscall.SIGUSR1, 138}} {
		t.Run(tc.signal.String(), func(t *testing.T) {
			leavesNothing(t)
			p := start(t, nil, "sandbox", "-f", manifests(t), "--", "sh", "-c", "echo up; exec sleep 1000")
			p.says("up")
			p.signal(tc.signal)
			if got := p.wait(); got != tc.status {
				t.Errorf("exit status %d, want %d", got, tc.status)
			}
		})
	}
}

func TestSignalBeforeTheCommandRuns(t *testing.T) {
	needRoot(t)
	for _, after := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			leavesNothing(t)
			p := start(t, nil, "sandbox", "-f", manifests(t), "--", "sh", "-c", "echo up; exec sleep 1000")
			time.Sleep(after)
			p.signal(syscall.SIGINT)
			got := p.wait()
			// Early enough the runtime's own handling ends it, before main: that leaves nothing either.
			if got != 130 && got != -int(syscall.SIGINT) {
				t.Errorf("exit status %d, want 130", got)
			}
			if got := p.stderr.String(); got != "" {
				t.Errorf("stderr %q: the user knows about Ctrl-C", got)
			}
		})
	}
}

func TestKilledSandbox(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	p := start(t, nil, "sandbox", "-f", manifests(t), "--", "sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; exec sleep 1000")
	p.says("\n")
	var daemon int
	if _, err := fmt.Sscan(p.stdout.String(), &daemon); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	deadline := time.Now().Add(20 * time.Second)
	for !gone(daemon) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlived the sandbox", daemon)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// terminal is a pseudo terminal.
type terminal struct {
	master *os.File
	slave  *os.File
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Not through Fd, which makes the file blocking: Close would then wait for the Read that it is to end.
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if ctlErr := conn.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	}); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close(); master.Close() })
	return &terminal{master, slave}
}

func (term *terminal) typing(t *testing.T, keys string) {
	t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// onTerminal starts evenkeel, or a program that starts it, as the leader of a session on a terminal. What it writes there is the process's stdout.
func onTerminal(t *testing.T, argv ...string) (*process, *terminal) {
	t.Helper()
	term := openTerminal(t)
	p := start(t, func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = argv[0], argv
		cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0, Pdeathsig: syscall.SIGKILL}
	})
	term.slave.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&p.stdout, term.master) // ends with EIO when the last one closes the terminal
	}()
	t.Cleanup(func() {
		term.master.Close()
		<-copied
	})
	return p, term
}

// foreground is the process group that Ctrl-C goes to.
func (term *terminal) foreground(t *testing.T) (group int) {
	t.Helper()
	conn, err := term.master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if ctlErr := conn.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	return group
}

func (p *process) count(text string) int { return strings.Count(p.stdout.String(), text) }

func TestTerminal(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	p, term := onTerminal(t, binary, "sandbox", "-f", manifests(t), "--", "sh", "-c",
		"test -t 0 && test -t 1 && test -t 2 && read line && echo got $line; "+counter)
	term.typing(t, "hello\n")
	p.says("got hello")
	p.says("up")
	for i := 1; i <= 3; i++ {
		term.typing(t, "\x03") // Ctrl-C
		p.eventually(fmt.Sprint(i, " times INT"), func() bool { return p.count("INT\r\n") >= i })
	}
	time.Sleep(500 * time.Millisecond) // for a second delivery, which must not come
	if got := p.count("INT\r\n"); got != 3 {
		t.Errorf("3 times Ctrl-C reached the command %d times", got)
	}
	term.master.Close() // the terminal is gone: a hang-up
	if got := p.wait(); got != 8 {
		t.Errorf("exit status %d, want the command's after its SIGHUP, 8", got)
	}
}

func TestJobControl(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	p, term := onTerminal(t, "/bin/bash", "-c", `set -m
"$0" sandbox -f "$1" -- sh -c "$2"; echo stopped $?
fg; echo ended $?`, binary, manifests(t), counter)
	p.says("up")
	term.typing(t, "\x1a") // Ctrl-Z
	p.says("stopped 148")
	p.eventually("fg has given it the terminal", func() bool { return term.foreground(t) != p.cmd.Process.Pid })
	term.typing(t, "\x03")
	p.eventually("INT", func() bool { return p.count("INT\r\n") == 1 })
	term.typing(t, "\x1c") // Ctrl-\, which the command does not catch
	p.says("ended 131")
	if got := p.wait(); got != 0 {
		t.Errorf("exit status %d of the shell", got)
	}
}

// A report follows on a terminal, also where a shell was the command, which takes the terminal for itself.
func TestReportOnATerminal(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	p, term := onTerminal(t, binary, "sandbox", "-f", manifests(t), "--", "bash", "--norc", "-i")
	term.typing(t, "echo ready-$((6*7))\n")
	p.says("ready-42")
	term.typing(t, "exit 3\n")
	if got := p.wait(); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
	p.says("evenkeel: 0 RPCs through the sidecar")
}

// gone tells whether no process has the pid any more; a zombie is waiting for its parent only.
func gone(pid int) bool {
	s := state(pid)
	return s == "" || s == "Z" || s == "X"
}

// state is the letter of /proc/PID/stat.
func state(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return after[:1]
}
