// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/validation"

	"evenkeel.dev/cmd/internal/sandbox"
	"evenkeel.dev/xds"
)

const sandboxLong = `Run CMD on this machine under Evenkeel, without Kubernetes: with the real eBPF redirect, the real sidecar and
the real control plane, which reads Services, EndpointSlices and Pods from the YAML files in DIR and reads them again
when they change.

CMD dials a Service by its ordinary DNS name (pricing, pricing.shop, pricing.shop.svc.cluster.local) or its ClusterIP,
which need not exist on this machine. Connections to the --outbound-ports are redirected to the sidecar, and every RPC on
them is balanced over the ready endpoints. CMD keeps its terminal, its stdin, stdout and stderr, and its signals.

The redirect needs root. CMD runs as root then, too; to run it as you: sudo evenkeel sandbox -f DIR -- sudo -u $USER CMD.
With --redirect=none no root is needed: CMD dials the address in $` + sandbox.ListenerEnv + ` itself, and each RPC goes where
its :authority says, for example with grpc-go's WithAuthority("pricing.shop:50051").

When CMD has ended, all processes that it left behind are killed, and nothing remains: no process, cgroup, eBPF program or file.

A report of the RPCs that each endpoint got follows on stderr: as a table where stderr is a terminal, or as -o says.
With --report it goes to a file instead. stdout is always CMD's alone.`

const sandboxExample = `  sudo evenkeel sandbox -f manifests -- ./client --target=pricing.shop:50051
  sudo evenkeel sandbox -f manifests -o json --report=report.json -- ./client
  sudo evenkeel sandbox -f manifests -- bash
  evenkeel sandbox -f manifests --redirect=none -- sh -c './client --dial=$EVENKEEL_LISTENER --authority=pricing.shop:50051'`

const sandboxStatuses = `
Exit status:
  CMD's own, or 128 + the signal that ended it
  125  Evenkeel failed
  126  CMD cannot be executed
  127  CMD was not found
`

// sandboxFlags are the flags as given.
type sandboxFlags struct {
	dir, namespace, redirect, output, report string
	outboundPorts                            []string
	verbose                                  bool
}

func newSandbox() *cobra.Command {
	var f sandboxFlags
	cmd := &cobra.Command{
		Use:     "sandbox -f DIR [flags] -- CMD [ARG...]",
		Short:   "Run a command on this machine under the real redirect, sidecar and control plane",
		Long:    sandboxLong,
		Example: sandboxExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSandbox(cmd.Context(), &f, args)
		},
	}
	flags := cmd.Flags()
	// What follows CMD is CMD's, with or without "--".
	flags.SetInterspersed(false)
	flags.StringVarP(&f.dir, "files", "f", "", "directory with the YAML files (*.yaml, *.yml) of Services and EndpointSlices")
	flags.StringVarP(&f.namespace, "namespace", "n", "default", "namespace that CMD is in: bare Service names are those in it")
	flags.StringVar(&f.redirect, "redirect", "ebpf", "how CMD's connections reach the sidecar: ebpf or none")
	flags.StringSliceVar(&f.outboundPorts, "outbound-ports", []string{strconv.Itoa(xds.DefaultOutboundPort)}, "destination ports that are redirected")
	flags.StringVarP(&f.output, "output", "o", "", "report when CMD has ended: text, json or none (default: text on a terminal, json with --report, else none)")
	flags.StringVar(&f.report, "report", "", "file for the report, instead of stderr")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log of Evenkeel's own processes on stderr")
	cmd.SetUsageTemplate(cmd.UsageTemplate() + sandboxStatuses)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return &exitError{status: sandbox.StatusFailed, err: fmt.Errorf("sandbox: %w (see evenkeel sandbox --help)", err)}
	})
	return cmd
}

