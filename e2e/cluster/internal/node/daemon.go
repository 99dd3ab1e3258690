// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// restartDelay keeps a daemon that fails at once from spinning.
const restartDelay = 500 * time.Millisecond

// stopTimeout is how long a daemon may take to end after SIGTERM.
const stopTimeout = 10 * time.Second

// daemon is one supervised process. Its goroutine owns it; others send it
// orders.
type daemon struct {
	name   string
	argv   []string
	log    *slog.Logger
	ps     *processes
	cgroup *os.File
	output string
	orders chan order
}

type order struct {
	verb   string // start, stop, signal, pid
	signal unix.Signal
	reply  chan orderReply
}

type orderReply struct {
	pid int
	err error
}

// run starts the daemon and restarts it whenever it exits, unless it was
// stopped. It ends with the node.
func (d *daemon) run() {
	out, err := os.OpenFile(d.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		d.log.Error("cannot log", "daemon", d.name, "error", err)
		return
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		d.log.Error("cannot open "+os.DevNull, "daemon", d.name, "error", err)
		return
	}
	defer null.Close()
	attr := &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{null, out, out},
		Sys:   sysProcAttr(d.cgroup),
	}
	wanted := true
	for {
		if !wanted {
			wanted = d.whileStopped()
			continue
		}
		pid, exit, err := d.ps.start(d.argv, attr)
		if err != nil {
			d.log.Error("daemon does not start", "daemon", d.name, "error", err)
		} else {
			d.log.Info("daemon started", "daemon", d.name, "pid", pid)
			var status unix.WaitStatus
			status, wanted = d.whileRunning(pid, exit)
			d.log.Info("daemon ended", "daemon", d.name, "pid", pid, "status", describe(status), "restart", wanted)
		}
		if wanted {
			time.Sleep(restartDelay)
		}
	}
}

// whileStopped answers orders until one starts the daemon.
func (d *daemon) whileStopped() (wanted bool) {
	o := <-d.orders
	if o.verb == "signal" || o.verb == "pid" {
		o.reply <- orderReply{err: fmt.Errorf("%s is stopped", d.name)}
		return false
	}
	o.reply <- orderReply{}
	return o.verb == "start"
}

// whileRunning answers orders until the process has ended.
func (d *daemon) whileRunning(pid int, exit <-chan unix.WaitStatus) (status unix.WaitStatus, wanted bool) {
	for {
		select {
		case status = <-exit:
			return status, true
		case o := <-d.orders:
			switch o.verb {
			case "start":
				o.reply <- orderReply{pid: pid}
			case "pid":
				o.reply <- orderReply{pid: pid}
			case "signal":
				o.reply <- orderReply{pid: pid, err: unix.Kill(pid, o.signal)}
			case "stop":
				status, err := stop(pid, exit)
				o.reply <- orderReply{pid: pid, err: err}
				return status, false
			default:
				o.reply <- orderReply{err: fmt.Errorf("unknown order %q", o.verb)}
			}
		}
	}
}

func stop(pid int, exit <-chan unix.WaitStatus) (unix.WaitStatus, error) {
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return 0, err
	}
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case status := <-exit:
		return status, nil
	case <-t.C:
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return 0, err
	}
	return <-exit, nil
}
