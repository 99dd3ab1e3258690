// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// even makes servers that each get rate RPCs a second, evenly, in [from, to).
func even(rate int, to time.Duration, from ...time.Duration) arrivals {
	a := make(arrivals, len(from))
	for i := range from {
		for at := from[i]; at < to; at += time.Second / time.Duration(rate) {
			a[i] = append(a[i], at)
		}
	}
	return a
}

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		counts []int
		want   float64
	}{
		{[]int{100, 100, 100}, 0},
		{[]int{300, 0, 0}, math.Sqrt2},
		{[]int{600, 600, 0, 0, 0, 0}, math.Sqrt2},
		{[]int{90, 110}, 0.1},
		{[]int{0, 0}, math.Inf(1)}, // nothing arrived: not "perfect"
	} {
		if got := spread(tc.counts); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("spread(%v) = %v, want %v", tc.counts, got, tc.want)
		}
	}
}

func TestFairShare(t *testing.T) {
	const ready, end = 2 * time.Second, 8 * time.Second
	atOnce := even(200, end, 0, ready)
	soon := even(200, end, 0, ready+40*time.Millisecond)
	slow := even(200, end, 0, ready+1500*time.Millisecond)
	never := even(200, end, 0, end)
	lapse := even(200, end, 0, ready)
	var kept []time.Duration
	for _, at := range lapse[1] {
		if at < 5*time.Second || at >= 6*time.Second {
			kept = append(kept, at)
		}
	}
	lapse[1] = kept
	atEnd := even(200, end-100*time.Millisecond, 0, ready)
	atEnd[0] = even(200, end, 0)[0]
	half := even(200, end, 0, ready)
	half[1] = even(100, end, ready)[0]

	for _, tc := range []struct {
		name     string
		got      arrivals
		ok       bool
		min, max time.Duration
	}{
		{"from the first moment", atOnce, true, 0, 0},
		// The RPCs begin after 1.5 s; but 80 % of the mean has a window that begins a third of a second before. Not before the first RPC.
		{"from 40 ms on: at its first RPC", soon, true, 40 * time.Millisecond, 40 * time.Millisecond},
		{"after 1.5 s", slow, true, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{"never", never, false, 0, 0},
		{"a lapse later on counts: for good", lapse, true, 3500 * time.Millisecond, 4 * time.Second},
		{"the last 100 ms lack nothing that matters", atEnd, true, 0, 0},
		{"half the load is not a fair share", half, false, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			after, ok := tc.got.fairShare(1, ready, end)
			if ok != tc.ok || after < tc.min || after > tc.max {
				t.Errorf("fairShare = %v, %v; want %v to %v, %v", after, ok, tc.min, tc.max, tc.ok)
			}
		})
	}
	if _, ok := atOnce.fairShare(1, end-500*time.Millisecond, end); ok {
		t.Error("a server that became ready half a second before the end cannot have shown its share")
	}
}

func TestOutcome(t *testing.T) {
	const ready, end = 2 * time.Second, 10 * time.Second
	readyAt := []time.Duration{0, 0, ready, ready, ready, ready}
	late := []int{2, 3, 4, 5}

	good := judge(even(125, end, 0, 0, ready, ready, ready, ready), readyAt, late, end)
	if ok, why := good.meets(); !ok {
		t.Errorf("an even run does not meet the bar: %v", why)
	}
	for i, n := range good.RPCs {
		if n != 1000 {
			t.Errorf("server %d: %d RPCs counted from the moment all were ready, want 8 s of 125", i, n)
		}
	}
	pinned := judge(even(500, end, 0, 0, end, end, end, end), readyAt, late, end)
	ok, why := pinned.meets()
	if text := join(why); ok || !strings.Contains(text, "spread is 141.4 %") || !strings.Contains(text, "never") {
		t.Errorf("a pinned run: meets = %v, %q", ok, why)
	}
	idle := judge(even(50, end, 0, 0, ready, ready, ready, ready), readyAt, late, end)
	if ok, why := idle.meets(); ok || !strings.Contains(join(why), "too few to judge") {
		t.Errorf("300 RPCs a second prove nothing, but meets = %v, %q", ok, why)
	}

	for name, tc := range map[string]struct {
		result Result
		want   string
	}{
		"numbers": {
			Result{With: good, Without: pinned},
			`{"with":{"spread":0,"fair_share_seconds":0,"failed_rpcs":0,"rpcs_per_server":[1000,1000,1000,1000,1000,1000]},` +
				`"without":{"spread":1.4142,"fair_share_seconds":null,"failed_rpcs":0,"rpcs_per_server":[4000,4000,0,0,0,0]}}`,
		},
		"nothing arrived": {
			Result{With: &Outcome{Spread: ratio(math.Inf(1)), RPCs: []int{0}, Failed: 7}, Without: &Outcome{RPCs: []int{}}},
			`{"with":{"spread":null,"fair_share_seconds":null,"failed_rpcs":7,"rpcs_per_server":[0]},` +
				`"without":{"spread":0,"fair_share_seconds":null,"failed_rpcs":0,"rpcs_per_server":[]}}`,
		},
	} {
		got, err := json.Marshal(&tc.result)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, tc.want)
		}
	}
}
