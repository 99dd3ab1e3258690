// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package stats

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var start = time.UnixMilli(1_700_000_000_000)

func TestSnapshot(t *testing.T) {
	c := New(start)
	c.Connected("10.96.0.1:50051")
	for i := range 100 {
		c.Started("unary")
		at := start.Add(time.Duration(i) * 10 * time.Millisecond)
		c.Succeeded(at, Success{Kind: "unary", Server: "a", Authority: "echo:50051", PeerHost: "10.244.0.5", Latency: time.Duration(i) * time.Millisecond})
	}
	c.Started("long-bidi")
	for _, f := range []Failure{{EndedMS: 250, Code: "Unavailable", Message: "why"}, {EndedMS: 260, Code: "Unavailable", Message: "why"}, {EndedMS: 270, Code: "Internal", Message: "other", Server: "a", Answers: 3}} {
		f.Kind = "long-bidi"
		f.EndedMS += start.UnixMilli()
		c.Failed(f)
	}
	c.Disconnected()
	s := c.SnapshotWithTimeline(start.Add(time.Second))
	if s.Started != 101 || s.Succeeded != 100 || s.Failed != 3 || s.ByServer["a"] != 100 || s.Connects != 1 || s.Disconnects != 1 {
		t.Errorf("counters: %+v", s)
	}
	if s.Kinds["unary"] != (Counts{Started: 100, Succeeded: 100}) || s.Kinds["long-bidi"] != (Counts{Started: 1, Failed: 3}) {
		t.Errorf("kinds: %+v", s.Kinds)
	}
	if len(s.Failures) != 3 || s.Failures[2].Server != "a" || s.Failures[2].EndedMS != start.UnixMilli()+270 {
		t.Errorf("failures: %+v", s.Failures)
	}
	if s.Latency != (Latency{P50: 50_000, P99: 99_000, Max: 99_000}) {
		t.Errorf("latency: %+v", s.Latency)
	}
	if len(s.Errors) != 2 || s.Errors[0].Count != 2 || s.Errors[0].FirstMS != start.UnixMilli()+250 || s.Errors[0].LastMS != start.UnixMilli()+260 {
		t.Errorf("errors: %+v", s.Errors)
	}
	if len(s.Timeline) != 10 || s.Timeline[2].MS != start.UnixMilli()+200 || s.Timeline[2].ByServer["a"] != 10 || s.Timeline[2].Failed != 3 {
		t.Errorf("timeline: %+v", s.Timeline)
	}
	if s.LastSuccessMS != start.UnixMilli()+990 || s.NowMS != start.UnixMilli()+1000 {
		t.Errorf("times: %+v", s)
	}
	if plain := c.Snapshot(start); plain.Timeline != nil {
		t.Error("a plain snapshot has a timeline")
	}
	c.Reset(start.Add(time.Minute))
	if s := c.SnapshotWithTimeline(start); s.Started != 0 || s.SinceMS != start.UnixMilli()+60_000 || len(s.Timeline) != 0 || len(s.ByServer) != 0 {
		t.Errorf("after a reset: %+v", s)
	}
}

// Clients in other languages write the same keys, and empty ones are not null.
func TestJSONOfNothing(t *testing.T) {
	b, err := json.Marshal(New(start).Snapshot(start))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "null") {
		t.Errorf("null in %s", b)
	}
}

func TestBounds(t *testing.T) {
	c := New(start)
	for i := range maxErrors + 10 {
		c.Failed(Failure{EndedMS: start.Add(time.Duration(i) * time.Hour).UnixMilli(), Code: "Unknown", Message: strings.Repeat("x", i)})
	}
	for range maxFailures {
		c.Failed(Failure{EndedMS: start.UnixMilli(), Code: "Unknown", Message: "x"})
	}
	for i := range maxBuckets + 10 {
		c.Succeeded(start.Add(time.Duration(i)*Bucket), Success{Server: "a", Latency: time.Millisecond})
	}
	s := c.SnapshotWithTimeline(start)
	if len(s.Errors) != maxErrors || s.Failed != maxErrors+10+maxFailures || len(s.Failures) != maxFailures {
		t.Errorf("%d errors told, %d counted", len(s.Errors), s.Failed)
	}
	if len(s.Timeline) > maxBuckets {
		t.Errorf("%d buckets", len(s.Timeline))
	}
}
