// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Config says which cluster. The zero value is a cluster of two nodes.
type Config struct {
	// Name tells several clusters of one checkout apart. Zero: "default".
	// Lower-case letters, digits and dashes, at most 20.
	Name string

	// Nodes is how many nodes: 1 to 3; the first is also the control plane.
	// Zero: 2.
	Nodes int

	// ProxyMode is kube-proxy's, "nftables" or "iptables". Zero: nftables.
	ProxyMode string

	// CacheDir keeps built programs and, below run/, the state of clusters.
	// Zero: "evenkeel" in the user's cache folder.
	CacheDir string

	// Checkout is the folder of this module's go.mod. It is part of a
	// cluster's identity: two checkouts never meet. Zero: found from the
	// working directory upwards.
	Checkout string

	// Program is the cluster command (./cmd/cluster), which the nodes run.
	// Zero: built from Checkout.
	Program string

	// Progress receives a line for each step. Zero: nothing is told.
	Progress func(line string)
}

// Limits of a configuration.
const (
	maxNodes     = 3
	defaultNodes = 2
)

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)

// withDefaults fills in zero values and reports every mistake at once.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Name == "" {
		c.Name = "default"
	}
	if !validName.MatchString(c.Name) {
		errs = append(errs, fmt.Errorf("field Name: %q: want 1 to 20 lower-case letters, digits and dashes", c.Name))
	}
	if c.Nodes == 0 {
		c.Nodes = defaultNodes
	}
	if c.Nodes < 1 || c.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("field Nodes: %d: want 1 to %d", c.Nodes, maxNodes))
	}
	switch c.ProxyMode {
	case "":
		c.ProxyMode = "nftables"
	case "nftables", "iptables":
	default:
		errs = append(errs, fmt.Errorf("field ProxyMode: %q: want nftables or iptables", c.ProxyMode))
	}
	if c.CacheDir == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			errs = append(errs, fmt.Errorf("field CacheDir: %w", err))
		}
		c.CacheDir = filepath.Join(dir, "evenkeel")
	}
	var err error
	if c.CacheDir, err = filepath.Abs(c.CacheDir); err != nil {
		errs = append(errs, fmt.Errorf("field CacheDir: %w", err))
	}
	if c.Checkout == "" {
		if c.Checkout, err = findCheckout(); err != nil {
			errs = append(errs, fmt.Errorf("field Checkout: %w", err))
		}
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("cluster: configuration: %w", err)
	}
	return c, nil
}

// module is the path in the go.mod of a checkout.
const module = "evenkeel.dev"

// findCheckout walks up to the go.mod of this module.
func findCheckout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		b, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if first, _, _ := strings.Cut(string(b), "\n"); err == nil && strings.TrimSpace(first) == "module "+module {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not in a checkout of %s", dir, module)
		}
	}
}

// id names the cluster among all on the machine; its cgroups have this name.
func (c Config) id() string {
	sum := sha256.Sum256([]byte(c.Checkout))
	return "evenkeel-" + c.Name + "-" + hex.EncodeToString(sum[:])[:8]
}

// runDir is the state of the cluster.
func (c Config) runDir() string { return filepath.Join(c.CacheDir, "run", c.id()) }

func (c Config) lockFile() string { return c.runDir() + ".lock" }
