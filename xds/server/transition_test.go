// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"testing"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/snapshot"
)

// A rollout of a large service makes a new list with each pod: the first lists
// that new subscribers got of each must not pile up.
func TestTransitionsAreBounded(t *testing.T) {
	store := snapshot.NewStore(snapshot.Config{})
	frames := newTransitions(1 << 20)
	const members, steps = 2000, 200
	numbers := make([]int, members)
	for i := range numbers {
		numbers[i] = i
	}
	svc := xds.Service{Namespace: "shop", Name: "pricing", Port: 50051}
	var c *snapshot.Collection
	var last *frame
	total := 0
	for i := range steps {
		numbers[i] = members + i
		for _, change := range toChanges(numbers) {
			store.Apply(change)
		}
		c = store.Collection(svc, c)
		st := step{kind: stepAnswer, to: c.View(""), name: c.Name}
		last = frames.of(st)[0]
		for _, f := range frames.of(st) {
			total += len(f.wire)
		}
		held := 0
		for _, tr := range frames.known {
			held += tr.bytes
		}
		if frames.bytes != held || held > keepBytes || len(frames.known) != len(frames.order) {
			t.Fatalf("step %d: %d bytes accounted, %d held, at most %d; %d known, %d in order", i, frames.bytes, held, keepBytes, len(frames.known), len(frames.order))
		}
	}
	if total <= keepBytes {
		t.Fatalf("%d bytes in all do not reach the bound: the test shows nothing", total)
	}
	if again := frames.of(step{kind: stepAnswer, to: c.View(""), name: c.Name})[0]; again != last {
		t.Error("the newest transition was encoded twice")
	}
	// Small ones are bounded by number.
	for i := range keepTransitions + 10 {
		frames.of(step{kind: stepAnswer, name: xds.EndpointCollection(xds.Service{Namespace: "shop", Name: "x", Port: uint16(i + 1)}.String())})
	}
	if n := len(frames.known); n != keepTransitions {
		t.Errorf("%d transitions are kept, want %d", n, keepTransitions)
	}
}
