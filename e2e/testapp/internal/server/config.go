// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// SelfSigned makes a certificate for one day. The tests' clients do not check
// it: they want TLS on the wire, not identity.
func SelfSigned(name string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Validate reports every mistake.
func (c Config) Validate() error {
	var errs []error
	if c.Protocol != GRPC && c.Protocol != HTTP1 {
		errs = append(errs, fmt.Errorf("--protocol: %q: want grpc or http1", c.Protocol))
	}
	if c.Exit != ExitNow && c.Exit != ExitGraceful && c.Exit != ExitNone {
		errs = append(errs, fmt.Errorf("--exit: %q: want now, graceful or none", c.Exit))
	}
	return errors.Join(errs...)
}
