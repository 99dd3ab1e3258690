// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

// attachRedirect attaches the redirect's programs to a pod's cgroup. They end with the cgroup: nothing needs to be detached.
func attachRedirect(ctx context.Context, cgroup string, listener uint16, outbound []uint16, logger *slog.Logger) error {
	attachment, err := redirect.Attach(ctx, redirect.Config{
		Cgroup:        cgroup,
		OutboundPorts: outbound,
		ListenerPort:  listener,
		Logger:        logger,
	})
	if err != nil {
		return fmt.Errorf("attach the redirect: %w", err)
	}
	return attachment.Close()
}

// connections reads the redirect's counters.
func connections(ctx context.Context, cgroup string) (*Connections, error) {
	status, err := redirect.Query(ctx, cgroup)
	if err != nil {
		return nil, fmt.Errorf("read the redirect's counters: %w", err)
	}
	return &Connections{Redirected: status.Redirected, Direct: status.Direct}, nil
}

// proveRedirect is run by the process that becomes CMD: that programs are attached proves nothing, that they answer in
// here does.
func proveRedirect() error {
	if err := origdst.Verify(); err != nil {
		return err
	}
	info, err := origdst.ProofOfProcess()
	switch {
	case err != nil:
		return err
	case info.SidecarCgroup == 0:
		return errors.New("the redirect did not see the sidecar bind its listener: no connection would be redirected")
	case info.Own():
		return errors.New("the redirect takes the command for the sidecar: no connection would be redirected")
	}
	return nil
}
