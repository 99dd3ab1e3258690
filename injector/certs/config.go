// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"evenkeel.dev/injector/pki"
)

// Names of what is kept. The pods' volumes and the chart know them too.
const (
	RootSecret     = "evenkeel-ca"           // the roots and their keys
	XDSSecret      = "evenkeel-xds-tls"      // the control plane's serving certificate
	InjectorSecret = "evenkeel-injector-tls" // the webhook's
	TrustConfigMap = "evenkeel-ca"           // the roots, for pods
	TrustKey       = "ca.crt"                // its key
)

// Config of this package's controllers.
type Config struct {
	// Namespace of the Secrets. It must be set.
	Namespace string
	// ClusterDomain of the names in serving certificates. Empty: cluster.local.
	ClusterDomain string
	// Serving certificates to keep. Empty: the control plane's and the webhook's.
	Serving []Serving
	// Webhook is the MutatingWebhookConfiguration whose caBundle is kept. Empty:
	// evenkeel-injector.
	Webhook string
	// Owner is the ClusterRole that owns what is written. Empty: nothing owns it,
	// and uninstalling leaves it behind.
	Owner string
	// Policy of the certificates. Zero: the product's.
	Policy pki.Policy
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Logger must be set.
	Logger *slog.Logger
}

// Serving is one serving certificate.
type Serving struct {
	// Secret that holds it.
	Secret string
	// Service whose names it has.
	Service string
}

func (s Serving) names(namespace, domain string) []string {
	n := s.Service + "." + namespace
	// What the control plane's clients and the API server use comes first.
	return []string{n + ".svc", s.Service, n, n + ".svc." + domain}
}

// WithDefaults returns c with its zero fields filled.
func (c Config) WithDefaults() Config {
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if len(c.Serving) == 0 {
		c.Serving = []Serving{{XDSSecret, "evenkeel-xds"}, {InjectorSecret, "evenkeel-injector"}}
	}
	if c.Webhook == "" {
		c.Webhook = "evenkeel-injector"
	}
	c.Policy = c.Policy.WithDefaults()
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if msgs := validation.IsDNS1123Label(c.Namespace); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("namespace of the certificates %q: %s", c.Namespace, msgs[0]))
	}
	if msgs := validation.IsDNS1123Subdomain(c.ClusterDomain); len(msgs) > 0 {
		errs = append(errs, fmt.Errorf("cluster domain %q: %s", c.ClusterDomain, msgs[0]))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("certs.Config.Logger is nil"))
	}
	return errors.Join(append(errs, c.Policy.Validate())...)
}
