// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of whatever its descendants leave behind: without a cgroup that is the only way to find
// a process which daemonised (prctl(2), PR_SET_CHILD_SUBREAPER).
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// killDescendants ends all descendants of this process but those in keep, and reaps them. A process that forks while it is
// looked at is found in the next round: its children are adopted as it dies.
func killDescendants(keep ...int) error {
	for deadline := time.Now().Add(cleanupTimeout); ; time.Sleep(time.Millisecond) {
		left := descendants(os.Getpid(), keep)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v did not end after SIGKILL", left)
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for _, pid := range left {
			// Not a child of ours until its parent is dead: then ECHILD, and the next round sees it.
			if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.ECHILD) {
				return fmt.Errorf("wait for process %d: %w", pid, err)
			}
		}
	}
}

// descendants lists the processes below pid, without those in keep and what is below them.
func descendants(pid int, keep []int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// proc_pid_stat(5): "pid (comm) state ppid"; comm may hold spaces and parentheses.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, child := range children[queue[0]] {
			if !slices.Contains(keep, child) {
				all, queue = append(all, child), append(queue, child)
			}
		}
	}
	return all
}
