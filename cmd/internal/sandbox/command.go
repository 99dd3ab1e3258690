// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// Command is a program to run inside a Pod.
type Command struct {
	// Path is the program's resolved path, Argv its arguments with argv[0] first. Both required.
	Path string
	Argv []string
	// Env is the whole environment. Nil: this process's own.
	Env []string
	// Stdin, Stdout and Stderr are handed down as they are, a terminal included. Nil: /dev/null.
	Stdin, Stdout, Stderr *os.File
}

// CommandNotFound says that CMD cannot be run at all; Status is 126 or 127 as a shell has it.
type CommandNotFound struct {
	Status int
	err    error
}

func (e *CommandNotFound) Error() string { return e.err.Error() }
func (e *CommandNotFound) Unwrap() error { return e.err }

// LookCommand resolves argv[0] as a shell does, before anything is started for it.
func LookCommand(argv []string) (Command, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		status := StatusNotFound
		if pathErr, ok := errors.AsType[*exec.Error](err); ok {
			err = pathErr.Err
		}
		switch {
		case errors.Is(err, fs.ErrPermission):
			status = StatusNotRunnable
		case errors.Is(err, exec.ErrDot):
			err = fmt.Errorf("found in the current directory only: write ./%s", argv[0])
		case errors.Is(err, exec.ErrNotFound):
			err = errors.New("command not found")
		}
		return Command{}, &CommandNotFound{Status: status, err: fmt.Errorf("%s: %w", argv[0], err)}
	}
	return Command{Path: path, Argv: argv}, nil
}

// StartCommand starts c in the scope's cgroup called name, without a sidecar: what a pod outside the mesh is. hosts is bound over
// /etc/hosts in its mount namespace; "" leaves that as it is.
func (s *Scope) StartCommand(name, hosts string, c Command) (*exec.Cmd, error) {
	cgroup, err := s.subgroup(name)
	if err != nil {
		return nil, err
	}
	return s.startCommand(c, cgroup, enterConfig{Hosts: hosts})
}

// startCommand starts c in cgroup through the enter step. It stays in this process's group: the terminal's
// Ctrl-C and Ctrl-Z reach it as if it had been started by the shell itself, also within a pipeline.
func (s *Scope) startCommand(c Command, cgroup string, enter enterConfig) (*exec.Cmd, error) {
	enter.Path, enter.Argv = c.Path, c.Argv
	cmd := self(enter.args()...)
	cmd.Env = c.Env
	// *os.File, not any io.Reader: exec hands those down as descriptors, with no goroutine that copies in between.
	if c.Stdin != nil {
		cmd.Stdin = c.Stdin
	}
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if enter.Hosts != "" {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	s.logger.Debug("start", "command", strings.Join(c.Argv, " "))
	if err := s.start(cmd, cgroup); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	return cmd, nil
}

// exitStatus is the shell's: the exit status, or 128 + the signal's number.
func exitStatus(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}

// signals receives what is sent to the sandbox.
type signals struct {
	ch chan os.Signal
}

// catchSignals starts to catch the signals that are forwarded. One that was ignored when the sandbox started
// stays ignored: that is how nohup(1) works, and a shell's `&` without job control.
func catchSignals() *signals {
	s := &signals{ch: make(chan os.Signal, 64)}
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

func (s *signals) stop() { signal.Stop(s.ch) }

// passOn delivers sig, which this process got, to CMD, unless CMD got it the same way.
func (s *Scope) passOn(sig syscall.Signal, cmd *os.Process) {
	// A CMD in a process group of its own (an interactive shell) is out of reach of what was sent to ours.
	group, err := syscall.Getpgid(cmd.Pid)
	if err == nil && group == syscall.Getpgrp() && s.witness.groupGot(sig) {
		s.logger.Debug("the whole process group got the signal", "signal", signalName(sig))
		return
	}
	s.logger.Debug("pass the signal on", "signal", signalName(sig))
	if err := cmd.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.logger.Warn("could not pass the signal on", "signal", signalName(sig), "error", err)
	}
}
