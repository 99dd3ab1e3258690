// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// flood is a peer that sends one kind of cheap frame for ever.
type flood struct {
	name   string
	role   Role
	before func(p *testPeer)        // once
	send   func(p *testPeer, i int) // each time
	most   int                      // the bound must be met within this many
	code   http2.ErrCode
	count  func(s Stats) uint64 // the counter that must say so
}

func abused(a Abuse) func(Stats) uint64 { return func(s Stats) uint64 { return s.Abuse[a] } }

// TestFloods: each is met by a bound, a counter, and little memory.
func TestFloods(t *testing.T) {
	for _, f := range []flood{
		{"rapid reset (CVE-2023-44487)", Server, nil, func(p *testPeer, i int) {
			p.request(uint32(2*i+1), true)
			p.check(p.fr.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel))
		}, 10001, calm, abused(AbuseReset)},
		{"made you reset by WINDOW_UPDATE of 0 (CVE-2025-8671)", Server, nil, func(p *testPeer, i int) {
			p.request(uint32(2*i+1), true)
			p.check(p.fr.WriteWindowUpdate(uint32(2*i+1), 0))
		}, 10001, calm, abused(AbuseReset)},
		{"malformed requests", Server, nil, func(p *testPeer, i int) { p.headers(uint32(2*i+1), true) }, 10001, calm, abused(AbuseReset)},
		{"more streams than allowed", Server, nil, func(p *testPeer, i int) { p.request(uint32(2*i+1), true) }, 11001, calm, abused(AbuseReset)},
		{"SETTINGS", Server, nil, func(p *testPeer, i int) { p.check(p.fr.WriteSettings()) }, 101, calm, abused(AbuseSettings)},
		{"SETTINGS of a server", Client, nil, func(p *testPeer, i int) { p.check(p.fr.WriteSettings()) }, 101, calm, abused(AbuseSettings)},
		{"GOAWAY", Client, nil, func(p *testPeer, i int) { p.check(p.fr.WriteGoAway(9, 0, nil)) }, 101, calm, abused(AbuseSettings)},
		{"PING", Server, nil, func(p *testPeer, i int) { p.check(p.fr.WritePing(false, [8]byte{})) }, 1001, calm, abused(AbusePing)},
		{"PING ACK", Server, nil, func(p *testPeer, i int) { p.check(p.fr.WritePing(true, [8]byte{})) }, 1001, calm, abused(AbusePing)},
		{
			"empty DATA", Server, func(p *testPeer) { p.request(1, false) },
			func(p *testPeer, i int) { p.data(1, false, 0) }, 1001, calm, abused(AbuseEmptyData),
		},
		{
			"DATA of padding", Server, func(p *testPeer) { p.request(1, false) },
			func(p *testPeer, i int) { p.check(p.fr.WriteDataPadded(1, false, nil, make([]byte, 9))) }, 1001, calm, abused(AbuseEmptyData),
		},
		{
			"empty DATA of a server", Client, func(p *testPeer) { p.open(true); p.headers(1, false, ":status", "200") },
			func(p *testPeer, i int) { p.data(1, false, 0) }, 1001, calm, abused(AbuseEmptyData),
		},
		{"WINDOW_UPDATE", Server, nil, func(p *testPeer, i int) { p.check(p.fr.WriteWindowUpdate(0, 1)) }, 10001, calm, abused(AbuseWindowUpdate)},
		{
			"WINDOW_UPDATE on a closed stream", Server, func(p *testPeer) { p.request(1, true); answered(p, 1) },
			func(p *testPeer, i int) { p.check(p.fr.WriteWindowUpdate(1, 1)) }, 10100, calm, abused(AbuseWindowUpdate),
		},
		{"PRIORITY", Server, nil, func(p *testPeer, i int) { p.check(p.fr.WritePriority(7, http2.PriorityParam{})) }, 10001, calm, abused(AbuseIgnored)},
		{"unknown frames", Server, nil, func(p *testPeer, i int) { raw(p, 0x99, 0, 0, "x") }, 10001, calm, abused(AbuseIgnored)},
		{
			"RST_STREAM on a closed stream", Server, func(p *testPeer) { p.request(1, true); answered(p, 1) },
			func(p *testPeer, i int) { p.check(p.fr.WriteRSTStream(1, http2.ErrCodeCancel)) }, 10100, calm, abused(AbuseIgnored),
		},
		{
			"responses to a stream that was reset", Client, func(p *testPeer) { p.open(true); reset(p, 1) },
			func(p *testPeer, i int) { p.headers(1, false, ":status", "200") }, 10100, calm, abused(AbuseIgnored),
		},
		{"CONTINUATION (CVE-2024-27316)", Server, func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
		}, func(p *testPeer, i int) {
			p.check(p.fr.WriteContinuation(1, false, p.block("a", strings.Repeat("x", 16000))))
		}, 20, calm, func(s Stats) uint64 { return s.HeaderFloods }},
		{"empty CONTINUATION", Server, func(p *testPeer) {
			p.check(p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block(get...)}))
		}, func(p *testPeer, i int) { p.check(p.fr.WriteContinuation(1, false, nil)) }, 257, calm, func(s Stats) uint64 { return s.HeaderFloods }},
		{"table size updates within a block", Server, nil, func(p *testPeer, i int) {
			raw(p, http2.FrameHeaders, endHeaders, 1, strings.Repeat("\x20", 3))
		}, 1, compress, func(s Stats) uint64 { return s.ConnectionErrors }},
		{"a table size beyond SETTINGS", Server, nil, func(p *testPeer, i int) {
			raw(p, http2.FrameHeaders, endHeaders, 1, "\x3f\xe2\x1f") // 4097
		}, 1, compress, func(s Stats) uint64 { return s.ConnectionErrors }},
		{"an integer without end", Server, nil, func(p *testPeer, i int) {
			raw(p, http2.FrameHeaders, endHeaders, 1, "\xff"+strings.Repeat("\xff", 100)+"\x01")
		}, 1, compress, func(s Stats) uint64 { return s.ConnectionErrors }},
		{
			"a peer that never reads and pings", Server, func(p *testPeer) { p.stuck = true },
			func(p *testPeer, i int) {
				p.check(p.fr.WritePing(false, [8]byte{}))
				p.now = p.now.Add(100 * time.Millisecond) // slower than any rate
			}, 70000, calm, func(s Stats) uint64 { return s.OutputOverflows },
		},
		{"a peer that never reads and asks", Server, func(p *testPeer) {
			p.stuck = true
			p.onOpen = func(ts *testStream, _ []field, _ bool) {
				ts.st.WriteHeaders(fieldsOf(":status", "200", "x", strings.Repeat("y", 100)), true)
			}
		}, func(p *testPeer, i int) { p.request(uint32(2*i+1), true) }, 200000, calm, func(s Stats) uint64 { return s.OutputOverflows }},
	} {
		t.Run(f.name, func(t *testing.T) {
			p := newPeer(t, f.role, nil)
			if f.before != nil {
				f.before(p)
				p.flush()
			}
			var mem0, mem1 runtime.MemStats
			runtime.ReadMemStats(&mem0)
			n := 0
			for ; n < f.most && p.err == nil; n++ {
				f.send(p, n)
				p.flush()
				p.frames, p.events = p.frames[:0], p.events[:0]
				if n%100 == 0 {
					for id, ts := range p.streams {
						if ts.closed > 0 {
							delete(p.streams, id)
						}
					}
				}
			}
			runtime.ReadMemStats(&mem1)
			if used := int64(mem1.HeapAlloc) - int64(mem0.HeapAlloc); used > 16<<20 {
				t.Errorf("%d MiB of memory", used>>20)
			}
			ce, ok := errors.AsType[*ConnectionError](p.err)
			if !ok || ce.Code != f.code || ce.Blame != Peer {
				t.Fatalf("after %d: %v, want %s", n, p.err, f.code)
			}
			if got := f.count(p.s.Stats()); got != 1 {
				t.Errorf("counted %d", got)
			}
			if !strings.Contains(string(p.s.Output()), ce.Reason) && p.stuck {
				t.Error("GOAWAY is not in the output")
			}
			t.Logf("met after %d: %v", n, p.err)
		})
	}
}

