// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package stats collects what a test client saw. Its JSON is the contract of all
// clients, in whatever language (python/client.py writes the same).
package stats

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Bucket is the length of one bucket of the timeline.
const Bucket = 100 * time.Millisecond

// maxBuckets bounds the timeline: 10 minutes.
const maxBuckets = 6000

// maxLatencies bounds the latencies that are kept for the percentiles; beyond
// it each new one takes the place of an old one in turn.
const maxLatencies = 200_000

// maxErrors bounds the distinct errors that are told, maxFailures the failures
// that are told one by one.
const (
	maxErrors   = 50
	maxFailures = 200
)

// Snapshot is the JSON of /stats and /run.
type Snapshot struct {
	// SinceMS and NowMS are Unix times in milliseconds: when counting began,
	// and when the snapshot was taken.
	SinceMS int64 `json:"since_ms"`
	NowMS   int64 `json:"now_ms"`
	// Started RPCs; each ends as Succeeded or Failed.
	Started   int64 `json:"started"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
	// Skipped RPCs were due, but too many were in flight: the client is
	// overloaded or the service stuck.
	Skipped int64 `json:"skipped"`
	// ByServer counts successful RPCs by the server's name.
	ByServer map[string]int64 `json:"by_server"`
	// Authorities and Peers are what the servers saw of us: the name asked for,
	// and the address without the port.
	Authorities map[string]int64 `json:"authorities"`
	Peers       map[string]int64 `json:"peers"`
	// Kinds counts RPCs by kind; streams that were asked to last are kinds of
	// their own ("long-bidi").
	Kinds map[string]Counts `json:"kinds"`
	// Errors has the first of each kind.
	Errors []Error `json:"errors"`
	// Failures has the first failed RPCs one by one.
	Failures []Failure `json:"failures"`
	// Connects counts connections that were made (grpcio: changes of a channel
	// to READY), Disconnects those that ended, ConnectFailures failed dials.
	Connects        int64 `json:"connects"`
	Disconnects     int64 `json:"disconnects"`
	ConnectFailures int64 `json:"connect_failures"`
	// Remotes counts connections by the peer's address as getpeername tells it
	// (empty in clients that cannot see it).
	Remotes map[string]int64 `json:"remotes"`
	// Latency of successful RPCs, in microseconds, without the streams that were
	// asked to last.
	Latency Latency `json:"latency_us"`
	// LastSuccessMS is the Unix time of the last success; 0: none.
	LastSuccessMS int64 `json:"last_success_ms"`
	// Timeline has, if it was asked for, a bucket per 100 ms in which an RPC
	// ended.
	Timeline []TimelineBucket `json:"timeline,omitempty"`
}

// Error is one kind of failure.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Count   int64  `json:"count"`
	FirstMS int64  `json:"first_ms"`
	LastMS  int64  `json:"last_ms"`
}

// Counts of one kind of RPC. Started minus the others are in flight.
type Counts struct {
	Started   int64 `json:"started"`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed"`
}

