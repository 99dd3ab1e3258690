// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestAllocations holds the numbers of the benchmarks: what one RPC through two
// sessions allocates in the steady state.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*benchWorld)
		streams int
		most    float64 // for one RPC
	}{
		{"same headers, one stream", (*benchWorld).same, 1, 0},
		{"same headers, 50 streams", (*benchWorld).same, 50, 0},
		// Three strings: two are short and interned half of the time; one write
		// of the table's ring each 512 RPCs.
		{"a trace id, a request id and a token of its own", (*benchWorld).unique, 50, 3.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newBenchWorld()
			c.prepare(w)
			for range 20 {
				w.round(c.streams)
			}
			got := testing.AllocsPerRun(50, func() {
				w.now = w.now.Add(time.Microsecond)
				w.round(c.streams)
			}) / float64(c.streams)
			if got > c.most {
				t.Errorf("%.2f allocations per RPC, want at most %.2f", got, c.most)
			}
		})
	}
}

// TestDataAllocations: a long body is relayed without an allocation per frame,
// also where it has to wait in queues.
func TestDataAllocations(t *testing.T) {
	for _, wait := range []bool{false, true} {
		w := newBenchWorld()
		w.same()
		b := w.request(w, w.nextID, nil)
		w.must(w.down.Receive(w.now, b[:len(b)-len(message)-9]))
		id := w.nextID
		frame := appendFrameHeader(nil, 16384, http2.FrameData, 0, id)
		frame = append(frame, make([]byte, 16384)...)
		n := 0
		if got := testing.AllocsPerRun(200, func() {
			n++
			w.must(w.down.Receive(w.now, frame))
			if wait && n%8 != 0 {
				return // the pod's socket is full
			}
			for out := w.up.Output(); out != nil; out = w.up.Output() {
				w.up.Wrote(w.now, len(out))
			}
			w.down.Wrote(w.now, len(w.down.Output()))
		}); got > 0 {
			t.Errorf("waiting %t: %v allocations per frame", wait, got)
		}
	}
}
