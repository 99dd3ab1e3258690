// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func readProc(pid int, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
	return string(b), err
}

// testUntouched: pods without the label, or with the label that says no, are what
// their author wrote.
func testUntouched(t *testing.T, s *suite) {
	free := workload{name: "free", args: []string{"server"}}
	out := free
	out.name, out.labels = "out", "evenkeel.dev/inject: disabled"
	in := free
	in.name, in.labels = "in", "evenkeel.dev/inject: enabled"
	s.apply(t, plain, free.String()+in.String())
	s.apply(t, shop, out.String())
	for _, p := range []struct {
		namespace, app string
		injected       bool
	}{{plain, "free", false}, {shop, "out", false}, {plain, "in", true}} {
		pod := s.pods(t, p.namespace, p.app, 1)[0]
		spec := s.kubectl(t, "-n", p.namespace, "get", "pod", pod.Name, "-o", "json")
		if got := strings.Contains(spec, `"name": "evenkeel-sidecar"`); got != p.injected {
			t.Errorf("pod %s/%s: has a sidecar: %v, want %v", p.namespace, pod.Name, got, p.injected)
		}
		if !p.injected && strings.Contains(spec, "config.evenkeel.dev") {
			t.Errorf("pod %s/%s was touched:\n%s", p.namespace, pod.Name, spec)
		}
	}
	s.delete(t, plain, free.String()+in.String())
	s.delete(t, shop, out.String())
}

// testBadInput: what is wrong is named, and nothing else is lost.
func testBadInput(t *testing.T, s *suite) {
	_, err := s.c.Helm(t.Context(), "template", s.root+"/charts/evenkeel", "--set", "injection.outboundPorts={70000}")
	if err == nil || !strings.Contains(err.Error(), "outboundPorts") {
		t.Errorf("helm with a wrong port: %v, want an error that names outboundPorts", err)
	}
	_, err = s.c.Helm(t.Context(), "template", s.root+"/charts/evenkeel", "--set", "injektion.foo=1")
	if err == nil || !strings.Contains(err.Error(), "injektion") {
		t.Errorf("helm with a misspelt value: %v, want an error that names it", err)
	}
	// A pod with annotations that make no sense is admitted, injected, and its
	// owner is told.
	bad := workload{
		name: "odd", args: []string{"server"}, annotations: `config.evenkeel.dev/outbound-ports: "fifty", config.evenkeel.dev/nonsense: "1"`,
	}.String()
	s.apply(t, shop, bad)
	pod := s.pods(t, shop, "odd", 1)[0]
	if spec := s.kubectl(t, "-n", shop, "get", "pod", pod.Name, "-o", "json"); !strings.Contains(spec, `"name": "evenkeel-sidecar"`) {
		t.Error("a pod with odd annotations was not injected")
	}
	for _, want := range []string{"outbound-ports", "nonsense"} {
		if events := s.kubectl(t, "-n", shop, "get", "events", "-o", "json"); !strings.Contains(events, want) {
			t.Errorf("no Event names the annotation %s", want)
		}
	}
	s.delete(t, shop, bad)
}

// testPassThrough: what is not cleartext HTTP/2 works through the pod's redirect.
func testPassThrough(t *testing.T, s *suite) {
	manifest := workload{name: "secure", args: []string{"server", "--tls"}}.String() + service("secure", "secure", "{port: 50051}", "") +
		workload{name: "web", args: []string{"server", "--protocol=http1"}}.String() + service("web", "web", "{port: 50051}", "")
	s.apply(t, shop, manifest)
	secure, web := s.pods(t, shop, "secure", 1)[0], s.pods(t, shop, "web", 1)[0]
	c := s.client(t, shop, "go")
	// What is relayed as bytes goes to the ClusterIP, and so waits for kube-proxy.
	for _, query := range []string{"n=1&target=secure:50051&tls=true", "n=1&target=web:50051&protocol=http1"} {
		eventually(t, 20*time.Second, "kube-proxy knows the server of "+query, func() error {
			if got := c.run(t, query); got.Succeeded != 1 {
				return fmt.Errorf("%+v", got.Errors)
			}
			return nil
		})
	}
	got := c.run(t, "n=100&concurrency=4&kind=mix&target=secure:50051&tls=true")
	wantAll(t, "gRPC over TLS", got, 100)
	if got.ByServer[secure.Name] != 100 {
		t.Errorf("gRPC over TLS: %v, want 100 at %s", got.ByServer, secure.Name)
	}
	got = c.run(t, "n=100&concurrency=4&target=web:50051&protocol=http1&bytes=20000")
	wantAll(t, "HTTP/1", got, 100)
	if got.ByServer[web.Name] != 100 {
		t.Errorf("HTTP/1: %v, want 100 at %s", got.ByServer, web.Name)
	}
	s.delete(t, shop, manifest)
}
