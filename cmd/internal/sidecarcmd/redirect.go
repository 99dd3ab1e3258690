// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/redirect/origdst"
)

// proofEvery is how often the proof is asked for again: an agent may attach to
// a pod that already runs, and somebody may detach.
const proofEvery = 5 * time.Second

// redirect keeps the word of the redirect's programs about this process. A
// program that is attached proves nothing; one that answers does.
type redirect struct {
	log *slog.Logger
	// prove and directs are package origdst's: what the kernel says.
	prove   func() (origdst.Info, error)
	directs func() ([]origdst.Direct, error)

	effective atomic.Bool
	last      string // what was logged last; run's goroutine alone
}

// run asks at the start, and then now and again until ctx ends.
func (r *redirect) run(ctx context.Context) error {
	t := time.NewTicker(proofEvery)
	defer t.Stop()
	for {
		r.check(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (r *redirect) check(ctx context.Context) {
	info, err := r.prove()
	r.effective.Store(err == nil)
	level, text := slog.LevelInfo, fmt.Sprintf("effective for ports %v", info.Ports)
	switch {
	case err != nil:
		level, text = slog.LevelWarn, err.Error()
	case !info.Own():
		// Our own connections to servers would come back to our listener.
		level, text = slog.LevelError, fmt.Sprintf("effective, but it takes cgroup %d for the sidecar's and this is %d: was the listener bound outside of the container?",
			info.SidecarCgroup, info.CallerCgroup)
	}
	if text != r.last {
		r.last = text
		r.log.Log(ctx, level, "redirect", "state", text)
	}
}

var (
	effectiveDesc = prometheus.NewDesc("evenkeel_redirect_effective",
		"1 when the redirect's programs act on this pod, as they themselves answered.", nil, nil)
	redirectedDesc = prometheus.NewDesc("evenkeel_redirected_connects_total",
		"Connects of the pod that were led to the sidecar.", nil, nil)
	lostDesc = prometheus.NewDesc("evenkeel_redirect_lost_total",
		"Original destinations that could not be kept for want of memory.", nil, nil)
	directDesc = prometheus.NewDesc("evenkeel_direct_connections",
		"Open connections to redirected ports that did not pass the sidecar (opened while it was away).", []string{"destination"}, nil)
	directTotalDesc = prometheus.NewDesc("evenkeel_direct_connections_total",
		"Connections to redirected ports that did not pass the sidecar.", []string{"destination"}, nil)
)

// Describe is part of prometheus.Collector.
func (r *redirect) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{effectiveDesc, redirectedDesc, lostDesc, directDesc, directTotalDesc} {
		c <- d
	}
}

// Collect asks the kernel at each scrape: a few system calls.
func (r *redirect) Collect(c chan<- prometheus.Metric) {
	info, err := r.prove()
	if err != nil {
		c <- prometheus.MustNewConstMetric(effectiveDesc, prometheus.GaugeValue, 0)
		return
	}
	c <- prometheus.MustNewConstMetric(effectiveDesc, prometheus.GaugeValue, 1)
	c <- prometheus.MustNewConstMetric(redirectedDesc, prometheus.CounterValue, float64(info.Redirected))
	c <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(info.Lost))
	directs, err := r.directs()
	if err != nil {
		c <- prometheus.NewInvalidMetric(directDesc, err)
		return
	}
	for _, d := range directs {
		name := "other" // beyond those that the programs count one by one
		if d.Destination != (netip.AddrPort{}) {
			name = d.Destination.String()
		}
		c <- prometheus.MustNewConstMetric(directDesc, prometheus.GaugeValue, float64(d.Open), name)
		c <- prometheus.MustNewConstMetric(directTotalDesc, prometheus.CounterValue, float64(d.Total), name)
	}
}
