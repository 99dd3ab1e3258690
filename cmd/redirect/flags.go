// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/redirect"
)

// ports is the value of --outbound-ports.
type ports []uint16

func (p *ports) String() string {
	if p == nil {
		return ""
	}
	var b strings.Builder
	for i, port := range *p {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(port)))
	}
	return b.String()
}

func (p *ports) Set(s string) error {
	*p = nil
	for word := range strings.SplitSeq(s, ",") {
		var one port
		if err := one.Set(strings.TrimSpace(word)); err != nil {
			return err
		}
		*p = append(*p, uint16(one))
	}
	return nil
}

// port is the value of --listener-port.
type port uint16

func (p *port) String() string {
	if p == nil {
		return ""
	}
	return strconv.Itoa(int(*p))
}

func (p *port) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a port (1 to 65535)", s)
	}
	*p = port(n)
	return nil
}

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

func (f *format) String() string { return string(*f) }

func (f *format) Set(s string) error {
	switch format(s) {
	case formatText, formatJSON:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("%q is not a format (text, json)", s)
}

// initFlags is the command line of `redirect init`.
type initFlags struct {
	log        run.LogConfig
	cgroupRoot string
	podUID     string
	cgroup     string
	outbound   ports
	listener   port
	timeout    time.Duration
	hold       string
}

func parseInit(args []string, stderr io.Writer) (initFlags, error) {
	f := initFlags{outbound: ports{redirect.DefaultOutboundPort}, listener: redirect.DefaultListenerPort}
	fs := newFlagSet("init", stderr)
	f.log.RegisterFlags(fs)
	fs.StringVar(&f.cgroupRoot, "cgroup-root", "/host/cgroup", "`directory` where the node's /sys/fs/cgroup is mounted, read-only suffices")
	fs.StringVar(&f.podUID, "pod-uid", "", "`UID` of this pod (metadata.uid)")
	fs.StringVar(&f.cgroup, "cgroup", "", "`directory` of the cgroup to attach to, instead of looking for the pod's; this process must be in it or below")
	fs.Var(&f.outbound, "outbound-ports", fmt.Sprintf("destination `ports` to redirect, separated by commas, at most %d", redirect.MaxOutboundPorts))
	fs.Var(&f.listener, "listener-port", "`port` where the sidecar listens on 127.0.0.1 and ::1")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "give up after this `time`")
	fs.StringVar(&f.hold, "install-hold", "", "`directory` to copy the helper for preStop commands to, for the pod's containers")
	if err := parse(fs, args); err != nil {
		return f, err
	}
	switch {
	case f.cgroup == "" && f.podUID == "":
		return f, fmt.Errorf("%w: --pod-uid is required (or --cgroup)", errUsage)
	case f.cgroup != "" && f.podUID != "":
		return f, fmt.Errorf("%w: --pod-uid and --cgroup exclude each other", errUsage)
	case f.timeout <= 0:
		return f, fmt.Errorf("%w: --timeout must be positive", errUsage)
	}
	return f, nil
}

// cgroupFlags is the command line of `redirect status` and `redirect detach`.
type cgroupFlags struct {
	log    run.LogConfig
	cgroup string
	output format
}

func newFlagSet(name string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("redirect "+name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	return fs
}

// parse leaves the printing of an error to its caller: flag would print it together with all
// flags, and the last line of an init container's log should be the reason.
func parse(fs *flag.FlagSet, args []string) error {
	stderr := fs.Output()
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	fs.SetOutput(stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stderr, "Flags of %s:\n", fs.Name())
		fs.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%w: %w (see %s --help)", errUsage, err, fs.Name())
	case fs.NArg() > 0:
		return fmt.Errorf("%w: %q is no flag; flags are written --name=value", errUsage, fs.Arg(0))
	}
	return nil
}
