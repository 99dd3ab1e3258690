// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"sync/atomic"
	"time"
)

// stall closes the connection of a client that leaves what it was sent unread for
// too long: its stream's goroutine may be blocked in Send, which only the end of
// the connection can free.
type stall struct {
	after time.Duration
	timer *time.Timer
	fired atomic.Bool
}

// watch makes it ready; nothing is running out yet.
func (s *stall) watch(ctx context.Context, after time.Duration) {
	s.after = after
	s.timer = time.AfterFunc(after, func() {
		s.fired.Store(true)
		closeConn(ctx)
	})
	s.timer.Stop()
}

// begin has the time run anew, end stops it.
func (s *stall) begin() { s.timer.Reset(s.after) }
func (s *stall) end()   { s.timer.Stop() }