// Failure is one failed RPC.
type Failure struct {
	// BeganMS and EndedMS are Unix times in milliseconds.
	BeganMS int64  `json:"began_ms"`
	EndedMS int64  `json:"ended_ms"`
	Kind    string `json:"kind"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Server is who has answered on this stream, Answers how often. Empty: nobody
	// had, so the client cannot know who it was.
	Server  string `json:"server,omitempty"`
	Answers int    `json:"answers,omitempty"`
}

// Success is one RPC that ended well.
type Success struct {
	Kind      string
	Server    string
	Authority string
	PeerHost  string
	Latency   time.Duration
	// Lasting RPCs took as long as they were asked to: their latency says nothing.
	Lasting bool
}

// Latency are percentiles.
type Latency struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

// TimelineBucket counts what ended in 100 ms.
type TimelineBucket struct {
	// MS is the Unix time in milliseconds at which the bucket begins.
	MS       int64            `json:"ms"`
	ByServer map[string]int64 `json:"by_server"`
	Failed   int64            `json:"failed"`
}

// Collector counts; any goroutine may use it.
type Collector struct {
	mu        sync.Mutex
	s         Snapshot
	latencies []int64
	next      int
	timeline  map[int64]*TimelineBucket
}

// New returns an empty one.
func New(now time.Time) *Collector {
	c := &Collector{}
	c.Reset(now)
	return c
}

// Reset forgets everything.
func (c *Collector) Reset(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s = Snapshot{
		SinceMS: now.UnixMilli(), ByServer: map[string]int64{}, Remotes: map[string]int64{},
		Authorities: map[string]int64{}, Peers: map[string]int64{}, Kinds: map[string]Counts{}, Errors: []Error{}, Failures: []Failure{},
	}
	c.latencies, c.next = nil, 0
	c.timeline = map[int64]*TimelineBucket{}
}

// Started counts an RPC that begins.
func (c *Collector) Started(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Started++
	c.count(kind, Counts{Started: 1})
}

func (c *Collector) count(kind string, more Counts) {
	k := c.s.Kinds[kind]
	c.s.Kinds[kind] = Counts{Started: k.Started + more.Started, Succeeded: k.Succeeded + more.Succeeded, Failed: k.Failed + more.Failed}
}

// Skipped counts an RPC that was due, but did not begin.
func (c *Collector) Skipped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Skipped++
}

// Succeeded counts an RPC that ended well.
func (c *Collector) Succeeded(now time.Time, r Success) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Succeeded++
	c.count(r.Kind, Counts{Succeeded: 1})
	c.s.ByServer[r.Server]++
	c.s.Authorities[r.Authority]++
	c.s.Peers[r.PeerHost]++
	c.s.LastSuccessMS = now.UnixMilli()
	switch {
	case r.Lasting:
	case len(c.latencies) < maxLatencies:
		c.latencies = append(c.latencies, r.Latency.Microseconds())
	default:
		c.latencies[c.next%maxLatencies] = r.Latency.Microseconds()
		c.next++
	}
	if b := c.bucket(now); b != nil {
		b.ByServer[r.Server]++
	}
}

// Failed counts an RPC that failed at f.EndedMS.
func (c *Collector) Failed(f Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Failed++
	c.count(f.Kind, Counts{Failed: 1})
	if b := c.bucket(time.UnixMilli(f.EndedMS)); b != nil {
		b.Failed++
	}
	if len(c.s.Failures) < maxFailures {
		c.s.Failures = append(c.s.Failures, f)
	}
	for i := range c.s.Errors {
		if e := &c.s.Errors[i]; e.Code == f.Code && e.Message == f.Message {
			e.Count++
			e.LastMS = f.EndedMS
			return
		}
	}
	if len(c.s.Errors) < maxErrors {
		c.s.Errors = append(c.s.Errors, Error{Code: f.Code, Message: f.Message, Count: 1, FirstMS: f.EndedMS, LastMS: f.EndedMS})
	}
}

// Connected counts a connection to remote.
func (c *Collector) Connected(remote string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Connects++
	c.s.Remotes[remote]++
}

// Disconnected counts the end of a connection.
func (c *Collector) Disconnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Disconnects++
}

// ConnectFailed counts a dial that failed.
func (c *Collector) ConnectFailed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.ConnectFailures++
}

// bucket returns that of now; nil when there are too many.
func (c *Collector) bucket(now time.Time) *TimelineBucket {
	ms := now.Truncate(Bucket).UnixMilli()
	b := c.timeline[ms]
	if b == nil && len(c.timeline) < maxBuckets {
		b = &TimelineBucket{MS: ms, ByServer: map[string]int64{}}
		c.timeline[ms] = b
	}
	return b
}

// Snapshot copies the counters, without the timeline.
func (c *Collector) Snapshot(now time.Time) Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.s
	s.NowMS = now.UnixMilli()
	s.ByServer, s.Remotes = clone(s.ByServer), clone(s.Remotes)
	s.Authorities, s.Peers = clone(s.Authorities), clone(s.Peers)
	s.Kinds = maps.Clone(s.Kinds)
	s.Errors, s.Failures = slices.Clone(s.Errors), slices.Clone(s.Failures)
	if l := slices.Sorted(slices.Values(c.latencies)); len(l) > 0 {
		s.Latency = Latency{P50: l[len(l)/2], P99: l[len(l)*99/100], Max: l[len(l)-1]}
	}
	return s
}

// SnapshotWithTimeline copies everything.
func (c *Collector) SnapshotWithTimeline(now time.Time) Snapshot {
	s := c.Snapshot(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.timeline {
		s.Timeline = append(s.Timeline, TimelineBucket{MS: b.MS, ByServer: clone(b.ByServer), Failed: b.Failed})
	}
	slices.SortFunc(s.Timeline, func(a, b TimelineBucket) int { return int(a.MS - b.MS) })
	return s
}

func clone(m map[string]int64) map[string]int64 {
	n := make(map[string]int64, len(m)) // maps.Clone keeps nil, which is null in JSON
	maps.Copy(n, m)
	return n
}
