// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Issue makes a serving certificate for names, signed by a's signing root.
func (p Policy) Issue(a *Authority, names []string, now time.Time) (*Pair, error) {
	if a.Signing == nil {
		return nil, errors.New("issue serving certificate: there is no root that can sign")
	}
	if len(names) == 0 {
		return nil, errors.New("issue serving certificate: no names")
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// RFC 5280 upper bound of a common name is 64 characters; the names that
		// count are the SANs.
		Subject:               pkix.Name{Organization: []string{"Evenkeel"}, CommonName: names[0][:min(64, len(names[0]))]},
		DNSNames:              names,
		NotBefore:             now.Add(-p.Skew),
		NotAfter:              earlier(now.Add(p.LeafLifetime), a.Signing.Cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	cert, err := sign(tmpl, a.Signing.Cert, key.Public(), a.Signing)
	if err != nil {
		return nil, fmt.Errorf("issue serving certificate for %s: %w", names[0], err)
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// ReissueReason says why leaf must be replaced now; empty: it is good.
func (p Policy) ReissueReason(a *Authority, leaf *Pair, names []string, o Observed) string {
	now := o.Now
	switch c := leaf.Cert; {
	case !now.Before(c.NotAfter):
		return "it has ended"
	case now.Before(c.NotBefore):
		return "it is not valid yet"
	case !sameNames(c.DNSNames, names):
		return fmt.Sprintf("its names are %q, want %q", c.DNSNames, names)
	case !slices.ContainsFunc(a.Bundle(), func(r *x509.Certificate) bool { return c.CheckSignatureFrom(r) == nil }):
		return "no trusted root issued it"
	case !now.Before(renewAt(c)):
		return "two thirds of its life are over"
	case c.CheckSignatureFrom(a.Signing.Cert) != nil && !now.Before(p.moveAt(a, o)):
		return "another root signs now"
	}
	return ""
}

// moveAt is when serving certificates move to a's signing root: once clients have
// it, also when it did not come by rotation but was made or put there anew. The
// zero PublishedSince of a publisher that has yet to begin means: not now.
func (p Policy) moveAt(a *Authority, o Observed) time.Time {
	since := o.PublishedSince
	if since.IsZero() {
		since = o.Now
	}
	if settled := since.Add(p.Settle); settled.After(p.promoteAt(a.Signing.Cert)) {
		return settled
	}
	return p.promoteAt(a.Signing.Cert)
}

// Due returns when Advance or ReissueReason next have something to do.
func (p Policy) Due(a *Authority, o Observed) time.Time {
	due := a.Signing.Cert.NotAfter.Add(-p.RootRenewBefore)
	if a.Next != nil {
		due = p.promoteAt(a.Next.Cert)
		if s := o.PublishedSince.Add(p.Settle); s.After(due) {
			due = s
		}
	}
	for _, c := range a.Retired {
		due = earlier(due, c.NotAfter)
	}
	if len(a.Retired) > 0 {
		if end := p.made(a.Signing.Cert).Add(p.PublishFor + p.LeafLifetime); end.After(o.Now) {
			due = earlier(due, end)
		}
	}
	for _, l := range o.Leaves {
		due = earlier(due, renewAt(l))
		if l.CheckSignatureFrom(a.Signing.Cert) != nil {
			due = earlier(due, p.moveAt(a, o))
		}
	}
	return due
}

func renewAt(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
