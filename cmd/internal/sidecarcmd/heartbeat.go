// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// errNoSupervisor ends a worker whose supervisor is gone: nobody would restart
// it, and the next container must find the ports free.
var errNoSupervisor = errors.New("the supervisor is gone")

// beat writes to the supervisor's pipe for as long as the event loop turns.
// turns advances with each turn; a loop that is stuck stops the beat although
// this goroutine runs.
func beat(ctx context.Context, pipe *os.File, turns func() uint64) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	defer func() { _ = pipe.Close() }()
	last := turns()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now := turns()
		if now == last {
			continue
		}
		last = now
		// A full pipe means that the supervisor is stopped, not gone; the beat
		// must not wait for it.
		if err := pipe.SetWriteDeadline(time.Now().Add(tick)); err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		if _, err := pipe.Write([]byte{'.'}); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%w: %w", errNoSupervisor, err)
		}
	}
}
