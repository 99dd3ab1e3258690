// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/xds/snapshot"
	"evenkeel.dev/xds/watch/apiserver"
)

// chartRole is the role that the chart gives the control plane.
func chartRole(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "charts", "evenkeel", "templates", "xds-rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	role := strings.ReplaceAll(string(text), "{{ .Release.Namespace }}", "evenkeel-system")
	role = regexp.MustCompile(`(?m)^\s*\{\{.*\}\}$`).ReplaceAllString(role, "")
	if strings.Contains(role, "{{") {
		t.Fatalf("what is rendered here has more in it than names and labels:\n%s", role)
	}
	return role
}

const apiObjects = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.44, selector: {app: web}, ports: [{name: grpc, port: 50051}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {automountServiceAccountToken: false, containers: [{name: app, image: x}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: shop}
spec: {defaultBackend: {service: {name: web, port: {number: 50051}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: grpcroutes.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: https://github.com/kubernetes-sigs/gateway-api/pull/1}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: GRPCRoute, listKind: GRPCRouteList, plural: grpcroutes, singular: grpcroute}
  versions:
    - {name: v1alpha2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

const apiRoute = `apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: r, namespace: shop}
spec: {parentRefs: [{name: gw}], rules: [{backendRefs: [{name: web, port: 50051}]}]}
`

// With no more rights than the chart gives: what is watched, Events, and what
// becomes of it when the API server dies and comes back.
func TestRealAPIServer(t *testing.T) {
	a := apiserver.Start(t, "system:serviceaccount:evenkeel-system:evenkeel-xds", "system:authenticated")
	a.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: evenkeel-system}\n---\n" + chartRole(t))
	a.Apply(apiObjects)
	a.Kubectl("wait", "--for=condition=Established", "crd/grpcroutes.gateway.networking.k8s.io")
	a.Until(time.Minute, "the route is taken", func() bool {
		_, err := a.Try("apply", "--validate=false", "-f", a.Write("route.yaml", apiRoute))
		return err == nil
	})

	log := &logBuffer{}
	k, err := Connect(KubeConfig{Logger: slog.New(slog.NewTextHandler(log, nil)), Registerer: prometheus.NewRegistry(), Kubeconfig: a.Config("xds")})
	if err != nil {
		t.Fatal(err)
	}
	store := &storeSink{store: snapshot.NewStore(snapshot.Config{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, store) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	}()
	web1 := snapshot.ObjectKey{Namespace: "shop", Name: "web-1"}
	exposure := func() snapshot.Exposure { m, _ := store.membership(web1); return m.Exposure }
	a.Until(time.Minute, "Ingress and route are known", func() bool {
		c := store.counts()
		return c[snapshot.KindIngress] == 1 && c[snapshot.KindGRPCRoute] == 1 && exposure() == snapshot.ExposureExternal
	})
	a.Kubectl("-n", "shop", "delete", "ingress", "i")
	a.Until(time.Minute, "the route alone still exposes it", func() bool { return store.counts()[snapshot.KindIngress] == 0 })
	if exposure() != snapshot.ExposureExternal {
		t.Error("not exposed though a GRPCRoute names its Service")
	}
	a.Kubectl("-n", "shop", "delete", "grpcroute", "r")
	a.Until(time.Minute, "nothing exposes it", func() bool { return exposure() == snapshot.ExposureService })

	m, _ := store.membership(web1)
	for range 2 {
		k.Event(web1, m.UID, "HoldTimeout", "ready hold ended after 15.0s without shop/cart-1")
	}
	a.Until(time.Minute, "the Event is counted up", func() bool {
		out := a.Kubectl("-n", "shop", "get", "events", "--field-selector=involvedObject.uid="+m.UID, "-o",
			"jsonpath={range .items[*]}{.type} {.reason} {.reportingComponent} {.count} {.message}{end}")
		return out == "Warning HoldTimeout evenkeel-xds 2 ready hold ended after 15.0s without shop/cart-1"
	})
	if strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), "level=ERROR") {
		t.Error("what is normal is warned about")
	}
	if err := k.Health(); err != nil {
		t.Errorf("with the API server there: %v", err)
	}

	a.Stop()
	a.Until(time.Minute, "it is unhealthy a minute after the API server died", func() bool {
		err := k.health(time.Now().Add(time.Minute))
		return err != nil && strings.Contains(err.Error(), "pods") && strings.Contains(err.Error(), "services")
	})
	if err := k.Health(); err != nil {
		t.Errorf("at once: %v", err)
	}
	a.Resume()
	a.Kubectl("-n", "shop", "patch", "service", "web", "--type=merge", "-p", `{"spec":{"type":"NodePort"}}`)
	a.Until(time.Minute, "what changes is seen again", func() bool { return exposure() == snapshot.ExposureExternal })
	a.Until(time.Minute, "it is healthy again", func() bool { return k.health(time.Now().Add(time.Minute)) == nil })
}

// storeSink applies what it is given, as the control plane does.
type storeSink struct {
	mu    sync.Mutex
	store *snapshot.Store
}

func (s *storeSink) Apply(changes []snapshot.Change, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		s.store.Apply(c)
	}
}

func (s *storeSink) Synced() {}

func (s *storeSink) membership(pod snapshot.ObjectKey) (snapshot.Membership, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Membership(pod)
}

func (s *storeSink) counts() map[snapshot.Kind]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Counts()
}
