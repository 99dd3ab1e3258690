// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
)

// Pair is a certificate and its private key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// publicKey is what every key type of crypto/... has.
type publicKey interface {
	Equal(x crypto.PublicKey) bool
}

func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(publicKey)
	return ok && k.Equal(b)
}

// ParsePair reads a PEM certificate (the first; a chain may follow) and its key.
func ParsePair(certPEM, keyPEM []byte) (*Pair, error) {
	certs, err := ParseCerts(certPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("private key: %w", err)
	}
	if !samePublicKey(key.Public(), certs[0].PublicKey) {
		return nil, errors.New("the private key is not the certificate's")
	}
	return &Pair{Cert: certs[0], Key: key}, nil
}

// EncodePair is the inverse of ParsePair.
func EncodePair(p *Pair) (certPEM, keyPEM []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode private key: %w", err)
	}
	return EncodeCerts([]*x509.Certificate{p.Cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseCerts reads one or more PEM certificates. Text that is no certificate is
// an error rather than skipped: half a bundle is not a bundle.
func ParseCerts(b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := bytes.TrimSpace(b); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return nil, fmt.Errorf("no PEM block after %d certificates", len(certs))
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is a %q, want a CERTIFICATE", len(certs)+1, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("empty")
	}
	return certs, nil
}

// EncodeCerts writes certificates as PEM, in order.
func EncodeCerts(certs []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		// Writing to a bytes.Buffer cannot fail, and the block has no headers.
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return b.Bytes()
}

func parseKey(b []byte) (crypto.Signer, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil, errors.New("empty")
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	// People bring keys from openssl, which writes SEC 1 for EC keys.
	if k, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("PEM block %q is neither a PKCS #8 nor an EC key", block.Type)
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", k)
	}
	return s, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate private key: %w", err)
	}
	return k, nil
}

func newSerial() (*big.Int, error) {
	// RFC 5280 §4.1.2.2: "Certificate users MUST be able to handle serialNumber
	// values up to 20 octets", and it must be positive.
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
