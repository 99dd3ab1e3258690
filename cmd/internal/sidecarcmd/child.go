// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// Why a worker ended, as in logs and in the metric's label.
const (
	causeExit   = "exit"   // by itself, with a status
	causeSignal = "signal" // killed, by a fault of its own or by somebody
	causeOOM    = "oom"    // killed by the kernel for lack of memory
	causeMemory = "memory" // replaced by us because its memory came near the limit
	causeHang   = "hang"   // replaced by us because it did not beat
	causeStart  = "start"  // could not be started
)

var causes = [...]string{causeExit, causeSignal, causeOOM, causeMemory, causeHang, causeStart}

// worker is one process.
type worker struct {
	cmd     *exec.Cmd
	started time.Time
	beats   atomic.Uint64 // bytes read from its pipe
	exited  chan error    // one value: what Wait returned

	// The supervisor's loop alone.
	seen    uint64 // beats at the last tick
	missed  int    // ticks in a row without a beat
	verdict string // set when we kill it: why
}

// startWorker starts a process with files as descriptors 3 and up. It is killed
// when ctx ends.
func startWorker(ctx context.Context, argv []string, files []*os.File, pulse *os.File, stdout, stderr io.Writer, now time.Time) (*worker, error) {
	w := &worker{started: now, exited: make(chan error, 1)}
	w.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	w.cmd.Stdout, w.cmd.Stderr = stdout, stderr
	w.cmd.ExtraFiles = files
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 16)
		for {
			n, err := pulse.Read(buf)
			w.beats.Add(uint64(n))
			if err != nil {
				_ = pulse.Close()
				return
			}
		}
	}()
	go func() { w.exited <- w.cmd.Wait() }()
	return w, nil
}

func (w *worker) pid() int { return w.cmd.Process.Pid }

// signal tells the worker; it may be gone already, which Wait will say.
func (w *worker) signal(sig os.Signal) {
	_ = w.cmd.Process.Signal(sig)
}

// end is how a worker ended.
type end struct {
	cause  string
	detail string
}

// ending explains what Wait returned. oom says that the kernel killed
// something in the cgroup for lack of memory meanwhile.
func (w *worker) ending(err error, oom bool) end {
	var exit *exec.ExitError
	status := syscall.WaitStatus(0)
	switch {
	case errors.As(err, &exit):
		status = exit.Sys().(syscall.WaitStatus)
	case err != nil:
		return end{causeExit, err.Error()}
	}
	if w.verdict != "" {
		return end{w.verdict, "killed by the supervisor"}
	}
	if !status.Signaled() {
		return end{causeExit, fmt.Sprintf("exit status %d", status.ExitStatus())}
	}
	if oom && status.Signal() == syscall.SIGKILL {
		return end{causeOOM, "killed by the kernel: out of memory"}
	}
	return end{causeSignal, "signal: " + status.Signal().String()}
}
