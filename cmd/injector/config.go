// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/injector"
)

// Config is the command line of `injector run`.
type Config struct {
	Log              run.LogConfig
	WebhookListen    string
	AdminListen      string
	Namespace        string
	ConfigFile       string
	ClusterDomain    string
	WebhookConfig    string
	OwnerClusterRole string
	Kubeconfig       string
	ResolvConf       string
	ShutdownDelay    time.Duration
}

func newFlags(c *Config) *flag.FlagSet {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by Main
	c.Log.RegisterFlags(fs)
	fs.StringVar(&c.WebhookListen, "webhook-listen", ":15955", "`address` that the API server calls, TLS")
	fs.StringVar(&c.AdminListen, "admin-listen", ":15956", "`address` of /healthz, /readyz and /metrics")
	fs.StringVar(&c.Namespace, "namespace", "", "`namespace` of this pod: where the certificates' Secrets are; never injected (required)")
	fs.StringVar(&c.ConfigFile, "config", "/etc/evenkeel/injector.yaml", "`file` that says what pods get")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", "cluster.local", "DNS `domain` of the cluster, for the certificates' names")
	fs.StringVar(&c.WebhookConfig, "webhook-configuration", "evenkeel-injector", "`name` of the MutatingWebhookConfiguration whose caBundle is kept")
	fs.StringVar(&c.OwnerClusterRole, "owner-cluster-role", "", "`name` of the ClusterRole that owns what the injector makes, so that it goes when Helm removes that; empty: nothing owns it")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; empty: those of the pod")
	fs.StringVar(&c.ResolvConf, "resolv-conf", "/etc/resolv.conf", "`file` with the nameservers that pods of the cluster have; not read with --kubeconfig, where it is another machine's")
	fs.DurationVar(&c.ShutdownDelay, "shutdown-delay", 5*time.Second, "`time` to go on answering after SIGTERM, until the API server has heard that this replica leaves")
	return fs
}

// parseFlags reads and checks the command line, and the file that it names.
func parseFlags(args []string) (*Config, *injector.Config, error) {
	c := &Config{}
	fs := newFlags(c)
	if err := fs.Parse(args); err != nil {
		return nil, nil, err
	}
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", fs.Arg(0)))
	}
	errs = append(errs, c.Validate())
	inject, err := readConfig(c.ConfigFile)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, nil, err
	}
	return c, inject, nil
}

// Validate reports every flag that cannot work.
func (c *Config) Validate() error {
	var errs []error
	if c.Namespace == "" {
		errs = append(errs, errors.New("--namespace is missing"))
	}
	for name, addr := range map[string]string{"--webhook-listen": c.WebhookListen, "--admin-listen": c.AdminListen} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: want host:port", name, addr))
		}
	}
	if c.WebhookConfig == "" {
		errs = append(errs, errors.New("--webhook-configuration is empty"))
	}
	if c.ShutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay=%s is negative", c.ShutdownDelay))
	}
	return errors.Join(errs...)
}

// nameservers of the cluster: those of this pod. None: not known.
func (c *Config) nameservers() ([]netip.Addr, error) {
	if c.Kubeconfig != "" || c.ResolvConf == "" {
		return nil, nil
	}
	b, err := os.ReadFile(c.ResolvConf)
	if err != nil {
		return nil, fmt.Errorf("--resolv-conf: %w", err)
	}
	return injector.ParseNameservers(string(b)), nil
}

func readConfig(file string) (*injector.Config, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	inject, err := injector.ParseConfig(b)
	if err != nil {
		return nil, fmt.Errorf("--config=%s: %w", file, err)
	}
	return inject, nil
}
