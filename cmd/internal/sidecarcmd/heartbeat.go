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

// firstLook is how often the loop is looked at until it turns.
const firstLook = 10 * time.Millisecond

// errNoSupervisor ends a worker whose supervisor is gone: nobody would restart
// it, and the next container must find the ports free.
var errNoSupervisor = errors.New("the supervisor is gone")

// beat writes to the supervisor's pipe for as long as the event loop turns.
// turns advances with each turn; a loop that is stuck stops the beat although
// this goroutine runs.
func beat(ctx context.Context, pipe *os.File, turns func() uint64) error {
	defer func() { _ = pipe.Close() }()
	// The first beat comes as soon as the loop turns: from then on the supervisor
	// is less patient.
	t := time.NewTicker(firstLook)
	defer t.Stop()
	last := uint64(0)
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
		if last == 0 {
			t.Reset(tick)
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
