// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// tick is how often the supervisor looks. It counts ticks, not time: where
	// the whole container is frozen or starved, the supervisor is too, and no
	// worker is blamed for it.
	tick = 250 * time.Millisecond
	// hangTicks without a beat: ask for stacks, and kill a tick later, so that the
	// next worker runs within 2 s of the hang.
	hangTicks = 6
	// startTicks is the patience with a worker that has not beaten yet.
	startTicks = 40

	// stable is the life after which a crash is not part of a loop.
	stable = 10 * time.Second
	// firstPause doubles with each crash of a loop, up to lastPause.
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	// failOpen is the pause from which the app is better off without us.
	failOpen = 500 * time.Millisecond

	// memoryShare of the container's limit is where a worker is replaced.
	memoryShare = 0.95
)

// supervisor is PID 1. Its run method's goroutine owns everything in it.
type supervisor struct {
	log            *slog.Logger
	cfg            *Config
	program        []string // how to start ourselves
	args           []string // of run
	stdout, stderr io.Writer

	sockets  *sockets
	memory   cgroupMemory
	oomKills uint64 // when the worker was started
	limit    uint64

	worker   *worker // nil: none runs
	restarts restarts
	crashes  int // in a row, without a stable life between
	ending   bool
}

// run serves until the worker has ended after SIGTERM, or ctx or SIGINT says
// to stop at once. The error says why nothing could be served at all.
func (s *supervisor) run(ctx context.Context) error {
	// Next to no garbage, and nothing to run in parallel: stay small.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	if os.Getpid() == 1 {
		signal.Notify(signals, syscall.SIGCHLD)
	}
	defer signal.Stop(signals)

	var err error
	if s.sockets, err = bind(ctx, s.cfg, s.log); err != nil {
		return err
	}
	defer s.sockets.close()
	s.log.Info("listening", "port", s.sockets.port, "listeners", len(s.sockets.outbound), "pod", s.sockets.podAddr, "debug", s.sockets.debugAddr)
	s.restarts = restarts{}
	s.memory = findCgroupMemory()
	s.limit = s.memory.limit()
	debug.FreeOSMemory()

	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	start := time.NewTimer(0) // fires when the next worker is due
	defer start.Stop()
	defer s.kill()

	for {
		var exited chan error
		if s.worker != nil {
			exited = s.worker.exited
		}
		select {
		case <-ctx.Done():
			return nil
		case sig := <-signals:
			switch sig {
			case syscall.SIGCHLD:
				s.reap()
			case syscall.SIGTERM:
				s.ending = true
				if s.worker == nil {
					return nil // between two workers there is no connection to finish
				}
				s.log.Info("SIGTERM: serving until the app's connections are gone")
				s.worker.signal(syscall.SIGTERM)
			default:
				return nil
			}
		case <-start.C:
			if pause := s.start(ctx, time.Now()); pause > 0 {
				start.Reset(pause)
			}
		case err := <-exited:
			if s.ended(err) {
				return nil
			}
			start.Reset(s.pause())
		case <-ticks.C:
			s.watch()
		}
	}
}

// start starts the next worker, or returns how long to wait before trying again.
func (s *supervisor) start(ctx context.Context, now time.Time) (pause time.Duration) {
	failed := func(err error) time.Duration {
		s.restarts[causeStart]++
		s.crashes++
		s.log.Error("the worker could not be started", "error", err, "restarts", s.restarts.total())
		// Never at once: nothing has changed since.
		return max(s.pause(), firstPause)
	}
	if len(s.sockets.outbound) == 0 {
		if err := s.sockets.bindOutbound(ctx, s.log); err != nil {
			return failed(err)
		}
	}
	pulse, beat, err := os.Pipe()
	if err != nil {
		return failed(err)
	}
	files, inherit := s.sockets.files(beat)
	argv := append(slices.Clip(s.program), "worker", inherit, "--restarts="+s.restarts.String(), "--ending="+strconv.FormatBool(s.ending))
	s.oomKills = s.memory.oomKills()
	w, err := startWorker(ctx, append(argv, s.args...), files, pulse, s.stdout, s.stderr, now)
	closeFile(beat)
	if err != nil {
		closeFile(pulse)
		return failed(err)
	}
	s.worker = w
	s.log.Info("worker started", "pid", w.pid(), "restarts", s.restarts.total())
	return 0
}

