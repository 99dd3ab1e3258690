// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Authority is the set of roots at one moment. It is immutable: Advance returns
// another.
type Authority struct {
	// Signing issues serving certificates. Nil: there is none that can.
	Signing *Pair
	// Next is published and does not sign yet. Nil: no rotation is under way.
	Next *Pair
	// Retired are trusted and sign no more, newest first.
	Retired []*x509.Certificate
}

// Bundle returns every trusted root, the signing one first.
func (a *Authority) Bundle() []*x509.Certificate {
	var b []*x509.Certificate
	if a.Signing != nil {
		b = append(b, a.Signing.Cert)
	}
	if a.Next != nil {
		b = append(b, a.Next.Cert)
	}
	return append(b, a.Retired...)
}

// BundlePEM is Bundle as clients mount it.
func (a *Authority) BundlePEM() []byte { return EncodeCerts(a.Bundle()) }

// Observed is what the world looks like to Advance.
type Observed struct {
	Now time.Time
	// Leaves are the serving certificates in use.
	Leaves []*x509.Certificate
	// Roots were found beside the serving certificates: the memory that is left
	// when the authority's own store is lost.
	Roots []*x509.Certificate
	// PublishedSince is when the present publisher first had the present bundle
	// everywhere. Zero: not yet.
	PublishedSince time.Time
}

// Advance returns the authority as it should be now, and one sentence for each
// change; none if a is right as it is.
func (p Policy) Advance(a *Authority, o Observed) (*Authority, []string, error) {
	var changes []string
	next := &Authority{Signing: a.Signing, Next: a.Next}

	if next.Next != nil && !o.Now.Before(next.Next.Cert.NotAfter) {
		changes = append(changes, describe("published root has ended before it ever signed, dropped", next.Next.Cert))
		next.Next = nil
	}
	switch s := next.Signing; {
	case s != nil && o.Now.Before(s.Cert.NotAfter):
		promoted, err := p.rotate(next, o)
		if err != nil {
			return nil, nil, err
		}
		changes = append(changes, promoted...)
	case next.Next != nil:
		// Clients have had it for a while; that beats a root nobody knows.
		next.Signing, next.Next = next.Next, nil
		changes = append(changes, describe("signing root is unusable, the published one signs now", next.Signing.Cert))
	default:
		root, err := p.newRoot(o.Now)
		if err != nil {
			return nil, nil, err
		}
		next.Signing = root
		changes = append(changes, describe("root made", root.Cert))
	}

	kept, dropped := p.retired(a, next, o)
	next.Retired = kept
	return next, append(changes, dropped...), nil
}

// rotate makes the successor of a root that nears its end, and promotes it once
// clients have it.
func (p Policy) rotate(a *Authority, o Observed) ([]string, error) {
	if a.Next == nil {
		if o.Now.Before(a.Signing.Cert.NotAfter.Add(-p.RootRenewBefore)) {
			return nil, nil
		}
		root, err := p.newRoot(o.Now)
		if err != nil {
			return nil, err
		}
		a.Next = root
		return []string{describe("root nears its end, successor published", root.Cert)}, nil
	}
	if o.Now.Before(p.promoteAt(a.Next.Cert)) || o.PublishedSince.IsZero() || o.Now.Before(o.PublishedSince.Add(p.Settle)) {
		return nil, nil
	}
	a.Signing, a.Next = a.Next, nil
	return []string{describe("published root signs now", a.Signing.Cert)}, nil
}

// retired decides which former roots stay trusted beside next's.
func (p Policy) retired(before, next *Authority, o Observed) (kept []*x509.Certificate, changes []string) {
	overlap := p.made(next.Signing.Cert).Add(p.PublishFor + p.LeafLifetime)
	for i, c := range slices.Concat(before.Bundle(), o.Roots) {
		if contains(next.Bundle(), c) || contains(kept, c) {
			continue
		}
		fromStore := i < len(before.Bundle())
		inUse := slices.ContainsFunc(o.Leaves, func(l *x509.Certificate) bool {
			return o.Now.Before(l.NotAfter) && l.CheckSignatureFrom(c) == nil
		})
		switch {
		case !o.Now.Before(c.NotAfter), len(kept) == maxRetired,
			!inUse && (!fromStore || !o.Now.Before(overlap)):
			if fromStore {
				changes = append(changes, describe("retired root is trusted no more", c))
			}
		default:
			kept = append(kept, c)
			if !contains(before.Retired, c) {
				changes = append(changes, describe("former root stays trusted", c))
			}
		}
	}
	return kept, changes
}

// made is when a root was made: NotBefore lies Skew in the past.
func (p Policy) made(root *x509.Certificate) time.Time { return root.NotBefore.Add(p.Skew) }

func (p Policy) promoteAt(next *x509.Certificate) time.Time { return p.made(next).Add(p.PublishFor) }

func (p Policy) newRoot(now time.Time) (*Pair, error) {
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
		// A name of its own for each root: verifiers look issuers up by name, and
		// some try only the first that matches.
		Subject:               pkix.Name{Organization: []string{"Evenkeel"}, CommonName: fmt.Sprintf("evenkeel root %s %04x", now.UTC().Format(time.DateOnly), serial.Uint64()&0xffff)},
		NotBefore:             now.Add(-p.Skew),
		NotAfter:              now.Add(p.RootLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(tmpl, tmpl, key.Public(), &Pair{Key: key})
	if err != nil {
		return nil, fmt.Errorf("make root certificate: %w", err)
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// usableRoot says why a pair cannot sign for us.
func usableRoot(c *x509.Certificate) error {
	if !c.BasicConstraintsValid || !c.IsCA {
		return errors.New("the certificate is not a CA (basic constraints)")
	}
	if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
		return errors.New("the certificate's key usage does not allow it to sign certificates")
	}
	return nil
}

func contains(certs []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(certs, c.Equal)
}

func describe(what string, c *x509.Certificate) string {
	return fmt.Sprintf("%s: %q, valid until %s", what, c.Subject.CommonName, c.NotAfter.UTC().Format(time.RFC3339))
}

func sign(tmpl, parent *x509.Certificate, public crypto.PublicKey, issuer *Pair) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, public, issuer.Key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
