// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"evenkeel.dev/xds"
)

// cluster is the real control plane over manifests that the test writes as a
// cluster would change them.
type cluster struct {
	t      *testing.T
	dir    string
	port   int
	target string
}

// serverPod is a server as the API server shows it.
type serverPod struct {
	n        int // its address is 127.0.0.<n>
	appReady bool
	ready    bool // also its sidecar
	deleted  bool
}

func (s serverPod) name() string { return fmt.Sprintf("pricing-%d", s.n) }
func (s serverPod) uid() string  { return fmt.Sprintf("uid-%d", s.n) }

// write replaces the manifests.
func (c *cluster) write(pods ...serverPod) {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec: {clusterIP: 10.96.3.4, ports: [{port: 50051, targetPort: %d}], selector: {app: pricing}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pricing-1, namespace: shop, labels: {kubernetes.io/service-name: pricing}}
addressType: IPv4
ports: [{port: %d}]
endpoints:
`, c.port, c.port)
	for _, p := range pods {
		fmt.Fprintf(&b, "- {addresses: [127.0.0.%d], conditions: {ready: %t, serving: %t, terminating: %t}, targetRef: {kind: Pod, namespace: shop, name: %s, uid: %s}}\n",
			p.n, p.ready && !p.deleted, p.ready, p.deleted, p.name(), p.uid())
	}
	for _, p := range pods {
		gone := ""
		if p.deleted {
			gone = ", deletionTimestamp: \"2026-01-01T00:00:00Z\", deletionGracePeriodSeconds: 65"
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, uid: %s, labels: {app: pricing}%s}
spec: {nodeName: n1, containers: [{name: app}], initContainers: [{name: %s, restartPolicy: Always}]}
status:
  phase: Running
  podIP: 127.0.0.%d
  podIPs: [{ip: 127.0.0.%d}]
  conditions: [{type: Ready, status: "%s"}]
  containerStatuses: [{name: app, ready: %t}]
  initContainerStatuses: [{name: %s, ready: %t, started: true}]
`, p.name(), p.uid(), gone, xds.SidecarContainer, p.n, p.n, title(p.ready), p.appReady, xds.SidecarContainer, p.ready)
	}
	file := filepath.Join(c.dir, "all.yaml")
	if err := os.WriteFile(file+".new", []byte(b.String()), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		c.t.Fatal(err)
	}
}

func title(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// openStreams opens streams, of which each server has some, until end is called.
func openStreams(t *testing.T, c grpc_health_v1.HealthClient) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for range 6 {
		s, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	return cancel
}

// TestRolloutWithTheRealControlPlane: a client's sidecar, a server's sidecar and
// xds, each for real; the test plays the kubelet and the API server.
func TestRolloutWithTheRealControlPlane(t *testing.T) {
	port, calls := startBackends(t, 2) // 127.0.0.2, .3
	c := &cluster{t: t, port: port, dir: t.TempDir()}
	old, fresh := serverPod{n: 2, appReady: true, ready: true}, serverPod{n: 3}
	c.write(old)
	c.target = startControlPlane(t, c.dir)

	app := prepare(t, c.target, "--pod-uid=uid-client")
	app.launch()
	rpcs, _ := client(t, app)
	eventually(t, "the client is served", func() bool { return check(t, rpcs) == nil })

	// A new server starts. Its sidecar is up before its app.
	c.write(old, fresh)
	server := prepare(t, c.target, "--pod="+fresh.name(), "--pod-uid="+fresh.uid(), "--state-dir="+t.TempDir(), "--drain-min=0s")
	server.cmd.Env = append(server.cmd.Environ(), xds.EnvHoldSecret+"="+secret)
	server.launch()
	fresh.appReady = true
	c.write(old, fresh)
	began := time.Now()
	if l := server.waitForHold("ready", 1); l.Reason != "answered" {
		t.Errorf("ready because %q after %s", l.Reason, time.Since(began))
	}
	if n := calls()[1]; n != 0 {
		t.Errorf("%d RPCs before it was ready", n)
	}
	fresh.ready = true
	c.write(old, fresh)
	eventually(t, "it has its share", func() bool {
		if err := check(t, rpcs); err != nil {
			t.Fatal(err)
		}
		return calls()[1] > 0
	})

	// It is deleted while an RPC runs on it.
	end := openStreams(t, rpcs)
	fresh.deleted = true
	c.write(old, fresh)
	hook := callHold(t, server)
	select {
	case err := <-hook:
		t.Errorf("released with an RPC in flight: %v", err)
	case <-time.After(time.Second):
	}
	if err := check(t, rpcs); err != nil {
		t.Error(err)
	}
	before := calls()[1]
	for range 20 {
		if err := check(t, rpcs); err != nil {
			t.Error(err)
		}
	}
	if n := calls()[1]; n != before {
		t.Errorf("%d RPCs went to a server that drains", n-before)
	}
	end()
	if err := <-hook; err != nil {
		t.Errorf("the hook: %v", err)
	}
	if l := server.waitForHold("drain", 1); l.Reason != "answered" {
		t.Errorf("drained because %q", l.Reason)
	}
}
