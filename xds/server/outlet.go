// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import "sync"

// outlet is how others reach the goroutine of a stream: something is in it, or the
// stream is to end. What is in it belongs to whom it is a part of.
type outlet struct {
	notify chan struct{} // capacity 1: something is in it
	ended  chan struct{} // closed by end

	mu     sync.Mutex // guards reason, and what is in it
	reason error
}

func newOutlet() outlet {
	return outlet{notify: make(chan struct{}, 1), ended: make(chan struct{})}
}

// signal says that something is in it. It never blocks.
func (o *outlet) signal() {
	select {
	case o.notify <- struct{}{}:
	default:
	}
}

// end asks the stream to end with the reason; the first one counts.
func (o *outlet) end(reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reason == nil {
		o.reason = reason
		close(o.ended)
	}
}

func (o *outlet) endReason() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason
}
