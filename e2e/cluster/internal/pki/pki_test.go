// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func created(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	err := Create(Config{
		Dir: dir, Server: "https://10.240.0.11:6443", HostServer: "https://127.0.0.1:12345", Now: now,
		ServerNames: []string{"kubernetes.default.svc"}, ServerIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Nodes: map[string]netip.Addr{"node1": netip.MustParseAddr("10.240.0.11")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	// Also checks that the key belongs to the certificate.
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestCertificates(t *testing.T) {
	dir := created(t)
	roots := x509.NewCertPool()
	roots.AddCert(load(t, dir, "ca"))
	for _, tt := range []struct {
		file, user, group string
		serves            []string
	}{
		{file: "apiserver", user: "kube-apiserver", serves: []string{"kubernetes.default.svc", "10.96.0.1", "127.0.0.1"}},
		{file: "kubelet-node1", user: "system:node:node1", group: "system:nodes", serves: []string{"node1", "10.240.0.11", "127.0.0.1"}},
		{file: "admin", user: "admin", group: "system:masters"},
		{file: "controller-manager", user: "system:kube-controller-manager"},
		{file: "scheduler", user: "system:kube-scheduler"},
		{file: "kube-proxy", user: "system:kube-proxy"},
		{file: "front-proxy-client", user: "front-proxy-client"},
		{file: "apiserver-kubelet-client", user: "kube-apiserver-kubelet-client", group: "system:masters"},
	} {
		c := load(t, dir, tt.file)
		usage := x509.ExtKeyUsageClientAuth
		if len(tt.serves) > 0 {
			usage = x509.ExtKeyUsageServerAuth
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("%s: %v", tt.file, err)
		}
		for _, name := range tt.serves {
			if err := c.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", tt.file, err)
			}
		}
		if c.Subject.CommonName != tt.user {
			t.Errorf("%s: user %q, want %q", tt.file, c.Subject.CommonName, tt.user)
		}
		if got := strings.Join(c.Subject.Organization, ","); got != tt.group {
			t.Errorf("%s: groups %q, want %q", tt.file, got, tt.group)
		}
		if len(tt.serves) == 0 && c.VerifyHostname("127.0.0.1") == nil {
			t.Errorf("%s: a client's certificate is good for a server", tt.file)
		}
	}
}

func TestKubeconfigs(t *testing.T) {
	dir := created(t)
	for file, want := range map[string][]string{
		"host.kubeconfig":          {`"https://127.0.0.1:12345"`, dir + "/admin.crt", dir + "/ca.crt"},
		"admin.kubeconfig":         {`"https://10.240.0.11:6443"`, dir + "/admin.key"},
		"kubelet-node1.kubeconfig": {`"https://10.240.0.11:6443"`, dir + "/kubelet-node1.crt"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s does not contain %s:\n%s", file, w, b)
			}
		}
	}
}

func TestKeysAreSecret(t *testing.T) {
	dir := created(t)
	keys, err := filepath.Glob(filepath.Join(dir, "*.key"))
	if err != nil || len(keys) == 0 {
		t.Fatal(keys, err)
	}
	for _, k := range keys {
		info, err := os.Stat(k)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %o, want 600", k, info.Mode().Perm())
		}
	}
}
