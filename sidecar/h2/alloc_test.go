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

// TestManySessionsAllocateNothing: all connections of an app may have output in one turn of the loop, and
// again in the next.
func TestManySessionsAllocateNothing(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "as large as a request with a token": 1500, "larger": 4000} {
		t.Run(name, func(t *testing.T) {
			pool := &Pool{}
			now := time.Now()
			var all []*Session
			for range 200 {
				s := New(Client, &Config{Pool: pool}, &miniSession{}, now)
				s.Wrote(now, len(s.Output()))
				all = append(all, s)
			}
			got := testing.AllocsPerRun(100, func() {
				for _, s := range all {
					for range size / (frameHeaderLen + 8) {
						s.writePing(0, 1)
					}
				}
				for _, s := range all {
					s.Wrote(now, len(s.Output()))
				}
			})
			if got > 0 {
				t.Errorf("%v allocations in a turn", got)
			}
			if pool.bytes > keepBuffers {
				t.Errorf("%d bytes are kept", pool.bytes)
			}
		})
	}
}

// TestLargeBuffersReturnToWhoNeedsThem: one session that writes much, among many that do not.
func TestLargeBuffersReturnToWhoNeedsThem(t *testing.T) {
	pool := &Pool{}
	now := time.Now()
	var all []*Session
	for range 20 {
		s := New(Client, &Config{Pool: pool}, &miniSession{}, now)
		s.Wrote(now, len(s.Output()))
		all = append(all, s)
	}
	got := testing.AllocsPerRun(100, func() {
		for i, s := range all {
			n := 3
			if i == 7 {
				n = 5000 // 85 KB
			}
			for range n {
				s.writePing(0, 1)
			}
		}
		for _, s := range all {
			s.Wrote(now, len(s.Output()))
		}
	})
	if got > 0 || len(pool.large) != 1 {
		t.Errorf("%v allocations in a turn, %d large buffers", got, len(pool.large))
	}
}
