// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package hold

import (
	"slices"
	"testing"
	"time"
)

// A pod whose readiness waits is told of once, with names, and not before they are known.
func TestWaiting(t *testing.T) {
	begin := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
	waits := Status{Settled: true, AppReady: true, Clients: 2, Answered: 1, Missing: []string{"shop/cart-1"}}
	fresh := Status{AppReady: true}
	m := New(Config{ReadyTimeout: 15 * time.Second}, begin)
	m.Serving()
	for _, step := range []struct {
		at     float64
		status *Status
		want   []string
	}{
		{0, nil, nil},
		{1, &fresh, nil}, // the app is ready
		{2.9, &fresh, nil},
		{3.1, &fresh, nil}, // the replica is not settled: it names nobody
		{4, &waits, []string{"shop/cart-1"}},
		{5, &waits, nil},
	} {
		now := at(step.at)
		if step.status != nil {
			m.Status(now, "xds-1", *step.status)
		}
		m.Advance(now)
		e, ok := m.Waiting(now)
		if ok != (step.want != nil) || !slices.Equal(e.Missing, step.want) {
			t.Errorf("%v s: %+v, %v; want %q", step.at, e, ok, step.want)
		}
	}
	if m.Over(Ready) {
		t.Error("the hold is over")
	}
	// Without anybody missing there is nothing to tell.
	m = New(Config{ReadyTimeout: 15 * time.Second}, begin)
	m.Serving()
	m.Status(at(1), "xds-1", waits)
	if d := m.Deadline(at(1)); !d.Equal(at(3)) {
		t.Errorf("deadline %v, want the moment to tell", d.Sub(begin))
	}
	done := waits
	done.Propagated = true
	m.Status(at(2), "xds-1", done)
	m.Advance(at(2))
	if e, ok := m.Waiting(at(4)); ok || !m.Over(Ready) {
		t.Errorf("%+v after the end", e)
	}
}
