// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// state is what is written down about a running cluster, for other processes
// and for cleaning up after a crash.
type state struct {
	Nodes     int
	ProxyMode string
	// HostPort is the port on the machine's loopback that leads to the API
	// server.
	HostPort uint16
	Switch   process
	// Running has the running nodes by name.
	Running map[string]process
	// Programs maps names to files.
	Programs map[string]string
}

// process is one that may be signalled later: a pid alone may by then be
// another's.
type process struct {
	PID int
	// Started is field 22 of /proc/PID/stat.
	Started string
}

func (c Config) stateFile() string { return filepath.Join(c.runDir(), "state.json") }

func (s *state) write(cfg Config) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := cfg.stateFile() + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, cfg.stateFile())
}

// readState returns nil if there is none.
func readState(cfg Config) (*state, error) {
	b, err := os.ReadFile(cfg.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.stateFile(), err)
	}
	return &s, nil
}

// processOf identifies a running process.
func processOf(pid int) (process, error) {
	started, _, err := procStat(pid)
	return process{PID: pid, Started: started}, err
}

// procStat reads when pid started, and its state letter.
func procStat(pid int) (started, status string, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", "", err
	}
	// The command, field 2, is in parentheses and may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return "", "", fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields)+2)
	}
	return fields[19], fields[0], nil
}

// alive says whether it still runs. A zombie does not: it waits for its parent.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	started, status, err := procStat(p.PID)
	return err == nil && started == p.Started && status != "Z" && status != "X"
}

// root leads to the file system of a node's PID 1: for the node's sockets a path
// that is always short enough (108 bytes), wherever the cache is.
func (p process) root() string { return fmt.Sprintf("/proc/%d/root", p.PID) }

// kill ends the process and waits until it is gone. As PID 1 of a node it takes
// all of the node with it, which takes the kernel a moment.
func (p process) kill(wait time.Duration) error {
	if !p.alive() {
		return nil
	}
	if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	for deadline := time.Now().Add(wait); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d is still there %s after SIGKILL", p.PID, wait)
		}
	}
	return nil
}

// lockCluster takes the cluster for this process. It ends with the process.
func lockCluster(cfg Config) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(cfg.lockFile()), 0o755); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(cfg.lockFile(), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		ours, err := tryLock(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("cluster %s: %w", cfg.Name, err)
		}
		if ours {
			return f, nil
		}
		f.Close()
	}
}

// tryLock locks f; ours is false if the one before us has removed the file
// meanwhile (Down does), so that somebody else may hold its successor.
func tryLock(f *os.File) (ours bool, err error) {
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0) // empty for the moment in which it is taken
		return false, fmt.Errorf("in use by process %s: end that first", strings.TrimSpace(string(b[:n])))
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || !os.SameFile(mine, there) {
		return false, err
	}
	if err := f.Truncate(0); err != nil {
		return false, err
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err == nil, err
}
