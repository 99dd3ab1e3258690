// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// The janitor's descriptors, after stdin, stdout and stderr.
const (
	janitorLifeline = 3 // read end: end of file when the sandbox is done or dead
	janitorWitness  = 4 // write end: the signals that reached the process group
	janitorLock     = 5 // the locked cgroup directory, if there is one
)

// forwarded are the signals that the sandbox passes on to CMD when they are sent to the sandbox alone.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// startJanitor starts this scope's janitor. It runs outside the scope's cgroup, which it kills, and inside the
// sandbox's process group, whose signals it witnesses.
func (s *Scope) startJanitor() error {
	lifelineRead, lifeline, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lifelineRead.Close()
	witnessRead, witnessWrite, err := os.Pipe()
	if err != nil {
		lifeline.Close()
		return err
	}
	defer witnessWrite.Close()
	cmd := exec.Command("/proc/self/exe", JanitorCommand, s.cgroup, s.dir)
	cmd.Args[0] = programName
	cmd.Stdout, cmd.Stderr = s.log, s.log
	cmd.ExtraFiles = []*os.File{lifelineRead, witnessWrite}
	if s.lock != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.lock)
	}
	if err := cmd.Start(); err != nil {
		lifeline.Close()
		witnessRead.Close()
		return fmt.Errorf("start the janitor: %w", err)
	}
	s.janitor, s.lifeline, s.witness = cmd, lifeline, newWitness(witnessRead)
	return nil
}

// JanitorMain is the janitor's process: it waits until the sandbox is over and then removes the cgroup args[0] and the directory args[1].
func JanitorMain(args []string, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "the janitor takes a cgroup and a directory; it is started by the sandbox, not by hand")
		return 2
	}
	// It outlives every signal but SIGKILL: Ctrl-C and a hang-up end the sandbox, and the janitor after it.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, forwarded...)
	// And it is never stopped with its group by Ctrl-Z: a stopped sandbox can be killed.
	signal.Ignore(syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE)

	over := make(chan struct{})
	go func() {
		defer close(over)
		io.Copy(io.Discard, os.NewFile(janitorLifeline, "lifeline"))
	}()
	report := os.NewFile(janitorWitness, "witness")
	for {
		select {
		case sig := <-signals:
			report.Write([]byte{byte(sig.(syscall.Signal))})
		case <-over:
			ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
			defer cancel()
			if err := cleanup(ctx, args[0], args[1]); err != nil {
				fmt.Fprintln(stderr, "janitor:", err)
				return 1
			}
			return 0
		}
	}
}

// witnessDelay is how long a signal to the sandbox waits for the janitor's word that its whole process group got it.
const witnessDelay = 100 * time.Millisecond

// witness tells a signal sent to the whole process group (by the terminal's Ctrl-C, by timeout(1), by kill -- -PGID) from one sent
// to the sandbox alone. The first has reached CMD too, and passing it on would deliver it twice: to many servers the
// second SIGINT means "quit at once". The kernel tells the two apart in siginfo_t, which Go does not show.
type witness struct {
	pipe *os.File
	done chan struct{}

	mu   sync.Mutex
	seen map[syscall.Signal]time.Time
}

func newWitness(pipe *os.File) *witness {
	w := &witness{pipe: pipe, done: make(chan struct{}), seen: make(map[syscall.Signal]time.Time)}
	go w.read()
	return w
}

func (w *witness) read() {
	defer close(w.done)
	for b := make([]byte, 1); ; {
		if _, err := w.pipe.Read(b); err != nil {
			return
		}
		w.mu.Lock()
		w.seen[syscall.Signal(b[0])] = time.Now()
		w.mu.Unlock()
	}
}

// sawSince tells whether the process group got sig at or after the given time. One testimony serves one signal.
func (w *witness) sawSince(sig syscall.Signal, since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.seen[sig]
	if !ok || at.Before(since) {
		return false
	}
	delete(w.seen, sig)
	return true
}

// close waits for the janitor's end of the pipe to be closed.
func (w *witness) close() {
	<-w.done
	w.pipe.Close()
}

func signalName(sig syscall.Signal) string {
	return "signal " + strconv.Itoa(int(sig)) + " (" + sig.String() + ")"
}
