// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sandbox

import (
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// manifestsText has a Service of each kind that matters for names.
const manifestsText = `apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec:
  clusterIP: 10.96.3.4
  clusterIPs: [10.96.3.4, "fd00::4"]
  ports: [{name: grpc, port: 50051}, {name: web, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: None, ports: [{name: grpc, port: 50051}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: grpc, port: 50051}]
endpoints:
- {addresses: [10.244.1.1], hostname: web-0, conditions: {ready: true}}
- {addresses: [10.244.1.2], hostname: web-1, conditions: {ready: false}}
- {addresses: [10.244.1.3]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-2, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: grpc, port: 50051}]
endpoints:
- {addresses: [10.244.1.1], hostname: web-0, conditions: {ready: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: other, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: grpc, port: 50051}]
endpoints:
- {addresses: [10.244.9.9]}
`

const wantHosts = `127.0.0.1 localhost
# Services in this evenkeel sandbox
10.96.3.4	pricing.shop.svc.cluster.local pricing.shop.svc pricing.shop
fd00::4	pricing.shop.svc.cluster.local pricing.shop.svc pricing.shop
10.244.1.1	web-0.web.default.svc.cluster.local web-0.web.default.svc web-0.web.default web-0.web
10.244.1.1	web.default.svc.cluster.local web.default.svc web.default web
10.244.1.3	web.default.svc.cluster.local web.default.svc web.default web
`

// syncBuffer is written by the reader's goroutine.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func follow(t *testing.T, dir string, notices io.Writer) (*manifests, string, error) {
	t.Helper()
	hosts := filepath.Join(t.TempDir(), "hosts")
	m, err := followManifests(t.Context(), Config{
		Dir: dir, Namespace: "default", Notices: notices, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, hosts)
	if err == nil {
		t.Cleanup(m.stop)
	}
	return m, hosts, err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestHostsFollowTheManifests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	write(t, file, manifestsText)
	notices := new(syncBuffer)
	m, hosts, err := follow(t, dir, notices)
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.ReadFile(hostsPath)
	if err != nil {
		t.Fatal(err)
	}
	read := func() string {
		text, err := os.ReadFile(hosts)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(string(text), strings.TrimSuffix(string(base), "\n")+"\n", "127.0.0.1 localhost\n", 1)
	}
	if got := read(); got != wantHosts {
		t.Errorf("got\n%s\nwant\n%s", got, wantHosts)
	}
	if got := strings.Join(m.notRedirected([]uint16{50051}), " "); got != "shop/pricing:8080" {
		t.Errorf("ports that are not redirected: %q", got)
	}

	// Fewer names: the file becomes shorter, in place.
	before, err := os.Stat(hosts)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, manifestsText[:strings.Index(manifestsText, "---")])
	eventually(t, "web is gone from the hosts file", func() bool { return !strings.Contains(read(), "web") })
	if got, want := read(), wantHosts[:strings.Index(wantHosts, "10.244")]; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if after, err := os.Stat(hosts); err != nil || !os.SameFile(before, after) {
		t.Errorf("the hosts file is another one, which a mount does not show: %v", err)
	}

	// A mistake while the command runs is told and changes nothing.
	write(t, filepath.Join(dir, "b.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {ports: 7}\n")
	eventually(t, "the mistake is told", func() bool { return strings.Contains(notices.String(), "b.yaml") })
	if got := notices.String(); !strings.HasPrefix(got, "evenkeel: ") || !strings.Contains(got, "ports") {
		t.Errorf("it was told as %q", got)
	}
	if got, want := read(), wantHosts[:strings.Index(wantHosts, "10.244")]; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestManifestsThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "good.yaml"), manifestsText)
	write(t, filepath.Join(dir, "bad.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  clusterIP: 10.96.0.300\n")
	_, _, err := follow(t, dir, t.Output())
	if err == nil {
		t.Fatal("a sandbox would run without a Service that the user has written")
	}
	for _, want := range []string{"bad.yaml", "10.96.0.300", "clusterIP", "5"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

func TestRedirectableStandsInForLoopbackAlone(t *testing.T) {
	for _, tc := range []struct {
		addr string
		same bool
	}{
		{"10.244.1.1", true}, {"192.0.2.7", true}, {"fd00::1", true}, {"127.0.0.1", false}, {"127.9.9.9", false}, {"::1", false},
	} {
		addr := netip.MustParseAddr(tc.addr)
		got := redirectable(addr, "shop/web")
		if (got == addr) != tc.same || !tc.same && !standIns.Contains(got) {
			t.Errorf("redirectable(%s) = %s", addr, got)
		}
		if got != redirectable(addr, "shop/web") {
			t.Errorf("redirectable(%s) is not the same each time", addr)
		}
	}
	if a, b := redirectable(netip.MustParseAddr("127.0.0.1"), "shop/web"), redirectable(netip.MustParseAddr("127.0.0.1"), "shop/api"); a == b {
		t.Errorf("two Services share the stand-in %s", a)
	}
}
