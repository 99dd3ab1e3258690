// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/listener"
	"evenkeel.dev/sidecar/upstream"
)

// collector exports the loop's numbers. At a scrape the loop only copies them, some
// 100 KiB at most in a busy pod; making metrics of them is the scraper's goroutine's work.
type collector struct{ s *Sidecar }

// scrapeTimeout bounds the wait for the loop: a scrape of a loop that hangs fails
// rather than hangs.
const scrapeTimeout = 2 * time.Second

// numbers are a copy of all that is exported.
type numbers struct {
	rpcs      []methodNumbers
	endpoints []endpointNumbers
	services  []serviceNumbers
	stats     Stats
	waits     [numWaits]uint64
	waiting   [numWaits]int
	listener  listener.Stats
	pools     upstream.Stats
	down, up  h2.Stats
	downs     int
	raws      int
	relays    int
	kept      int
	turns     uint64
}

type methodNumbers struct {
	target, method string
	started        uint64
	codes          []codeNumbers
}

type codeNumbers struct {
	code code
	series
}

type endpointNumbers struct {
	service, addr, pod string
	inFlight           int
	rpcs               [numCodes]uint64
}

type serviceNumbers struct {
	name   string
	states [balancer.Draining + 1]int
	up     int
}

func (s *Sidecar) numbers() *numbers {
	n := &numbers{
		stats: s.stats, waits: s.waits, listener: s.listener.Stats(), pools: s.pools.Stats(),
		down: *s.h2Down.Stats, up: *s.h2Up.Stats,
		downs: len(s.downs), raws: len(s.raws), relays: s.relays, kept: s.keptBytes, turns: s.loop.Turns(),
	}
	n.waiting[waitRoute] = s.asking.n
	n.waiting[waitSession] = n.pools.Queued
	n.addRPCs(&s.unrouted)
	for _, t := range s.targets {
		n.addRPCs(&t.direct)
	}
	for _, svc := range s.services {
		n.addRPCs(&svc.stats)
		n.addService(svc)
	}
	return n
}

func (n *numbers) addService(svc *service) {
	v := serviceNumbers{name: svc.name, up: svc.connected}
	for st := range v.states {
		v.states[st] = svc.b.Count(balancer.State(st))
	}
	n.services = append(n.services, v)
	if svc.answered {
		n.waiting[waitEndpoint] += svc.waiting.n
	} else {
		n.waiting[waitService] += svc.waiting.n
	}
	for _, be := range svc.b.Endpoints() {
		n.endpoints = append(n.endpoints, endpointNumbers{
			service: svc.name, addr: be.Addr().String(), pod: be.Spec().Pod,
			inFlight: be.InFlight(), rpcs: endpointOf(be).rpcs,
		})
	}
}

func (n *numbers) addRPCs(s *rpcStats) {
	for path, m := range s.methods {
		n.addMethod(s.target, strings.TrimPrefix(path, "/"), m)
	}
	n.addMethod(s.target, otherMethod, &s.other)
}

func (n *numbers) addMethod(target, method string, m *methodStats) {
	v := methodNumbers{target: target, method: method, started: m.started}
	for c, s := range m.codes {
		if s != nil {
			v.codes = append(v.codes, codeNumbers{code(c), *s})
		}
	}
	if v.started > 0 || v.codes != nil {
		n.rpcs = append(n.rpcs, v)
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	late := make(chan struct{})
	timer := time.AfterFunc(scrapeTimeout, func() { close(late) })
	defer timer.Stop()
	var n *numbers
	if err := c.s.inLoop(late, func(time.Time) { n = c.s.numbers() }); err != nil {
		ch <- prometheus.NewInvalidMetric(descStreams, err)
		return
	}
	n.send(ch)
}
