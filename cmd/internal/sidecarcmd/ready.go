// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

const (
	// silence is how long the control plane may say nothing before the pod is
	// ready without it: a pod must start when any part of Evenkeel is down.
	silence = 3 * time.Second
	// look is how often the state behind the answers is looked at.
	look = 50 * time.Millisecond
	// latchName is the file in the state directory that says "was ready".
	latchName = "ready"
)

// readiness decides what /ready and /wait answer. Its channels are closed once
// and never again: readiness is latched, because taking it back would take a
// server out of every Service for what its clients do not need.
type readiness struct {
	log      *slog.Logger
	stateDir string // empty: no latch on disk

	ready  chan struct{} // /ready answers 200
	served chan struct{} // /wait returns: the control plane has answered
}

func newReadiness(log *slog.Logger, stateDir string) *readiness {
	return &readiness{log: log, stateDir: stateDir, ready: make(chan struct{}), served: make(chan struct{})}
}

// run watches until both are decided or ctx ends. answered says that the
// control plane has answered; up that the event loop turns.
func (r *readiness) run(ctx context.Context, up, answered func() bool) error {
	t := time.NewTicker(look)
	defer t.Stop()
	start := time.Now()
	latched := r.latched()
	for {
		if up() {
			switch {
			case done(r.ready):
			case answered():
				r.setReady("the control plane answered")
			case latched:
				r.setReady("it was ready before this restart")
			case time.Since(start) >= silence:
				r.setReady("the control plane is silent; new connections are relayed to where the app meant")
			}
			if answered() {
				close(r.served)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (r *readiness) setReady(why string) {
	r.log.Info("ready", "reason", why)
	close(r.ready)
	if r.stateDir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(r.stateDir, latchName), nil, 0o644); err != nil {
		r.log.Warn("readiness cannot be kept for a restart of the container", "error", err)
	}
}

func (r *readiness) latched() bool {
	if r.stateDir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(r.stateDir, latchName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("it is not known whether the sidecar was ready before", "error", err)
	}
	return err == nil
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
