// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds/api"
)

// Sink receives what the control plane said. It is called from one goroutine,
// in order; a service is given before the first table that routes to it, and
// taken away after the last. It must not block.
type Sink interface {
	Routes(*router.Table)
	// Service gives the endpoints of a service; nil: it is forgotten.
	Service(name string, spec *balancer.Spec)
	// Warm asks to connect to the endpoints of a service that was given, although
	// no RPC needs them yet.
	Warm(service string)
}

// Node says who is asking.
type Node struct {
	Namespace string // of the pod; required: names without a namespace mean this one
	Pod       string // required
	UID       string
	Workload  string
	NodeName  string
	Zone      string
}

// Config configures a [Client].
type Config struct {
	// Logger must be set.
	Logger *slog.Logger
	// Target is where the control plane listens: "host:port", or
	// "unix:///path" for plain text without a token. It must be set.
	Target string
	// CAFile holds the roots, PEM, that the server's certificate is checked
	// against. It is read at each connect. Must be set unless Target is a socket.
	CAFile string
	// TokenFile holds the token that is sent, read at each connect. Empty: none
	// is sent. It must be empty where Target is a socket.
	TokenFile string
	// ServerName is the name in the server's certificate. Empty: Target's host.
	ServerName string
	// Node must be set.
	Node Node
	// Sink must be set.
	Sink Sink
	// Rand is the source of jitter, used by the client's goroutine alone. Nil:
	// one with a random seed.
	Rand *rand.Rand
	// Registerer receives the metrics. Nil: none are registered.
	Registerer prometheus.Registerer

	// Synced is called when the control plane has answered for the first time,
	// from Run's goroutine. Nil: nobody wants to know.
	Synced func()
	// Pod is told what each replica of the control plane says of this pod; nil:
	// the replica is lost. It is called from Run's goroutine and must not block.
	// Nil: nobody wants to know.
	Pod func(replica string, status *api.PodStatus)
	// Learned is told how far the connections to learned upstreams are, when that
	// changes, and before the Pod call whose status named them. As for Pod.
	Learned func(Learned)

	// IdleAfter is how long a destination without use stays subscribed. Zero
	// means 30 min.
	IdleAfter time.Duration
	// MaxDestinations bounds the subscriptions; beyond it the least useful ones
	// are dropped. Zero means 4096.
	MaxDestinations int
	// MinBackoff and MaxBackoff bound the time between two attempts to connect.
	// Zero means 100 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// ConnectTimeout bounds one attempt. Zero means 5 s.
	ConnectTimeout time.Duration
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(c.Logger != nil, "Logger is not set")
	need(c.Sink != nil, "Sink is not set")
	need(c.Node.Namespace != "", "Node.Namespace is not set")
	need(c.Node.Pod != "", "Node.Pod is not set")
	switch path, unix := c.socket(); {
	case c.Target == "":
		need(false, "Target is not set")
	case unix:
		need(path != "", fmt.Sprintf("Target %q names no socket", c.Target))
		need(c.TokenFile == "", "TokenFile is set for a socket: a token is not sent in plain text")
	default:
		if _, port, err := net.SplitHostPort(c.Target); err != nil || port == "" {
			need(false, fmt.Sprintf("Target %q is neither host:port nor unix:///path", c.Target))
		}
		need(c.CAFile != "", "CAFile is not set: only a socket is plain text")
	}
	need(c.MinBackoff >= 0 && c.MaxBackoff >= 0 && (c.MaxBackoff == 0 || c.MinBackoff <= c.MaxBackoff), "MinBackoff is above MaxBackoff")
	need(c.MaxDestinations >= 0, "MaxDestinations is negative")
	if len(errs) > 0 {
		return fmt.Errorf("discovery: %w", errors.Join(errs...))
	}
	return nil
}

// socket returns the path where Target is a unix socket.
func (c *Config) socket() (string, bool) {
	rest, ok := strings.CutPrefix(c.Target, "unix:")
	return strings.TrimPrefix(rest, "//"), ok
}

func (c *Config) setDefaults() {
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Synced == nil {
		c.Synced = func() {}
	}
	if c.Pod == nil {
		c.Pod = func(string, *api.PodStatus) {}
	}
	if c.Learned == nil {
		c.Learned = func(Learned) {}
	}
	if c.IdleAfter == 0 {
		c.IdleAfter = 30 * time.Minute
	}
	if c.MaxDestinations == 0 {
		c.MaxDestinations = 4096
	}
	if c.MinBackoff == 0 {
		c.MinBackoff = 100 * time.Millisecond
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(5*time.Second, c.MinBackoff)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	if c.ServerName == "" {
		if host, _, err := net.SplitHostPort(c.Target); err == nil {
			c.ServerName = host
		}
	}
}