// TestHonestStorms: much of the same from peers that mean well trips nothing.
func TestHonestStorms(t *testing.T) {
	t.Run("cancelled RPCs", func(t *testing.T) {
		p := newPeer(t, Server, &Config{MaxConcurrentStreams: 1000})
		id := uint32(1)
		for range 50 {
			first := id
			for range 1000 { // in one burst, and cancelled in one burst
				p.request(id, true)
				id += 2
			}
			p.flush()
			p.now = p.now.Add(20 * time.Millisecond) // their deadline
			for i := first; i < id; i += 2 {
				p.check(p.fr.WriteRSTStream(i, http2.ErrCodeCancel))
			}
			p.flush()
			clear(p.streams)
			p.events = nil
		}
		p.wantAlive("50,000 RPCs that ran into their deadline")
	})
	t.Run("RPCs cancelled at once", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		id := uint32(1)
		for range 10000 {
			p.request(id, true)
			p.check(p.fr.WriteRSTStream(id, http2.ErrCodeCancel))
			id += 2
		}
		p.flush()
		clear(p.streams)
		p.wantAlive("a burst of 10,000 in no time")
		for range 100 {
			p.now = p.now.Add(10 * time.Millisecond)
			for range 10 {
				p.request(id, true)
				p.check(p.fr.WriteRSTStream(id, http2.ErrCodeCancel))
				id += 2
			}
			p.flush()
		}
		clear(p.streams)
		p.wantAlive("1,000 a second in the long run")
	})
	t.Run("hedged RPCs", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		id := uint32(1)
		for range 30000 { // two are sent, the loser is cancelled at once
			p.request(id, true)
			p.request(id+2, true)
			p.flush()
			answered(p, id)
			p.check(p.fr.WriteRSTStream(id+2, http2.ErrCodeCancel))
			p.flush()
			clear(p.streams)
			p.events = p.events[:0]
			id += 4
		}
		p.wantAlive("half of 60,000")
	})
	t.Run("gRPC's bandwidth estimator", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		p.request(1, false)
		p.flush()
		for range 20000 { // a PING for each message received, and a window update
			p.streams[1].st.WriteData([]byte("message"), false)
			p.check(p.fr.WritePing(false, [8]byte{}))
			p.check(p.fr.WriteWindowUpdate(0, 7))
			p.check(p.fr.WriteWindowUpdate(1, 7))
			p.flush()
			p.frames = p.frames[:0]
		}
		p.wantAlive("20,000 messages")
	})
	t.Run("a server that resets each stream once it is done", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		for range 15000 {
			id := p.open(true).st.ID()
			p.headers(id, true, ":status", "200")
			p.check(p.fr.WriteRSTStream(id, http2.ErrCodeNo))
			p.flush()
			p.frames, p.events = p.frames[:0], p.events[:0]
			clear(p.streams)
		}
		p.wantAlive("15,000 RPCs in no time")
	})
	t.Run("our own cancellations", func(t *testing.T) {
		p := newPeer(t, Client, nil)
		for range 200 {
			var all []*testStream
			for range 100 {
				all = append(all, p.open(true))
			}
			for _, ts := range all {
				ts.st.Reset(http2.ErrCodeCancel)
			}
			// The answers of all cross the resets, beyond what the ring remembers.
			for id := p.s.nextID - 200; id < p.s.nextID; id += 2 {
				p.headers(id, false, ":status", "200")
				p.data(id, false, 100)
				p.headers(id, true, "grpc-status", "0")
			}
			p.flush()
			p.now = p.now.Add(10 * time.Millisecond)
			if p.err != nil {
				t.Fatal(p.err)
			}
			clear(p.streams)
			p.frames, p.events = nil, nil
		}
		p.wantAlive("20,000 answers to cancelled RPCs")
		wantWindowsWhole(t, p)
	})
}

