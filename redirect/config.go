// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

const (
	// DefaultOutboundPort is the destination port that is redirected unless told otherwise.
	DefaultOutboundPort = 50051
	// DefaultListenerPort is where the sidecar listens on loopback.
	DefaultListenerPort = 15951
	// MaxOutboundPorts bounds Config.OutboundPorts: each connect of the pod compares them all.
	MaxOutboundPorts = 64
)

// Config says what to redirect and where to.
type Config struct {
	// Cgroup is the directory, in a mounted cgroup2 file system, of the cgroup whose processes
	// (and those of the cgroups below) are redirected. Required. The root of the mount is
	// refused, for it would redirect the whole node.
	Cgroup string
	// OutboundPorts are the destination ports whose TCP connections are redirected, at most
	// MaxOutboundPorts. Empty means DefaultOutboundPort; 0 as a port is an error.
	OutboundPorts []uint16
	// ListenerPort is the sidecar's port on 127.0.0.1 and ::1. Zero means
	// DefaultListenerPort; it may not be among OutboundPorts.
	ListenerPort uint16
	// SidecarCgroup is for attaching when the sidecar already listens, whose bind the programs
	// therefore have not seen: the id (see CgroupID) of the cgroup that the sidecar's processes
	// are in. Zero means that the bind will be seen.
	SidecarCgroup uint64
	// Logger gets what was attached, kept and replaced. Nil discards.
	Logger *slog.Logger
}

// withDefaults returns the configuration as it is used, or all that is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.ListenerPort == 0 {
		c.ListenerPort = DefaultListenerPort
	}
	if len(c.OutboundPorts) == 0 {
		c.OutboundPorts = []uint16{DefaultOutboundPort}
	}
	c.OutboundPorts = slices.Clone(c.OutboundPorts)
	slices.Sort(c.OutboundPorts)
	c.OutboundPorts = slices.Compact(c.OutboundPorts)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}

	var errs []error
	if c.Cgroup == "" {
		errs = append(errs, errors.New("no directory given as Cgroup"))
	}
	if n := len(c.OutboundPorts); n > MaxOutboundPorts {
		errs = append(errs, fmt.Errorf("OutboundPorts: %d ports, at most %d can be redirected", n, MaxOutboundPorts))
	}
	if slices.Contains(c.OutboundPorts, 0) {
		errs = append(errs, errors.New("OutboundPorts: 0 is not a port"))
	}
	if slices.Contains(c.OutboundPorts, c.ListenerPort) {
		errs = append(errs, fmt.Errorf("OutboundPorts: %d is also ListenerPort", c.ListenerPort))
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("redirect configuration: %w", errors.Join(errs...))
	}
	return c, nil
}
