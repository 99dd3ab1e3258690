// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"evenkeel.dev/xds"
)

// What a kubelet does with the sidecar of a pod; in the sandbox, the caller plays it.

// Ready is the readiness probe. Its error says what the sidecar waits for.
func (p *Pod) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the probe's timeoutSeconds
	defer cancel()
	return p.ask(ctx, "/ready", nil)
}

// Hold is the preStop hook: it returns when the application may get its SIGTERM.
func (p *Pod) Hold(ctx context.Context) error {
	if p.cfg.Holds == nil {
		return errors.New("a pod without holds has no preStop hook")
	}
	return p.ask(ctx, xds.PathHold, http.Header{xds.HeaderHold: {p.cfg.Holds.Secret}})
}

// Stop ends the sidecar as the kubelet does once the application has exited, and waits for it.
func (p *Pod) Stop(ctx context.Context) error {
	select {
	case <-p.sidecar.done:
		return nil
	default:
	}
	if err := p.sidecar.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the sidecar of %s: %w", p.cfg.Name, err)
	}
	select {
	case <-p.sidecar.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sidecar of %s does not end: %w", p.cfg.Name, context.Cause(ctx))
	}
}

// ask puts a question to the sidecar's pod port and waits for all of the answer.
func (p *Pod) ask(ctx context.Context, path string, header http.Header) error {
	body, err := fetch(ctx, p.ports.pod, path, header)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, body)
	return errors.Join(err, body.Close())
}