// TestBombs: a small block that stands for much.
func TestBombs(t *testing.T) {
	p := newPeer(t, Server, nil)
	p.onLarge = func(ts *testStream) { ts.st.WriteHeaders(fieldsOf(":status", "431"), true) }
	p.request(1, true, "bomb", strings.Repeat("x", 3900))
	p.flush()
	// 16,000 references to the 3.9 KiB entry are 62 MB.
	block := string(p.block(get...)) + strings.Repeat("\xbe", 16000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	raw(p, http2.FrameHeaders, endHeaders|endStream, 3, block)
	p.flush()
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d KiB were allocated", used>>10)
	}
	p.frames = nil
	if p.streams[3] == nil || p.s.Stats().HeadersTooLarge != 1 {
		t.Error("not told as too large")
	}
	p.wantAlive("after a bomb")
}

// TestSettingsAmplification: one frame of 2,700 window changes is one change.
func TestSettingsAmplification(t *testing.T) {
	p := newPeer(t, Server, nil)
	for id := uint32(1); id < 2000; id += 2 {
		p.request(id, true)
	}
	p.flush()
	var set []http2.Setting
	for i := range uint32(2700) {
		set = append(set, setting(http2.SettingInitialWindowSize, i))
	}
	start := time.Now()
	for range 50 {
		p.check(p.fr.WriteSettings(set...))
		p.flush()
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("50 frames took %v", d)
	}
	if w := p.streams[1].st.sendWindow; w != 2699 {
		t.Errorf("window %d", w)
	}
}

// TestUnreadRequests: a client session whose pod does not read opens no more.
func TestUnreadRequests(t *testing.T) {
	p := newPeer(t, Client, &Config{OutputLimit: 1000, ControlLimit: 10000})
	p.stuck = true
	n := 0
	for ; n < 10000; n++ {
		st, err := p.s.Open(p.newStream(nil))
		if err != nil {
			break
		}
		st.WriteHeaders(fieldsOf(append(get, "x", fmt.Sprint("a long unique value ", n))...), true)
	}
	if n == 0 || n > 1000 || p.s.out.len() > 7000 {
		t.Fatalf("%d streams, %d bytes wait", n, p.s.out.len())
	}
	p.events = nil
	p.stuck = false
	p.read()
	p.wantEvent("once the pod reads", "capacity")
}

// TestIdleStreamsAreSmall: issue 3 allows 8 KiB for each on both sides.
func TestIdleStreamsAreSmall(t *testing.T) {
	w := newBenchWorld()
	w.same()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 900 {
		b := w.request(w, w.nextID+2*uint32(i), nil)
		w.must(w.down.Receive(w.now, b[:len(b)-len(message)-9]))
		w.up.Wrote(w.now, len(w.up.Output()))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / 900
	t.Logf("%d bytes for a stream on both sides", per)
	if per > 2048 {
		t.Errorf("%d bytes", per)
	}
	if w.down.OpenStreams() != 900 || w.up.OpenStreams() != 900 {
		t.Fatal("the streams are not open")
	}
}
