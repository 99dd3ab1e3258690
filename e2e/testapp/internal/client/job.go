// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package client

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"evenkeel.dev/e2e/testapp/internal/stats"
)

// jobConcurrency is how many RPCs of a job are in flight.
const jobConcurrency = 4

// alsoDeadline is how long a job tries its other service.
const alsoDeadline = time.Second

// Job sends n RPCs and returns an error unless all succeeded. Before them it sends
// one to also, if that is set, and only logs what becomes of it.
func Job(ctx context.Context, call Call, n int, also string, log *slog.Logger) error {
	if also != "" {
		other := call
		other.Target, other.Deadline = also, alsoDeadline
		c := stats.New(time.Now())
		l, err := newLoad(other, 1, c, log)
		if err != nil {
			return err
		}
		err = l.burst(ctx, 1, 1)
		l.close()
		log.Info("tried", "target", also, "errors", c.Snapshot(time.Now()).Errors, "error", err)
	}
	c := stats.New(time.Now())
	l, err := newLoad(call, 1, c, log)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.burst(ctx, n, jobConcurrency); err != nil {
		return err
	}
	s := c.Snapshot(time.Now())
	log.Info("done", "succeeded", s.Succeeded, "failed", s.Failed, "servers", len(s.ByServer))
	if s.Succeeded != int64(n) {
		return fmt.Errorf("job: %d of %d RPCs succeeded: %+v", s.Succeeded, n, s.Errors)
	}
	return nil
}
