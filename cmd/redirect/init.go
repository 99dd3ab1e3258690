// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// initPod attaches the redirect to the cgroup of the pod that this process is in, and proves that
// it acts on it.
func initPod(ctx context.Context, args []string, _, stderr io.Writer) error {
	f, err := parseInit(args, stderr)
	if err != nil {
		return err
	}
	logger := f.log.New(stderr)
	if f.hold != "" {
		helper, err := ownHold()
		if err != nil {
			return err
		}
		if err := installHold(helper, f.hold); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	start := time.Now()

	dir := f.cgroup
	if dir == "" {
		if dir, err = redirect.FindPodCgroup(redirect.PodSearch{HostRoot: f.cgroupRoot, PodUID: f.podUID}); err != nil {
			return err
		}
	}
	attachment, err := redirect.Attach(ctx, redirect.Config{
		Cgroup:        dir,
		OutboundPorts: f.outbound,
		ListenerPort:  uint16(f.listener),
		Logger:        logger,
	})
	if err != nil {
		return err
	}
	defer attachment.Close()
	if err := prove(attachment); err != nil {
		return errors.Join(err, attachment.Revert(context.WithoutCancel(ctx)))
	}
	logger.Info("the redirect is effective in this pod", "cgroup", dir, "outcome", attachment.Outcome, "took", time.Since(start).Round(time.Millisecond).String())
	return nil
}

// prove asks from inside: this process is one of the pod's. What answers must be what was
// attached, and each program must run.
func prove(a *redirect.Attachment) error {
	info, err := origdst.ProofOfProcess()
	if err == nil && info.ProgramIDs != a.ProgramIDs {
		return fmt.Errorf("attached to %s, but another copy of the redirect answers in this process (programs %v, attached were %v): this process is in another cgroup, or an older copy is attached to a cgroup above or below",
			a.Cgroup, info.ProgramIDs, a.ProgramIDs)
	}
	if err == nil {
		err = origdst.Verify()
	}
	if err != nil {
		return fmt.Errorf("attached to %s, but without effect on this process: %w: is that the cgroup of this pod? (compare with /proc/self/cgroup)", a.Cgroup, err)
	}
	return nil
}
