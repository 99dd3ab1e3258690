// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// processes starts children and reaps every process that ends in the PID
// namespace. PID 1 inherits the orphans (containerd's shims), so it waits for
// any child, and os/exec, which waits for one, cannot be used beside it.
type processes struct {
	// mu is held while a child is started and registered, and while one is
	// reaped: so a child that ends at once is known when it is reaped.
	mu      sync.Mutex
	exits   map[int]chan unix.WaitStatus
	stopped bool
}

func newProcesses() *processes {
	p := &processes{exits: map[int]chan unix.WaitStatus{}}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go func() {
		for range sigchld {
			p.reap()
		}
	}()
	return p
}

// reap collects all that have ended: signals do not queue.
func (p *processes) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if exit, ok := p.exits[pid]; ok {
			exit <- status
			delete(p.exits, pid)
		}
	}
}

var errStopped = errors.New("the node is going down")

// start starts a child; exit receives its status once.
func (p *processes) start(argv []string, attr *os.ProcAttr) (pid int, exit <-chan unix.WaitStatus, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0, nil, errStopped
	}
	child, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan unix.WaitStatus, 1)
	p.exits[child.Pid] = ch
	pid = child.Pid
	// Only frees its descriptor; we wait by pid.
	return pid, ch, child.Release()
}

// run runs a short command to its end and returns what it printed.
func (p *processes) run(stdin string, argv ...string) (string, error) {
	in, err := pipeFrom(stdin)
	if err != nil {
		return "", err
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	_, exit, err := p.start(argv, &os.ProcAttr{Env: os.Environ(), Files: []*os.File{in, w, w}})
	w.Close()
	if err != nil {
		return "", fmt.Errorf("%s: %w", argv[0], err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return "", err
	}
	if status := <-exit; status != 0 {
		return "", fmt.Errorf("%s: %s: %s", strings.Join(argv, " "), describe(status), strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// pipeFrom returns a pipe that holds s, which must fit its buffer of 64 KiB.
func pipeFrom(s string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.WriteString(s); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// killAll ends every other process of the PID namespace, for good.
func (p *processes) killAll() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	// kill(2): "If pid equals -1, then sig is sent to every process for which
	// the calling process has permission to send signals, except for process
	// 1 (init)". ESRCH: there is none.
	_ = unix.Kill(-1, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
			return
		}
	}
}

func describe(s unix.WaitStatus) string {
	if s.Signaled() {
		return "ended by signal " + unix.SignalName(s.Signal())
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}
