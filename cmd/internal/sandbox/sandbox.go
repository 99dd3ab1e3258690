// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"evenkeel.dev/xds"
)

// Config configures Run.
type Config struct {
	// Dir holds the YAML files with the Services and EndpointSlices. Required.
	Dir string
	// Namespace is where the command lives. Zero: default.
	Namespace string
	// Redirect says how the command's connections reach the sidecar. Zero: by eBPF.
	Redirect Redirect
	// OutboundPorts are the destination ports that are redirected. Zero: 50051.
	OutboundPorts []uint16
	// Command is what to run. Required.
	Command Command
	// Logger receives what the sandbox does. Required.
	Logger *slog.Logger
	// Log receives the output of Evenkeel's own processes. Required.
	Log *os.File
	// LogLevel is that of Evenkeel's own processes: debug, info, warn or error. Zero: info.
	LogLevel string
	// Notices receives the few lines that the user must see while the command runs. Required.
	Notices io.Writer
}

// Interrupted says that a signal ended the sandbox before the command ran.
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string { return "interrupted by " + signalName(e.Signal) }

// Run runs the command and returns the report, with the command's exit status in it. An error is Evenkeel's own: the
// command did not run. Nothing is left behind either way.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	cfg.Namespace = cmp.Or(cfg.Namespace, "default")
	if len(cfg.OutboundPorts) == 0 {
		cfg.OutboundPorts = []uint16{xds.DefaultOutboundPort}
	}
	signals := catchSignals()
	defer signals.stop()
	setup, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)

	scope, err := NewScope(ScopeConfig{Logger: cfg.Logger, Log: cfg.Log, Cgroups: cfg.Redirect.cgroups()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, scope.Close()) }()

	run := &run{cfg: cfg, scope: scope}
	defer run.stop()
	started := make(chan error, 1)
	go func() { started <- run.start(setup) }()
	select {
	case err := <-started:
		if err != nil {
			return nil, err
		}
	case sig := <-signals.ch:
		abandon(&Interrupted{sig.(syscall.Signal)})
		if err := <-started; err == nil {
			// The command was started just before the signal: then the signal is the command's.
			signals.ch <- sig
			break
		}
		return nil, &Interrupted{sig.(syscall.Signal)}
	}
	return run.wait(ctx, signals), nil
}

// run is one run of a command.
type run struct {
	cfg   Config
	scope *Scope

	manifests    *manifests
	controlPlane *ControlPlane
	pod          *Pod
	cmd          *exec.Cmd
	began        time.Time
}

// start is the sandbox's assembly, in order.
func (r *run) start(ctx context.Context) (err error) {
	hosts := "" // with RedirectNone the command dials the listener, not a Service's address
	if r.cfg.Redirect == RedirectEBPF {
		hosts = filepath.Join(r.scope.dir, "hosts")
	}
	if r.manifests, err = followManifests(ctx, r.cfg, hosts); err != nil {
		return err
	}
	if r.manifests.empty() {
		fmt.Fprintf(r.cfg.Notices, "evenkeel: no Service in the files (*.yaml, *.yml) of %s: nothing is balanced until there is one\n", r.cfg.Dir)
	}
	if left := r.manifests.notRedirected(r.cfg.OutboundPorts); r.cfg.Redirect == RedirectEBPF && len(left) > 0 {
		fmt.Fprintf(r.cfg.Notices, "evenkeel: not redirected, for want of --outbound-ports: %s\n", strings.Join(left, ", "))
	}
	r.controlPlane, err = r.scope.StartControlPlane(ctx, ControlPlaneConfig{Dir: r.cfg.Dir, LogLevel: r.cfg.LogLevel})
	if err != nil {
		return err
	}
	r.pod, err = r.scope.StartPod(ctx, PodConfig{
		Namespace:     r.cfg.Namespace,
		Name:          "sandbox",
		ControlPlane:  r.controlPlane,
		Redirect:      r.cfg.Redirect,
		OutboundPorts: r.cfg.OutboundPorts,
		Hosts:         hosts,
		LogLevel:      r.cfg.LogLevel,
	})
	if err != nil {
		return err
	}
	r.began = time.Now()
	r.cmd, err = r.pod.Start(r.cfg.Command)
	return err
}

// stop ends what start began and the end of the scope does not.
func (r *run) stop() {
	if r.manifests != nil {
		r.manifests.stop()
	}
}

// wait lets the command run to its end.
func (r *run) wait(ctx context.Context, signals *signals) *Report {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Its error says what ProcessState says: how the command ended is the command's affair.
		_ = r.cmd.Wait()
	}()
	controlPlane, sidecar := r.controlPlane.process.done, r.pod.sidecar.done
	troubled := false
	var counted tally
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			// A worker that is being replaced answers the next time.
			brief, cancel := context.WithTimeout(ctx, lookEvery/4)
			if snap, err := r.pod.snapshot(brief); err == nil {
				counted.add(snap)
			}
			cancel()
		case sig := <-signals.ch:
			go r.scope.passOn(sig.(syscall.Signal), r.cmd.Process)
		case <-controlPlane:
			controlPlane, troubled = nil, true
			fmt.Fprintf(r.cfg.Notices, "evenkeel: %s; the sidecar goes on with what it knows\n", r.controlPlane.process.ended())
		case <-sidecar:
			sidecar, troubled = nil, true
			fmt.Fprintf(r.cfg.Notices, "evenkeel: %s; new connections are direct\n", r.pod.sidecar.ended())
		case <-ended:
			report := r.report(ctx, &counted)
			report.Troubled = report.Troubled || troubled
			return report
		}
	}
}

// lookEvery is how often the sidecar's counters are read while the command runs: what a worker has counted since the last time is
// lost when it is killed.
const lookEvery = time.Second

func (r *run) report(ctx context.Context, counted *tally) *Report {
	report := &Report{
		Command:    r.cfg.Command.Argv,
		ExitStatus: exitStatus(r.cmd.ProcessState),
		Seconds:    time.Since(r.began).Seconds(),
		Redirect:   r.cfg.Redirect.String(),
	}
	snap, err := r.pod.snapshot(ctx)
	if err == nil {
		counted.add(snap)
	}
	counted.report(report)
	if r.cfg.Redirect == RedirectEBPF {
		var connectionsErr error
		report.Connections, connectionsErr = connections(ctx, r.pod.cgroup)
		err = errors.Join(err, connectionsErr)
	}
	if err != nil {
		report.Troubled = true
		fmt.Fprintf(r.cfg.Notices, "evenkeel: the report is not complete: %s\n", err)
	}
	return report
}

func (r Redirect) cgroups() Cgroups {
	if r == RedirectNone {
		return CgroupsIfAllowed
	}
	return CgroupsRequired
}
