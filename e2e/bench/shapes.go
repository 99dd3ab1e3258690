// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// shape is one kind of load.
type shape struct {
	name     string
	conns    int
	streams  int // per connection
	requests int
	body     int  // message bytes
	unique   bool // traceparent, request id and an 800-byte token, new for each RPC: from the generator in load.go
	rate     int  // RPC/s of an open loop; 0: closed loop
	backends int  // servers behind the proxy; 0: fewBackends
}

// fewBackends serve the shapes that measure CPU time.
const fewBackends = 3

func (s shape) endpoints() int {
	if s.backends == 0 {
		return fewBackends
	}
	return s.backends
}

var shapes = []shape{
	{name: "4x50", conns: 4, streams: 50, requests: 100_000, body: 14},
	{name: "8x1", conns: 8, streams: 1, requests: 40_000, body: 14},
	{name: "2x8", conns: 2, streams: 8, requests: 60_000, body: 14},
	{name: "1x1", conns: 1, streams: 1, requests: 15_000, body: 14},
	{name: "1x10-64k", conns: 1, streams: 10, requests: 5_000, body: 64 << 10},
	{name: "4x50-unique", conns: 4, streams: 50, requests: 60_000, body: 14, unique: true},
	{name: "8x1-unique", conns: 8, streams: 1, requests: 30_000, body: 14, unique: true},
	{name: "2x8-unique", conns: 2, streams: 8, requests: 40_000, body: 14, unique: true},
	{name: "1x1-unique", conns: 1, streams: 1, requests: 15_000, body: 14, unique: true},
	{name: "open-500", conns: 4, streams: 100, requests: 2_500, body: 14, unique: true, rate: 500},
	// For memory: every connection of the app and every endpoint has buffers and tables of its own.
	{name: "100x10-10k", conns: 100, streams: 10, requests: 100_000, body: 14, unique: true, rate: 10_000, backends: 100},
}

func selectShapes(names string, scale float64) ([]shape, error) {
	var out []shape
	want := strings.Split(names, ",")
	for _, s := range shapes {
		if names == "" || slices.Contains(want, s.name) {
			s.requests = max(int(float64(s.requests)*scale), s.conns*s.streams)
			// h2load shares the requests evenly among its connections.
			s.requests -= s.requests % s.conns
			out = append(out, s)
		}
	}
	if names != "" && len(out) != len(want) {
		return nil, fmt.Errorf("--shapes %q: known are %s", names, shapeList())
	}
	return out, nil
}

func shapeList() string {
	var n []string
	for _, s := range shapes {
		n = append(n, s.name)
	}
	return strings.Join(n, ", ")
}

// sample is one round of one shape through one proxy.
type sample struct {
	rpcs     uint64
	took     time.Duration
	cpu      time.Duration
	p50, p99 float64 // µs
	rss      uint64  // KiB, right after the load
	// of the largest process
	largestRSS uint64
}

func measure(ctx context.Context, dir string, p *proxy, s shape, backends backendSet) (sample, error) {
	before, err := p.cpu()
	if err != nil {
		return sample{}, err
	}
	served := backends.served()
	var lat []float64
	begin := time.Now()
	if s.unique {
		lat, err = generate(ctx, p.addr, p.authority, s)
	} else {
		lat, err = h2load(ctx, dir, p, s)
	}
	if err != nil {
		return sample{}, err
	}
	took := time.Since(begin)
	after, err := p.cpu()
	if err != nil {
		return sample{}, err
	}
	m := sample{rpcs: backends.served() - served, cpu: after - before, took: took}
	m.rss, m.largestRSS = p.rss()
	if m.rpcs != uint64(s.requests) {
		return sample{}, fmt.Errorf("%d requests were sent but the backends served %d", s.requests, m.rpcs)
	}
	slices.Sort(lat)
	m.p50, m.p99 = lat[len(lat)/2], lat[len(lat)*99/100]
	return m, nil
}

// grpcMessage is the length-prefixed message of gRPC's wire protocol.
func grpcMessage(n int) []byte {
	b := make([]byte, 5+n)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	return b
}

func h2load(ctx context.Context, dir string, p *proxy, s shape) ([]float64, error) {
	body := filepath.Join(dir, fmt.Sprintf("body-%d", s.body))
	if err := os.WriteFile(body, grpcMessage(s.body), 0o600); err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "h2load.log")
	os.Remove(log)
	cmd := exec.CommandContext(ctx, "h2load", "-n", strconv.Itoa(s.requests), "-c", strconv.Itoa(s.conns), "-m", strconv.Itoa(s.streams),
		"-w", "20", "-W", "22", "-d", body, "--log-file="+log, "-H", "content-type: application/grpc", "-H", "te: trailers",
		"-H", ":authority: "+p.authority, "http://"+p.addr+"/echo.Echo/Echo")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("h2load: %w\n%s", err, out)
	}
	if want := fmt.Sprintf("%d succeeded, 0 failed", s.requests); !strings.Contains(string(out), want) {
		return nil, fmt.Errorf("h2load did not report %q:\n%s", want, out)
	}
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lat []float64
	for sc := bufio.NewScanner(f); sc.Scan(); {
		// start time, status, response time in µs
		cols := strings.Fields(sc.Text())
		if len(cols) != 3 {
			return nil, fmt.Errorf("h2load's log has the line %q", sc.Text())
		}
		us, err := strconv.ParseFloat(cols[2], 64)
		if err != nil {
			return nil, err
		}
		lat = append(lat, us)
	}
	if len(lat) == 0 {
		return nil, fmt.Errorf("h2load logged no request:\n%s", out)
	}
	return lat, nil
}
