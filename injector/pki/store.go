// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// Keys of the authority's store (a Secret of type kubernetes.io/tls).
const (
	KeyCert     = "tls.crt"       // the signing root, or a serving certificate
	KeyKey      = "tls.key"       // its private key
	KeyNextCert = "next.crt"      // the root that is published and will sign
	KeyNextKey  = "next.key"      // its private key
	KeyBundle   = "ca-bundle.crt" // every trusted root
	KeyRoots    = "ca.crt"        // the roots, beside a serving certificate
)

// ErrNothingStored is among Decode's problems when a store is fresh.
var ErrNothingStored = errors.New("nothing stored")

// Decode reads an authority and is content with whatever of it is usable:
// known are certificates found elsewhere, which replace a lost one whose key is
// still there. It names each key that it could not use.
func Decode(data map[string][]byte, known []*x509.Certificate) (*Authority, []error) {
	a := &Authority{}
	if len(data[KeyCert]) == 0 && len(data[KeyKey]) == 0 && len(data[KeyBundle]) == 0 {
		return a, []error{ErrNothingStored}
	}
	var problems []error
	problem := func(key string, err error) { problems = append(problems, fmt.Errorf("%s: %w", key, err)) }

	var bundle []*x509.Certificate
	if len(data[KeyBundle]) > 0 {
		var err error
		if bundle, err = ParseCerts(data[KeyBundle]); err != nil {
			problem(KeyBundle, err)
		}
	}
	read := func(certKey, keyKey string, candidates []*x509.Certificate) *Pair {
		pair, err := ParsePair(data[certKey], data[keyKey])
		if err != nil {
			problem(certKey+", "+keyKey, err)
			key, err := parseKey(data[keyKey])
			if err != nil {
				return nil
			}
			i := slices.IndexFunc(candidates, func(c *x509.Certificate) bool { return samePublicKey(key.Public(), c.PublicKey) })
			if i < 0 {
				return nil
			}
			pair = &Pair{Cert: candidates[i], Key: key}
		}
		if err := usableRoot(pair.Cert); err != nil {
			problem(certKey, err)
			return nil
		}
		return pair
	}
	a.Signing = read(KeyCert, KeyKey, slices.Concat(bundle, known))
	if len(data[KeyNextCert]) > 0 || len(data[KeyNextKey]) > 0 {
		a.Next = read(KeyNextCert, KeyNextKey, bundle)
	}
	if a.Signing == nil {
		// Its certificate is still worth its trust: it may have issued what is in use.
		if certs, err := ParseCerts(data[KeyCert]); err == nil && usableRoot(certs[0]) == nil && !contains(bundle, certs[0]) {
			bundle = append(bundle, certs[0])
		}
	}
	for _, c := range bundle {
		if usableRoot(c) == nil && !contains(a.Bundle(), c) {
			a.Retired = append(a.Retired, c)
		}
	}
	return a, problems
}

// Encode is the inverse of Decode.
func Encode(a *Authority) (map[string][]byte, error) {
	data := map[string][]byte{KeyBundle: a.BundlePEM()}
	var err error
	if data[KeyCert], data[KeyKey], err = EncodePair(a.Signing); err != nil {
		return nil, err
	}
	if a.Next != nil {
		if data[KeyNextCert], data[KeyNextKey], err = EncodePair(a.Next); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// EncodeLeaf is what a serving certificate's Secret holds.
func EncodeLeaf(a *Authority, leaf *Pair) (map[string][]byte, error) {
	cert, key, err := EncodePair(leaf)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{KeyCert: cert, KeyKey: key, KeyRoots: a.BundlePEM()}, nil
}
