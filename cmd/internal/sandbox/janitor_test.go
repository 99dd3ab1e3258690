// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"syscall"
	"testing"
	"time"
)

func TestTestimony(t *testing.T) {
	const in, term = syscall.SIGINT, syscall.SIGTERM
	at := func(ms int) time.Time { return time.UnixMilli(int64(1_000_000 + ms)) }
	seen := testimony{}
	if seen.answer(in, at(0)) != 0 {
		t.Error("a signal that never came was seen")
	}
	// Two that come quickly are two, whenever the questions come.
	seen.add(in, at(0))
	seen.add(in, at(1))
	for i, want := range []byte{1, 1, 0} {
		if got := seen.answer(in, at(20+i)); got != want {
			t.Errorf("question %d: %d, want %d", i, got, want)
		}
	}
	seen.add(in, at(100))
	if seen.answer(term, at(100)) != 0 {
		t.Error("SIGINT answered for SIGTERM")
	}
	// One that nobody asked about (merged at the sandbox) must not swallow a later one that was sent to the sandbox alone.
	if seen.answer(in, at(100).Add(witnessMemory)) != 0 {
		t.Error("an old signal answered")
	}
	if len(seen) != 0 {
		t.Errorf("memory grows: %v", seen)
	}
}
