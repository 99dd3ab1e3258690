// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

// Config is the command line of `xds run`.
type Config struct {
	Log run.LogConfig
	// Listen is where sidecars connect: host:port (TLS and tokens) or
	// unix:///path (neither).
	Listen string
	// AdminListen is the address of probes and metrics; empty: none.
	AdminListen string
	// Kubeconfig is the file to reach the API server with; empty: the pod's own
	// service account.
	Kubeconfig string
	// Files is a directory to read instead of an API server.
	Files string
	// ClusterDomain is the cluster's DNS domain.
	ClusterDomain string
	// TLSCert and TLSKey are PEM files, read again when they change.
	TLSCert, TLSKey string
	// Audience that sidecars' tokens must be for.
	Audience string
	// Replica is what this one is called where people see it; empty: the host's name.
	Replica string
	// Settle is how long after its start it claims nothing about pods: until the
	// sidecars of one before it have come back. Zero: there was none before it.
	Settle time.Duration
	// Pprof adds Go's profiles to the admin port.
	Pprof bool
}

// The flags. Nothing else of the environment is read.
func (c *Config) registerFlags(fs *flag.FlagSet) {
	c.Log.RegisterFlags(fs)
	fs.StringVar(&c.Listen, "listen", fmt.Sprintf(":%d", xds.PortXDS), "`address` for sidecars: host:port with TLS and tokens, or unix:///path with neither")
	fs.StringVar(&c.AdminListen, "admin-listen", fmt.Sprintf(":%d", xds.PortXDSAdmin), "`address` of /healthz, /readyz and /metrics; empty for none")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "`file` to reach the API server with; default: the pod's service account")
	fs.StringVar(&c.Files, "files", "", "`directory` of YAML files to serve instead of an API server's objects")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", xds.DefaultClusterDNS, "DNS `domain` of the cluster")
	fs.StringVar(&c.TLSCert, "tls-cert", "/tls/tls.crt", "PEM `file` of the serving certificate; read again when it changes")
	fs.StringVar(&c.TLSKey, "tls-key", "/tls/tls.key", "PEM `file` of its key")
	fs.StringVar(&c.Audience, "audience", xds.TokenAudience, "`audience` that the sidecars' tokens must be for")
	fs.StringVar(&c.Replica, "replica", "", "`name` of this replica, for people; default: the host's name, which is the pod's")
	fs.DurationVar(&c.Settle, "settle", xds.Settle, "after a start, wait this `time` for sidecars to come back before any pod is let go; 0: there was no other before")
	fs.BoolVar(&c.Pprof, "pprof", false, "serve Go's profiles on the admin port")
}

func newFlags(c *Config) *flag.FlagSet {
	fs := flag.NewFlagSet("xds run", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.registerFlags(fs)
	return fs
}

// parse returns flag.ErrHelp when help was asked for, and else all mistakes at once.
func parse(args []string) (*Config, error) {
	c := &Config{}
	fs := newFlags(c)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if c.Replica == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--replica: required, as the host has no name: %w", err)
		}
		c.Replica = host
	}
	return c, c.Validate()
}

// Validate returns every mistake at once.
func (c *Config) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", name, fmt.Sprintf(format, args...)))
	}
	path, unix := c.unixPath()
	switch {
	case unix && path == "":
		bad("listen", "%q has no path; want unix:///path", c.Listen)
	case unix && len(path) > maxUnixPath:
		bad("listen", "a unix socket's path may have %d characters, this has %d", maxUnixPath, len(path))
	case !unix:
		if err := checkAddress(c.Listen); err != nil {
			bad("listen", "%s", err)
		}
	}
	if c.AdminListen != "" {
		if err := checkAddress(c.AdminListen); err != nil {
			bad("admin-listen", "%s", err)
		}
	}
	if c.Files != "" && c.Kubeconfig != "" {
		bad("files", "not together with --kubeconfig: either a directory or an API server is watched")
	}
	if c.Files != "" && !unix {
		bad("files", "needs --listen=unix:///path: without an API server no sidecar's token can be verified")
	}
	if !unix {
		for name, v := range map[string]string{"tls-cert": c.TLSCert, "tls-key": c.TLSKey, "audience": c.Audience} {
			if v == "" {
				bad(name, "required to listen on %s", c.Listen)
			}
		}
	}
	if c.Settle < 0 {
		bad("settle", "%s is below zero", c.Settle)
	}
	if d := c.ClusterDomain; d == "" || strings.ToLower(d) != d || strings.Trim(d, ".") != d {
		bad("cluster-domain", "%q: want a DNS domain in lower case without dots at its ends, such as %s", d, xds.DefaultClusterDNS)
	}
	return errors.Join(errs...)
}

// maxUnixPath is the size of sockaddr_un.sun_path without its final zero (unix(7)).
const maxUnixPath = 107

// unixPath returns the path of unix:///path and unix:path.
func (c *Config) unixPath() (string, bool) {
	rest, ok := strings.CutPrefix(c.Listen, "unix:")
	if !ok {
		return "", false
	}
	if abs, ok := strings.CutPrefix(rest, "//"); ok {
		rest = abs
	}
	if rest == "" {
		return "", true
	}
	return filepath.Clean(rest), true
}

func checkAddress(a string) error {
	_, port, err := net.SplitHostPort(a)
	if err != nil {
		return fmt.Errorf("%q: want host:port or :port", a)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return fmt.Errorf("%q: %q is not a port", a, port)
	}
	return nil
}
