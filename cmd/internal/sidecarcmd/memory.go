// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroupMemory reads what the cgroup of this process says about memory, on
// cgroup v2, v1 and hybrids. Every method answers with zero when there is
// nothing to read: memory accounting is a help, not a need.
type cgroupMemory struct {
	dir string
	v2  bool
}

func findCgroupMemory() cgroupMemory {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return cgroupMemory{}
	}
	return locateCgroupMemory("/sys/fs/cgroup", self)
}

// locateCgroupMemory finds the directory under root. In a container the path
// in /proc/self/cgroup may be the host's while the mount shows the container's
// own cgroup as its root, so both are tried.
func locateCgroupMemory(root string, self []byte) cgroupMemory {
	var v1, v2 string
	for line := range bytes.Lines(self) {
		// proc_pid_cgroup(5): hierarchy-ID:controller-list:cgroup-path
		f := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			v2 = f[2]
		case strings.Contains(","+f[1]+",", ",memory,"):
			v1 = f[2]
		}
	}
	if v1 != "" {
		for _, dir := range []string{path.Join(root, "memory", v1), path.Join(root, "memory")} {
			if exists(path.Join(dir, "memory.oom_control")) {
				return cgroupMemory{dir: dir}
			}
		}
	}
	for _, dir := range []string{path.Join(root, v2), path.Join(root, "unified", v2), root} {
		if exists(path.Join(dir, "memory.events")) {
			return cgroupMemory{dir: dir, v2: true}
		}
	}
	return cgroupMemory{}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// oomKills counts the processes that the kernel killed in the cgroup for lack
// of memory. v2: memory.events "oom_kill"; v1: memory.oom_control "oom_kill".
func (m cgroupMemory) oomKills() uint64 {
	name := "memory.oom_control"
	if m.v2 {
		name = "memory.events"
	}
	text := m.read(name)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			n, _ := strconv.ParseUint(v, 10, 64)
			return n
		}
	}
	return 0
}

// limit is the cgroup's memory limit in bytes; zero: none.
func (m cgroupMemory) limit() uint64 {
	name := "memory.limit_in_bytes"
	if m.v2 {
		name = "memory.max"
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(m.read(name))), 10, 64)
	if err != nil || n >= math.MaxInt64/2 { // "max"; v1 writes a huge number
		return 0
	}
	return n
}

func (m cgroupMemory) read(name string) []byte {
	if m.dir == "" {
		return nil
	}
	text, err := os.ReadFile(path.Join(m.dir, name))
	if err != nil {
		return nil
	}
	return text
}

// anonymous is the memory of a process that the kernel cannot drop, in bytes:
// what the limit is about. Zero: not known.
func anonymous(pid int) uint64 {
	// proc_pid_statm(5): size resident shared …, in pages.
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 3 {
		return 0
	}
	resident, err1 := strconv.ParseUint(f[1], 10, 64)
	shared, err2 := strconv.ParseUint(f[2], 10, 64)
	if err1 != nil || err2 != nil || shared > resident {
		return 0
	}
	return (resident - shared) * uint64(os.Getpagesize())
}