// ended deals with the end of the worker; true: it was meant to end.
func (s *supervisor) ended(err error) bool {
	w := s.worker
	s.worker = nil
	s.reap() // what waited behind it
	if s.ending && err == nil {
		return true
	}
	why := w.ending(err, s.memory.oomKills() > s.oomKills)
	lived := time.Since(w.started)
	if lived >= stable {
		s.crashes = 0
	}
	s.crashes++
	s.restarts[why.cause]++
	s.log.Error("worker ended and is restarted", "pid", w.pid(), "cause", why.cause, "detail", why.detail,
		"lived", lived.Round(time.Millisecond).String(), "restarts", s.restarts.total(), "crashes_in_a_row", s.crashes)
	return false
}

// pause is how long to wait before the next worker. The first crash costs
// nothing. Where the pause is long the redirect's target goes away, so that
// the app's connections go directly instead of waiting for nobody.
func (s *supervisor) pause() time.Duration {
	d := pauseAfter(s.crashes, rand.Float64())
	if d >= failOpen && len(s.sockets.outbound) > 0 {
		s.sockets.closeOutbound()
		s.log.Warn("crash loop: the app connects directly until the next attempt", "pause", d.Round(time.Millisecond).String())
	}
	return d
}

// pauseAfter is pure; jitter is from 0 to 1.
func pauseAfter(crashes int, jitter float64) time.Duration {
	if crashes <= 1 {
		return 0
	}
	d := firstPause
	for i := 2; i < crashes && d < lastPause; i++ {
		d *= 2
	}
	d = min(d, lastPause)
	return d/2 + time.Duration(jitter*float64(d/2))
}

// watch looks at the worker's pulse and memory.
func (s *supervisor) watch() {
	w := s.worker
	if w == nil {
		return
	}
	if w.verdict != "" {
		w.signal(syscall.SIGKILL)
		return
	}
	patience := hangTicks
	if beats := w.beats.Load(); beats != w.seen {
		w.seen, w.missed = beats, 0
	} else {
		w.missed++
		if beats == 0 {
			patience = startTicks
		}
	}
	if w.missed >= patience {
		s.log.Error("worker does not answer: replacing it", "pid", w.pid(), "silent", (time.Duration(w.missed) * tick).String())
		w.verdict = causeHang
		// Its runtime prints the stacks of all goroutines, if it still can.
		w.signal(syscall.SIGQUIT)
	}
	if s.limit > 0 && w.verdict == "" {
		if used := anonymous(w.pid()); float64(used) > memoryShare*float64(s.limit) {
			// The kernel would kill it anyhow, and with memory.oom.group, which the
			// kubelet sets, PID 1 too: the container, and with it the pod's
			// readiness, would go.
			s.log.Error("worker's memory is near the container's limit: replacing it", "pid", w.pid(), "bytes", used, "limit", s.limit)
			w.verdict = causeMemory
			w.signal(syscall.SIGKILL)
		}
	}
}

// kill ends the worker, if one runs, and waits for it.
func (s *supervisor) kill() {
	if s.worker != nil {
		s.worker.signal(syscall.SIGKILL)
		if err := <-s.worker.exited; err != nil {
			s.log.Debug("worker killed", "status", err.Error())
		}
		s.worker = nil
	}
}

// reap waits for processes that lost their parents and came to PID 1. It looks
// before it takes: the worker's own end belongs to exec.Cmd.
func (s *supervisor) reap() {
	if os.Getpid() != 1 {
		return // our other children, if any, belong to who started them
	}
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
			return
		}
		pid := siginfoPID(&info)
		if pid == 0 || s.worker != nil && pid == s.worker.pid() {
			return
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil {
			return
		}
		s.log.Debug("reaped an orphan", "pid", pid)
	}
}

// siginfoPID is si_pid of a SIGCHLD: the first field of the union, which is
// aligned to 8 bytes on 64-bit Linux (include/uapi/asm-generic/siginfo.h).
func siginfoPID(info *unix.Siginfo) int {
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), 16)))
}
