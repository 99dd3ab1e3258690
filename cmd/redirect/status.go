// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// status prints what is attached: to a cgroup, as the kernel has it, or, with no cgroup given, what
// acts on this process, which a process without privileges may ask.
func status(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := cgroupFlags{output: formatText}
	fs := newFlagSet("status", stderr)
	fs.StringVar(&f.cgroup, "cgroup", "", "`directory` of the cgroup; without it: what acts on this process, asked without privileges")
	fs.Var(&f.output, "o", "output `format`: text, json")
	if err := parse(fs, args); err != nil {
		return err
	}
	var (
		st  redirect.Status
		err error
	)
	if f.cgroup != "" {
		st, err = redirect.Query(ctx, f.cgroup)
	} else {
		st, err = ofThisProcess()
	}
	if err != nil {
		return err
	}
	if f.output == formatJSON {
		return json.NewEncoder(stdout).Encode(st)
	}
	_, err = io.WriteString(stdout, st.String())
	return err
}

func ofThisProcess() (redirect.Status, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return redirect.Status{}, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	info, err := origdst.Proof(fd)
	if errors.Is(err, origdst.ErrNotEffective) {
		return redirect.Status{}, nil
	}
	if err != nil {
		return redirect.Status{}, err
	}
	directs, err := origdst.Directs(fd, nil)
	if err != nil {
		return redirect.Status{}, err
	}
	return redirect.StatusOf(info, directs), nil
}

// detach takes the redirect off a cgroup.
func detach(ctx context.Context, args []string, _, stderr io.Writer) error {
	var f cgroupFlags
	fs := newFlagSet("detach", stderr)
	f.log.RegisterFlags(fs)
	fs.StringVar(&f.cgroup, "cgroup", "", "`directory` of the cgroup")
	if err := parse(fs, args); err != nil {
		return err
	}
	if f.cgroup == "" {
		return fmt.Errorf("%w: --cgroup is required", errUsage)
	}
	n, err := redirect.Detach(ctx, f.cgroup)
	if err != nil {
		return err
	}
	f.log.New(stderr).Info("redirect detached", "cgroup", f.cgroup, "programs", n)
	return nil
}
