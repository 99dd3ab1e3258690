// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// The janitor's descriptors, after stdin, stdout and stderr.
const (
	janitorLifeline = 3 // read end: questions, and end of file when the sandbox is done or dead
	janitorWitness  = 4 // write end: answers
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
	cmd := self(JanitorCommand, s.cgroup, s.dir)
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
	s.janitor, s.witness = cmd, &witness{questions: lifeline, answers: witnessRead}
	return nil
}

// JanitorMain is the janitor's process: it waits until the sandbox is over and then removes the cgroup args[0] and the directory
// args[1]. Meanwhile it answers, for each signal number that it reads, whether it got that signal too.
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

	questions := make(chan syscall.Signal)
	go func() {
		defer close(questions)
		lifeline := os.NewFile(janitorLifeline, "lifeline")
		for b := make([]byte, 1); ; {
			if _, err := lifeline.Read(b); err != nil {
				return
			}
			questions <- syscall.Signal(b[0])
		}
	}()
	answers := os.NewFile(janitorWitness, "witness")
	seen := testimony{}
	for {
		select {
		case sig := <-signals:
			seen.add(sig.(syscall.Signal), time.Now())
		case sig, alive := <-questions:
			if !alive {
				ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
				defer cancel()
				if err := cleanup(ctx, args[0], args[1]); err != nil {
					fmt.Fprintln(stderr, "janitor:", err)
					return 1
				}
				return 0
			}
			// The kernel signals the members of a group one after the other, and the question may overtake the signal.
			delay := time.NewTimer(witnessDelay)
			for waiting := true; waiting; {
				select {
				case sig := <-signals:
					seen.add(sig.(syscall.Signal), time.Now())
				case <-delay.C:
					waiting = false
				}
			}
			// A sandbox that is gone needs no answer; the lifeline tells it.
			_, _ = answers.Write([]byte{seen.answer(sig, time.Now())})
		}
	}
}

const (
	// witnessDelay is how long the janitor waits for a signal that it is asked about.
	witnessDelay = 20 * time.Millisecond
	// witnessMemory is how long a signal is the one that is asked about: signals may be merged, and their questions never come.
	witnessMemory = 2 * time.Second
)

// testimony is what the janitor remembers: when it got each signal, the oldest first.
type testimony map[syscall.Signal][]time.Time

func (t testimony) add(sig syscall.Signal, now time.Time) { t[sig] = append(t[sig], now) }

// answer is 1 if sig was seen lately. One signal answers one question.
func (t testimony) answer(sig syscall.Signal, now time.Time) byte {
	seen := slices.DeleteFunc(t[sig], func(at time.Time) bool { return now.Sub(at) >= witnessMemory })
	if len(seen) == 0 {
		delete(t, sig)
		return 0
	}
	t[sig] = seen[1:]
	return 1
}

// witness asks the janitor. It tells a signal sent to the whole process group (by the terminal's Ctrl-C, by timeout(1), by kill --
// -PGID) from one sent to the sandbox alone. The first has reached CMD too, and passing it on would deliver it twice: to many
// servers the second SIGINT means "quit at once". The kernel tells the two apart in siginfo_t, which Go does not show.
type witness struct {
	mu        sync.Mutex
	questions *os.File
	answers   *os.File
}

// groupGot tells whether this process's group got sig. In doubt it did not: a signal twice is better than none.
func (w *witness) groupGot(sig syscall.Signal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.questions.Write([]byte{byte(sig)}); err != nil {
		return false
	}
	if err := w.answers.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false
	}
	answer := make([]byte, 1)
	_, err := w.answers.Read(answer)
	return err == nil && answer[0] == 1
}

func signalName(sig syscall.Signal) string {
	return "signal " + strconv.Itoa(int(sig)) + " (" + sig.String() + ")"
}
