// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package pki makes the certificates, keys and kubeconfigs of a test cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// Config says what to make.
type Config struct {
	// Dir receives the files; it is made.
	Dir string
	// Server is the API server's URL in the node network.
	Server string
	// HostServer is the API server's URL on this machine, for the kubeconfig
	// host.kubeconfig. Its host must be in ServerNames or ServerIPs.
	HostServer string
	// ServerNames and ServerIPs are the API server's subject names.
	ServerNames []string
	ServerIPs   []netip.Addr
	// Nodes has each node's name and address.
	Nodes map[string]netip.Addr
	// Now is the time from which they are valid, less an hour for a clock
	// that is set back.
	Now time.Time
}

// validity is far longer than any cluster here lives.
const validity = 365 * 24 * time.Hour

// Create writes everything, with a new CA.
func Create(cfg Config) error {
	if err := create(cfg); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

func create(cfg Config) error {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(cfg)
	if err != nil {
		return err
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	for name, ip := range cfg.Nodes {
		l := leaf{
			file: "kubelet-" + name, commonName: "system:node:" + name, groups: []string{"system:nodes"},
			names: []string{name}, ips: []netip.Addr{ip, loopback},
		}
		if err := ca.issue(l); err != nil {
			return err
		}
		if err := writeKubeconfig(cfg.Dir, l.file, l.file, cfg.Server); err != nil {
			return err
		}
	}
	for _, l := range []leaf{
		{file: "apiserver", commonName: "kube-apiserver", names: cfg.ServerNames, ips: append([]netip.Addr{loopback}, cfg.ServerIPs...)},
		{file: "apiserver-kubelet-client", commonName: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}},
		{file: "front-proxy-client", commonName: "front-proxy-client"},
		{file: "admin", commonName: "admin", groups: []string{"system:masters"}},
		{file: "controller-manager", commonName: "system:kube-controller-manager"},
		{file: "scheduler", commonName: "system:kube-scheduler"},
		{file: "kube-proxy", commonName: "system:kube-proxy"},
	} {
		if err := ca.issue(l); err != nil {
			return err
		}
	}
	for _, name := range []string{"admin", "controller-manager", "scheduler", "kube-proxy"} {
		if err := writeKubeconfig(cfg.Dir, name, name, cfg.Server); err != nil {
			return err
		}
	}
	if err := writeKubeconfig(cfg.Dir, "host", "admin", cfg.HostServer); err != nil {
		return err
	}
	return writeServiceAccountKey(cfg.Dir)
}

type authority struct {
	dir  string
	now  time.Time
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(cfg Config) (*authority, error) {
	ca := &authority{dir: cfg.Dir, now: cfg.Now}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	t, err := ca.template("evenkeel-e2e-ca", nil)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &ca.key.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, ca.write("ca", der, ca.key)
}

func (ca *authority) template(commonName string, groups []string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial,
		// Kubernetes reads the user from CN and the groups from O.
		Subject:   pkix.Name{CommonName: commonName, Organization: groups},
		NotBefore: ca.now.Add(-time.Hour),
		NotAfter:  ca.now.Add(validity),
	}, nil
}

// leaf describes one certificate. With names or ips it is for a server too.
type leaf struct {
	file       string
	commonName string
	groups     []string
	names      []string
	ips        []netip.Addr
}

func (ca *authority) issue(l leaf) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := ca.template(l.commonName, l.groups)
	if err != nil {
		return err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(l.names)+len(l.ips) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	t.DNSNames = l.names
	for _, ip := range l.ips {
		t.IPAddresses = append(t.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", l.file, err)
	}
	return ca.write(l.file, der, key)
}

func (ca *authority) write(file string, der []byte, key any) error {
	if err := writePEM(filepath.Join(ca.dir, file+".crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	return writeKey(filepath.Join(ca.dir, file+".key"), key)
}

// writeServiceAccountKey makes the pair by which the API server signs the
// tokens of service accounts. RSA: what clusters use, so its JWKS has RS256.
func writeServiceAccountKey(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", pub); err != nil {
		return err
	}
	return writeKey(filepath.Join(dir, "sa.key"), key)
}

func writeKey(path string, key any) error {
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "PRIVATE KEY", b)
}

func writePEM(path, kind string, b []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
}

func writeKubeconfig(dir, name, user, server string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: evenkeel-e2e
  cluster: {server: %q, certificate-authority: %q}
users:
- name: %[3]s
  user: {client-certificate: "%[4]s/%[3]s.crt", client-key: "%[4]s/%[3]s.key"}
contexts:
- name: evenkeel-e2e
  context: {cluster: evenkeel-e2e, user: %[3]s}
current-context: evenkeel-e2e
`, server, filepath.Join(dir, "ca.crt"), user, dir)
	return os.WriteFile(filepath.Join(dir, name+".kubeconfig"), []byte(text), 0o600)
}
