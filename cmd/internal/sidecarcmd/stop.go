// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"log/slog"
	"time"

	"evenkeel.dev/sidecar"
)

const (
	// idleLook is how often the worker looks whether it is still needed after
	// SIGTERM, and idleLooks how often in a row it must not be: an app that is
	// between two connections has not ended.
	idleLook  = 100 * time.Millisecond
	idleLooks = 2
)

// untilIdle serves after SIGTERM for as long as the app has a connection, and
// then says to the control plane that it is not to be waited for, and stops the
// worker. The app's own calls must work while it shuts down, so
// nothing is refused and no GOAWAY is sent; if it never ends, the kubelet's
// SIGKILL comes after the grace period.
func untilIdle(ctx context.Context, log *slog.Logger, plane *sidecar.Sidecar, leave func(context.Context), stop func()) error {
	t := time.NewTicker(idleLook)
	defer t.Stop()
	for idle := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		snap, err := plane.Snapshot(ctx)
		switch {
		case err != nil:
			continue // the loop is busy or over; ctx or the supervisor will tell
		case len(snap.Downstream)+len(snap.RawConns) > 0:
			idle = 0
			continue
		}
		if idle++; idle >= idleLooks {
			log.Info("no connection of the app is left: ending")
			leave(ctx)
			stop()
			return nil
		}
	}
}
