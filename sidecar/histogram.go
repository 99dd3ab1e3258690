// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strings"
	"unicode/utf8"
)

// otherMethod is the label of the methods beyond Config.MaxMethods.
const otherMethod = "other"

// Histograms are the loop's own plain numbers, copied out at a scrape: an
// observation is a search in a small array and two additions, where a library's
// shared ones cost atomics and locks for each of four per RPC.

// latencyBounds and sizeBounds are those of gRFC A66.
var (
	latencyBounds = [...]float64{
		0.00001, 0.00005, 0.0001, 0.0003, 0.0006, 0.0008, 0.001, 0.002, 0.003, 0.004,
		0.005, 0.006, 0.008, 0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065,
		0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1, 2, 5, 10, 20, 50, 100,
	}
	sizeBounds = [...]float64{
		0, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20,
		16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30,
	}
)

type latencies struct {
	counts [len(latencyBounds) + 1]uint64
	sum    float64
}

type sizes struct {
	counts [len(sizeBounds) + 1]uint64
	sum    float64
}

func (h *latencies) observe(v float64, bounds []float64) {
	h.counts[bucket(v, bounds)]++
	h.sum += v
}

func (h *sizes) observe(v float64, bounds []float64) {
	h.counts[bucket(v, bounds)]++
	h.sum += v
}

// bucket is the index of the first bound that is not below v.
func bucket(v float64, bounds []float64) int {
	lo, hi := 0, len(bounds)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); bounds[m] < v {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// rpcStats are the numbers of one target of RPCs, a service or an address.
type rpcStats struct {
	target  string
	max     int
	methods map[string]*methodStats
	other   methodStats
}

// methodStats are those of one method.
type methodStats struct {
	started uint64 // attempts
	codes   [numCodes]*series
}

// series are those of one method and status.
type series struct {
	call, duration latencies
	sent, received sizes
}

func (s *rpcStats) init(target string, maxMethods int) {
	s.target, s.max, s.methods = target, maxMethods, map[string]*methodStats{}
}

// method finds the numbers of a :path. Paths come from the app; their number is bounded, since
// each costs memory here and in the monitoring.
func (s *rpcStats) method(path string) *methodStats {
	if m, ok := s.methods[path]; ok {
		return m
	}
	if len(s.methods) >= s.max || !utf8.ValidString(path) || strings.TrimPrefix(path, "/") == otherMethod {
		return &s.other
	}
	path = strings.Clone(path) // not the whole header block with it
	m := &methodStats{}
	s.methods[path] = m
	return m
}

func (m *methodStats) of(c code) *series {
	if m.codes[c] == nil {
		m.codes[c] = &series{}
	}
	return m.codes[c]
}
