// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

// startTimeout bounds how long each of Evenkeel's processes may take to serve: a second at most, on a machine that is not
// overloaded.
const startTimeout = 20 * time.Second

// ControlPlaneConfig configures the control plane of a scope.
type ControlPlaneConfig struct {
	// Dir holds the YAML files with Services, EndpointSlices and Pods. They are read again when they change. Required.
	Dir string
	// LogLevel is debug, info, warn or error. Zero: info.
	LogLevel string
}

// ControlPlane is the real xds, reading files instead of a cluster, on a unix socket in the scope's private directory.
type ControlPlane struct {
	// Target is what sidecars are given for --xds.
	Target  string
	process *component
}

// StartControlPlane starts the control plane and waits until it serves.
func (s *Scope) StartControlPlane(ctx context.Context, cfg ControlPlaneConfig) (*ControlPlane, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cgroup, err := s.subgroup("control-plane")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(s.dir, "xds.sock")
	cp := &ControlPlane{Target: "unix://" + socket}
	cp.process, err = s.startComponent("control plane", cgroup, nil, ControlPlaneCommand, "run",
		"--files="+dir, "--listen="+cp.Target, "--admin-listen=", "--settle=0s", "--log-format=text", "--log-level="+logLevel(cfg.LogLevel))
	if err != nil {
		return nil, err
	}
	err = s.await(ctx, cp.process, func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, err
	}
	return cp, nil
}

// await polls ready, from quickly to patiently, until it succeeds or there is no more reason to hope.
func (s *Scope) await(ctx context.Context, c *component, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := ready(ctx)
		if err == nil {
			s.logger.Debug("serving", "process", c.name, "after", time.Since(began).Round(time.Millisecond))
			return nil
		}
		if ended := c.ended(); ended != nil {
			return ended
		}
		if ended := pause(ctx, wait); errors.Is(ended, context.DeadlineExceeded) {
			return fmt.Errorf("the %s does not serve after %s: %w", c.name, startTimeout, err)
		} else if ended != nil {
			return ended
		}
	}
}

func logLevel(level string) string {
	if level == "" {
		return "info"
	}
	return level
}
