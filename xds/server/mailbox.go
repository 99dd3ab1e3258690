// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

// mailbox is the only thing that the hub and a stream share. It holds at most
// one value for each subscription, the newest: a stream that is slow finds fewer
// and newer values in it, never a queue.
type mailbox struct {
	node string // the client's; set before the first subscription

	outlet
	pending map[subscription]value
}

func newMailbox() *mailbox {
	return &mailbox{outlet: newOutlet(), pending: map[subscription]value{}}
}

// put never blocks.
func (m *mailbox) put(k subscription, v value) {
	m.mu.Lock()
	if old, ok := m.pending[k]; ok && !old.since.IsZero() && (v.since.IsZero() || old.since.Before(v.since)) {
		v.since = old.since // the wait began with the first change that was not sent
	}
	m.pending[k] = v
	m.mu.Unlock()
	m.signal()
}

// take empties the mailbox.
func (m *mailbox) take() map[subscription]value {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pending
	if len(p) == 0 {
		return nil
	}
	m.pending = map[subscription]value{}
	return p
}

// drop forgets a value that is no longer asked for.
func (m *mailbox) drop(k subscription) {
	m.mu.Lock()
	delete(m.pending, k)
	m.mu.Unlock()
}
