// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"strings"
	"testing"
)

// catalog is a StatefulSet behind a headless Service: the port that is dialled is
// the pods' own.
func catalog() string {
	return workload{kind: "StatefulSet", name: "catalog", replicas: 3, args: []string{"server"}}.String() +
		service("catalog", "catalog", "{name: grpc, port: 50051}", "clusterIP: None")
}

// testHeadless: DNS answers with the pods, pick_first takes one, and the RPCs are
// balanced all the same; whichever DNS form is the target.
func testHeadless(t *testing.T, s *suite) {
	s.apply(t, shop, catalog())
	servers := s.pods(t, shop, "catalog", 3)
	for _, app := range []string{"go", "python"} {
		c := s.client(t, shop, app)
		for _, target := range []string{"catalog:50051", "catalog.shop.svc.cluster.local:50051"} {
			got := c.run(t, "n=6000&concurrency=6&delay_ms=3&target="+target)
			wantAll(t, app+" to "+target, got, 6000)
			wantSpread(t, app+" to "+target, got, servers)
			if got.Connects != 1 {
				t.Errorf("%s to %s: %d connections, want 1", app, target, got.Connects)
			}
		}
	}
}

// testStatefulSetName: a pod's own name is not balanced.
func testStatefulSetName(t *testing.T, s *suite) {
	for _, app := range []string{"go", "python"} {
		c := s.client(t, shop, app)
		for _, target := range []string{"catalog-1.catalog:50051", "catalog-2.catalog.shop.svc.cluster.local:50051"} {
			got := c.run(t, "n=200&concurrency=4&target="+target)
			wantAll(t, app+" to "+target, got, 200)
			if pod, _, _ := strings.Cut(target, "."); got.ByServer[pod] != 200 {
				t.Errorf("%s to %s: %v, want 200 at %s", app, target, got.ByServer, pod)
			}
		}
	}
	s.delete(t, shop, catalog())
}

// testOwnService: a pod that serves and calls, as its own Service's client.
func testOwnService(t *testing.T, s *suite) {
	const both = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ring}
spec:
  replicas: 2
  selector: {matchLabels: {app: ring}}
  template:
    metadata: {labels: {app: ring}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: server
        image: e2e.local/testapp:1
        imagePullPolicy: Never
        args: [server, --http=:8081]
        readinessProbe: {httpGet: {path: /ready, port: 8081}, periodSeconds: 1}
      - name: client
        image: e2e.local/testapp:1
        imagePullPolicy: Never
        args: [client, "--target=ring:50051"]
        readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
---`
	manifest := both + service("ring", "ring", "{name: grpc, port: 50051}", "")
	s.apply(t, shop, manifest)
	pods := s.pods(t, shop, "ring", 2)
	for _, p := range pods {
		c := client{s, p}
		got := c.run(t, "n=2000&concurrency=4")
		wantAll(t, p.Name+" to its own Service", got, 2000)
		// Its own server is no endpoint of equal cost: it is nearer, and shares
		// the pod's CPU with the client.
		wantShares(t, p.Name+" to its own Service", got, pods)
		got = c.run(t, fmt.Sprintf("n=100&target=%s:50051", p.IP))
		wantAll(t, p.Name+" to its own address", got, 100)
		if got.ByServer[p.Name] != 100 {
			t.Errorf("%s to its own address: %v, want 100 at itself", p.Name, got.ByServer)
		}
	}
	s.delete(t, shop, manifest)
}
