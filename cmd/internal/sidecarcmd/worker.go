// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/redirect/origdst"
	"evenkeel.dev/sidecar"
	"evenkeel.dev/sidecar/discovery"
	"evenkeel.dev/xds/api"
)

// memoryTarget of the container's limit is where the garbage collector starts
// to work harder; the supervisor acts at memoryShare.
const memoryTarget = 0.75

// workerMain is the process that serves. Only a supervisor starts it.
func workerMain(ctx context.Context, args []string, stderr io.Writer) int {
	in, args, err := parseWorker(args)
	if err != nil {
		fmt.Fprintf(stderr, "sidecar worker: %s\n", err)
		return run.Misused
	}
	cfg, err := parseRun(args, os.Getenv)
	if err != nil {
		fmt.Fprintf(stderr, "sidecar worker: %s\n", err)
		return run.Misused
	}
	log := cfg.Log.New(stderr).With("part", "worker")
	limitResources()
	if err := serve(ctx, cfg, in, log); err != nil {
		log.Error("the worker ends", "error", err)
		return run.Failed
	}
	return run.OK
}

// limitResources sets the bounds that the design gives the worker, unless the
// environment of the Go runtime says otherwise.
func limitResources() {
	// Two: discovery and metrics never wait for the loop, nor it for them.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	}
	// RPCs allocate next to nothing in the steady state, so a heap that is collected
	// earlier costs little, and there is one in every pod.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40)
	}
	if limit := findCgroupMemory().limit(); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(memoryTarget * float64(limit)))
	}
}

// lateClient breaks the circle between the data plane, which asks and reports,
// and discovery, which answers it. It is set before either runs.
type lateClient struct{ *discovery.Client }

// lateHolds breaks the one between discovery, which hears of the pod, and the
// holds, which answer through it.
type lateHolds struct{ *holds }

// serve assembles the worker and runs it until it may end.
func serve(ctx context.Context, cfg *Config, in *inheritance, log *slog.Logger) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	terminated, unnotify := signals(stop)
	defer unnotify()

	reg := prometheus.NewRegistry()
	red := &redirect{log: log, prove: origdst.ProofOfProcess, directs: directConnections}
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		red,
		in.restarts,
		buildInfo(),
	)

	late := &lateClient{}
	plane, err := sidecar.New(sidecar.Config{
		Logger:           log,
		Listeners:        in.outbound,
		Resolver:         late,
		Reporter:         late,
		OriginalDst:      origdst.Lookup,
		ErrNoOriginalDst: origdst.ErrNone,
		Registerer:       reg,
		DefaultPort:      cfg.OutboundPorts[0],
	})
	if err != nil {
		return err
	}
	told := &lateHolds{}
	client, err := discovery.New(discovery.Config{
		Logger: log, Target: cfg.XDS, CAFile: cfg.XDSCA, TokenFile: cfg.XDSToken,
		Node: discovery.Node{
			Namespace: cfg.Namespace, Pod: cfg.Pod, UID: cfg.PodUID,
			Workload: cfg.Workload, NodeName: cfg.Node, Zone: cfg.Zone,
		},
		Sink: plane, Registerer: reg,
		Synced:  func() { told.synced() },
		Pod:     func(replica string, ps *api.PodStatus) { told.pod(replica, ps) },
		Learned: func(l discovery.Learned) { told.learned(l) },
	})
	if err != nil {
		return err
	}
	late.Client = client
	red.report = client.SetDirect
	told.holds = newHolds(cfg, log, client, reg, time.Now())

	pod := podHandler(cfg, log, told.holds, reg)
	dbg := debugHandler(told.holds, pod, func(ctx context.Context) (any, error) { return plane.Snapshot(ctx) })

	// Whatever ends first ends all: the supervisor starts the next worker.
	group, ctx := errgroup.WithContext(ctx)
	part := func(f func(context.Context) error) {
		group.Go(func() error {
			defer stop()
			return f(ctx)
		})
	}
	part(plane.Run)
	part(client.Run)
	part(red.run)
	part(func(ctx context.Context) error { return admin(ctx, log, in.pod, pod, 0) })
	part(func(ctx context.Context) error { return admin(ctx, log, in.debug, dbg, -1) })
	part(func(ctx context.Context) error { return beat(ctx, in.heartbeat, plane.Heartbeat) })
	part(told.run)
	group.Go(func() error { return told.serving(ctx, plane.Heartbeat) })
	group.Go(func() error {
		defer unnotify()
		if !in.ending {
			select {
			case <-ctx.Done():
				return nil
			case <-terminated:
			}
		}
		return untilIdle(ctx, log, plane, client.Leave, stop)
	})
	return group.Wait()
}

// signals turns SIGINT into stop, and SIGTERM into the end of the channel.
func signals(stop func()) (terminated <-chan struct{}, unnotify func()) {
	c := make(chan os.Signal, 4)
	signal.Notify(c, syscall.SIGTERM, os.Interrupt)
	term := make(chan struct{})
	quit := make(chan struct{})
	go func() {
		seen := false
		for {
			select {
			case sig := <-c:
				switch {
				case sig == os.Interrupt:
					stop()
				case !seen:
					seen = true
					close(term)
				}
			case <-quit:
				return
			}
		}
	}()
	return term, sync.OnceFunc(func() {
		signal.Stop(c)
		close(quit)
	})
}

func directConnections() ([]origdst.Direct, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for the count of direct connections: %w", err)
	}
	defer func() { _ = syscall.Close(fd) }()
	return origdst.Directs(fd, nil)
}

// admin serves on an inherited listener.
func admin(ctx context.Context, log *slog.Logger, f *os.File, h http.Handler, write time.Duration) error {
	ln, err := net.FileListener(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("inherited listener %s: %w", f.Name(), err)
	}
	return (&run.Admin{Logger: log, Handler: h, WriteTimeout: write}).Serve(ctx, ln)
}

func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "evenkeel", Subsystem: "sidecar", Name: "build_info", Help: "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": run.VersionString(), "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

var restartsDesc = prometheus.NewDesc("evenkeel_sidecar_worker_restarts_total",
	"Workers that ended before this one, by cause.", []string{"cause"}, nil)

// Describe is part of prometheus.Collector.
func (r restarts) Describe(c chan<- *prometheus.Desc) { c <- restartsDesc }

// Collect shows every cause, also those that never were: a rate needs a zero.
func (r restarts) Collect(c chan<- prometheus.Metric) {
	for _, cause := range causes {
		c <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(r[cause]), cause)
	}
}
