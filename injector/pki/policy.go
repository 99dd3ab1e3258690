// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"errors"
	"fmt"
	"time"
)

// Policy says how long things live. The zero value is the product's policy.
type Policy struct {
	// RootLifetime of a root certificate. Zero: 10 years.
	RootLifetime time.Duration
	// RootRenewBefore is how long before a root's end its successor is made.
	// Zero: 1 year, so that clusters which are upgraded rarely rotate too.
	RootRenewBefore time.Duration
	// PublishFor is how long clients have a root before it signs. Zero: 24 hours
	// (a kubelet refreshes a mounted ConfigMap within about 2 minutes).
	PublishFor time.Duration
	// Settle is how long the present publisher must have held the bundle up
	// before a root in it is promoted. It covers a publisher that was down for
	// the whole of PublishFor. Zero: 10 minutes.
	Settle time.Duration
	// LeafLifetime of a serving certificate; it is renewed at two thirds.
	// Zero: 30 days.
	LeafLifetime time.Duration
	// Skew is how far NotBefore lies in the past, for nodes whose clock is
	// behind. Zero: 1 hour.
	Skew time.Duration
}

// maxRetired bounds the bundle: a Secret that is damaged again and again must
// not grow what every pod mounts.
const maxRetired = 8

// WithDefaults returns p with its zero fields filled.
func (p Policy) WithDefaults() Policy {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	const day = 24 * time.Hour
	def(&p.RootLifetime, 3652*day)
	def(&p.RootRenewBefore, 365*day)
	def(&p.PublishFor, day)
	def(&p.Settle, 10*time.Minute)
	def(&p.LeafLifetime, 30*day)
	def(&p.Skew, time.Hour)
	return p
}

// Validate reports every field of p (after WithDefaults) that cannot work.
func (p Policy) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"RootLifetime", p.RootLifetime},
		{"RootRenewBefore", p.RootRenewBefore},
		{"PublishFor", p.PublishFor},
		{"Settle", p.Settle},
		{"LeafLifetime", p.LeafLifetime},
		{"Skew", p.Skew},
	} {
		if f.d <= 0 {
			errs = append(errs, fmt.Errorf("certificate policy: %s is %v, must be above 0", f.name, f.d))
		}
	}
	if p.RootRenewBefore <= p.PublishFor+p.LeafLifetime {
		errs = append(errs, fmt.Errorf("certificate policy: RootRenewBefore is %v, must be above PublishFor + LeafLifetime (%v): otherwise a root ends while its last serving certificate is in use",
			p.RootRenewBefore, p.PublishFor+p.LeafLifetime))
	}
	if p.RootLifetime <= p.RootRenewBefore {
		errs = append(errs, fmt.Errorf("certificate policy: RootLifetime is %v, must be above RootRenewBefore (%v): otherwise a root is renewed as soon as it is made",
			p.RootLifetime, p.RootRenewBefore))
	}
	return errors.Join(errs...)
}
