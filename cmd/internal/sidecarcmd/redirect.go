// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/redirect/origdst"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
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

	// report takes the direct connections, whole, when they have changed. Nil: nobody
	// wants to know.
	report func(*api.DirectConnections)

	effective atomic.Bool
	last      string                 // what was logged last; run's goroutine alone
	reported  *api.DirectConnections // the same
}

// run asks at the start, and then now and again until ctx ends.
func (r *redirect) run(ctx context.Context) error {
	t := time.NewTicker(proofEvery)
	defer t.Stop()
	count := time.NewTicker(xds.ReportInterval)
	defer count.Stop()
	r.check(ctx)
	for {
		r.count()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			r.check(ctx)
		case <-count.C:
		}
	}
}

// count tells the control plane of connections that pass by the sidecar: their
// servers cannot be told apart from here, so they keep their floor.
func (r *redirect) count() {
	if r.report == nil || !r.effective.Load() {
		return
	}
	directs, err := r.directs()
	if err != nil {
		return // the next scrape says so
	}
	now := &api.DirectConnections{}
	for _, d := range directs {
		if d.Open <= 0 {
			continue
		}
		now.Destinations = append(now.Destinations, &api.DirectConnections_Destination{
			Address: destination(d.Destination), Count: uint64(d.Open),
		})
	}
	slices.SortFunc(now.Destinations, func(a, b *api.DirectConnections_Destination) int {
		return strings.Compare(a.GetAddress(), b.GetAddress())
	})
	if r.reported == nil && len(now.Destinations) == 0 || proto.Equal(now, r.reported) {
		return
	}
	r.reported = now
	r.report(now)
}

// destination names where direct connections go.
func destination(a netip.AddrPort) string {
	if a == (netip.AddrPort{}) {
		return "other" // beyond those that the programs count one by one
	}
	return a.String()
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
		name := destination(d.Destination)
		c <- prometheus.MustNewConstMetric(directDesc, prometheus.GaugeValue, float64(d.Open), name)
		c <- prometheus.MustNewConstMetric(directTotalDesc, prometheus.CounterValue, float64(d.Total), name)
	}
}