func runSandbox(ctx context.Context, f *sandboxFlags, args []string) error {
	cfg, format, err := f.config(args)
	if err != nil {
		status := sandbox.StatusFailed
		if missing, ok := errors.AsType[*sandbox.CommandNotFound](err); ok {
			status = missing.Status
		}
		return &exitError{status: status, err: err}
	}
	// The report's file is opened before CMD runs: a wrong path must not cost a run.
	out := io.Writer(os.Stderr)
	if f.report != "" {
		file, err := os.Create(f.report)
		if err != nil {
			return &exitError{status: sandbox.StatusFailed, err: fmt.Errorf("--report: %w", err)}
		}
		defer file.Close()
		out = file
	}
	log, err := openLog(f.verbose)
	if err != nil {
		return &exitError{status: sandbox.StatusFailed, err: err}
	}
	cfg.Logger, cfg.Log = log.logger(), log.file
	cfg.Notices = os.Stderr

	report, err := sandbox.Run(ctx, cfg)
	var interrupted *sandbox.Interrupted
	switch {
	case errors.As(err, &interrupted):
		log.close()
		return &exitError{status: 128 + int(interrupted.Signal)}
	case report == nil:
		return &exitError{status: sandbox.StatusFailed, err: fmt.Errorf("sandbox: %w%s", err, log.keep())}
	case err != nil:
		// CMD has run: its status is the answer, and what went wrong after it is told.
		fmt.Fprintf(os.Stderr, "evenkeel: %s%s\n", err, log.keep())
	case report.Troubled:
		fmt.Fprintf(os.Stderr, "evenkeel: not all went well%s\n", log.keep())
	default:
		log.close()
	}
	if err := writeReport(out, format, report); err != nil {
		fmt.Fprintln(os.Stderr, "evenkeel: write the report:", err)
	}
	if report.ExitStatus != 0 {
		return &exitError{status: report.ExitStatus}
	}
	return nil
}

func writeReport(w io.Writer, format string, report *sandbox.Report) error {
	var b bytes.Buffer
	var err error
	switch format {
	case "json":
		err = report.WriteJSON(&b)
	case "text":
		err = report.WriteText(&b)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// config checks the flags, and tells everything that is wrong with them at once.
func (f *sandboxFlags) config(args []string) (cfg sandbox.Config, format string, err error) {
	var errs []error
	cfg = sandbox.Config{Dir: f.dir, Namespace: f.namespace, LogLevel: "info"}
	if f.verbose {
		cfg.LogLevel = "debug"
	}
	if f.dir == "" {
		errs = append(errs, errors.New("-f is missing: name the directory with the YAML files of Services and EndpointSlices"))
	} else if info, err := os.Stat(f.dir); err != nil {
		errs = append(errs, fmt.Errorf("-f: %w", err))
	} else if !info.IsDir() {
		errs = append(errs, fmt.Errorf("-f: %s is not a directory", f.dir))
	}
	if msgs := validation.IsDNS1123Label(f.namespace); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("-n: %q is not a namespace: %s", f.namespace, msgs[0]))
	}
	switch f.redirect {
	case "ebpf":
		if os.Geteuid() != 0 {
			errs = append(errs, errors.New("the eBPF redirect needs root: use sudo, or --redirect=none, with which CMD dials $"+sandbox.ListenerEnv+" itself"))
		}
	case "none":
		cfg.Redirect = sandbox.RedirectNone
	default:
		errs = append(errs, fmt.Errorf("--redirect: %q is neither ebpf nor none", f.redirect))
	}
	for _, text := range f.outboundPorts {
		port, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
		if err != nil || port == 0 {
			errs = append(errs, fmt.Errorf("--outbound-ports: %q is not a port (1 to 65535)", text))
			continue
		}
		if !slices.Contains(cfg.OutboundPorts, uint16(port)) {
			cfg.OutboundPorts = append(cfg.OutboundPorts, uint16(port))
		}
	}
	if len(f.outboundPorts) == 0 {
		errs = append(errs, errors.New("--outbound-ports: no port is given"))
	}
	switch format = f.output; {
	case format == "" && f.report != "":
		format = "json"
	case format == "" && term.IsTerminal(int(os.Stderr.Fd())):
		format = "text"
	case format == "":
		format = "none"
	case format != "text" && format != "json" && format != "none":
		errs = append(errs, fmt.Errorf("-o: %q is none of text, json and none", format))
	}
	if len(args) == 0 {
		errs = append(errs, errors.New("no command to run: evenkeel sandbox -f DIR -- CMD"))
	}
	if err := oneLine(errs); err != nil {
		return cfg, "", fmt.Errorf("sandbox: %w", err)
	}
	command, err := sandbox.LookCommand(args)
	if err != nil {
		return cfg, "", err
	}
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	cfg.Command = command
	return cfg, format, nil
}

// oneLine joins errors in one line: errors.Join would take a line for each.
func oneLine(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	text := make([]string, len(errs))
	for i, err := range errs {
		text[i] = err.Error()
	}
	return errors.New(strings.Join(text, "; "))
}
