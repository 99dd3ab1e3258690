// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstInherited is the descriptor of exec.Cmd.ExtraFiles[0].
const firstInherited = 3

// hiddenFlags is how many arguments the supervisor puts before those of run.
const hiddenFlags = 3

// inheritance is what a worker gets from its supervisor, told by hidden flags
// in front of those of `run`.
type inheritance struct {
	outbound  []*os.File
	pod       *os.File
	debug     *os.File
	heartbeat *os.File
	restarts  restarts
	ending    bool // the supervisor has seen SIGTERM
}

// files are the descriptors to pass on, and the flag that says what they are.
func (s *sockets) files(heartbeat *os.File) (files []*os.File, arg string) {
	var kinds []string
	add := func(kind string, f *os.File) {
		files, kinds = append(files, f), append(kinds, kind)
	}
	for _, f := range s.outbound {
		add("outbound", f)
	}
	add("pod", s.pod)
	add("debug", s.debug)
	add("heartbeat", heartbeat)
	return files, "--inherit=" + strings.Join(kinds, ",")
}

// parseWorker reads the worker's hidden flags, which come before those
// of run, and leaves the rest to parseRun.
func parseWorker(args []string) (*inheritance, []string, error) {
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	in := &inheritance{restarts: restarts{}}
	kinds := fs.String("inherit", "", "")
	fs.Var(in.restarts, "restarts", "")
	fs.BoolVar(&in.ending, "ending", false, "")
	if len(args) < hiddenFlags {
		return nil, nil, errors.New("the worker is started by `sidecar run`, not by hand")
	}
	if err := parse(fs, args[:hiddenFlags]); err != nil {
		return nil, nil, fmt.Errorf("the worker is started by `sidecar run`, not by hand: %w", err)
	}
	for i, kind := range strings.Split(*kinds, ",") {
		fd := firstInherited + i
		// The next program that the worker starts must not inherit them.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, nil, fmt.Errorf("inherited descriptor %d (%s): %w", fd, kind, err)
		}
		if kind == "heartbeat" {
			// Go polls only what does not block, and only what is polled has deadlines.
			if err := unix.SetNonblock(fd, true); err != nil {
				return nil, nil, fmt.Errorf("inherited descriptor %d (%s): %w", fd, kind, err)
			}
		}
		f := os.NewFile(uintptr(fd), kind)
		switch kind {
		case "outbound":
			in.outbound = append(in.outbound, f)
		case "pod":
			in.pod = f
		case "debug":
			in.debug = f
		case "heartbeat":
			in.heartbeat = f
		default:
			return nil, nil, fmt.Errorf("inherited descriptor %d: kind %q is not known", fd, kind)
		}
	}
	if len(in.outbound) == 0 || in.pod == nil || in.debug == nil || in.heartbeat == nil {
		return nil, nil, fmt.Errorf("inherited descriptors %q are not complete", *kinds)
	}
	return in, args[hiddenFlags:], nil
}

// restarts counts the workers before this one by why they ended. It is a
// flag.Value.
type restarts map[string]uint64

// String is "cause=count,…" in the order of causes.
func (r restarts) String() string {
	var parts []string
	for _, c := range causes {
		if n := r[c]; n > 0 {
			parts = append(parts, c+"="+strconv.FormatUint(n, 10))
		}
	}
	return strings.Join(parts, ",")
}

// Set reads what String writes.
func (r restarts) Set(s string) error {
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		cause, count, _ := strings.Cut(part, "=")
		n, err := strconv.ParseUint(count, 10, 64)
		if err != nil {
			return fmt.Errorf("restarts %q: want cause=count", part)
		}
		r[cause] = n
	}
	return nil
}

func (r restarts) total() uint64 {
	var n uint64
	for _, v := range r {
		n += v
	}
	return n
}
