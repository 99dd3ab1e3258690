// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// apiServer answers as the API server does, path by path; the real one is in e2e.
type apiServer struct {
	*httptest.Server
	answers  map[string]string // path → JSON, or "404", "403"
	asked    atomic.Int32
	complete atomic.Bool
}

func startAPI(t *testing.T) (*apiServer, Config) {
	t.Helper()
	s := &apiServer{answers: map[string]string{
		"/api/v1/namespaces/shop/pods": `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"pricing-1","uid":"u1"},
			"spec":{"initContainers":[{"name":"evenkeel-sidecar"}]},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}`,
		"/api/v1/namespaces/evenkeel-system/pods": `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"xds-1"}},{"metadata":{"name":"xds-2"}}]}`,
		"/api/v1/namespaces/evenkeel-system/pods/http:xds-1:15954/proxy/debug/rollout": `{"replica":"xds-1","settled":true,"pods":[
			{"pod":"pricing-1","uid":"u1","state":"ready","clients":2,"answered":2}]}`,
		"/api/v1/namespaces/evenkeel-system/pods/http:xds-2:15954/proxy/debug/rollout": "503",
	}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis/apps/v1/namespaces/shop/deployments/pricing" {
			s.asked.Add(1)
			updated := 0
			if s.complete.Load() {
				updated = 1
			}
			fmt.Fprintf(w, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"pricing","generation":2},
				"spec":{"replicas":1,"selector":{"matchLabels":{"app":"pricing"}}},
				"status":{"observedGeneration":2,"replicas":1,"readyReplicas":1,"updatedReplicas":%d}}`, updated)
			return
		}
		text, ok := s.answers[r.URL.Path]
		code := map[string]int{"400": http.StatusBadRequest, "403": http.StatusForbidden, "503": http.StatusServiceUnavailable}[text]
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"kind":"Status","status":"Failure","reason":"NotFound","code":404,"message":"%s not found"}`, r.URL.Path)
		case code == http.StatusForbidden:
			w.WriteHeader(code)
			fmt.Fprint(w, `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden"}`)
		case code == http.StatusBadRequest:
			http.Error(w, "unknown parameter", code) // not the API's JSON
		case code != 0:
			w.WriteHeader(code)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: it\nclusters: [{name: it, cluster: {server: %q}}]\ncontexts: [{name: it, context: {cluster: it, namespace: shop}}]\n", s.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, Config{Kubeconfig: file}
}

func TestStatus(t *testing.T) {
	_, cfg := startAPI(t)
	c, err := Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Status(t.Context(), pricing)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pods[0].Clients != 2 || !s.Pods[0].Sidecar || s.Namespace != "shop" || s.Complete {
		t.Errorf("%+v", s)
	}
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "xds-2") {
		t.Errorf("notes %q: the replica that does not answer is to be named", s.Notes)
	}
}

func TestStatusErrors(t *testing.T) {
	const system = "/api/v1/namespaces/evenkeel-system/pods"
	for name, c := range map[string]struct {
		change func(s *apiServer, cfg *Config)
		w      Workload
		want   string
	}{
		"no such workload":       {func(*apiServer, *Config) {}, Workload{StatefulSet, "pricing"}, "statefulset/pricing in namespace shop"},
		"not installed":          {func(s *apiServer, _ *Config) { s.answers[system] = `{"kind":"PodList","apiVersion":"v1","items":[]}` }, pricing, "--system-namespace"},
		"may not see pods":       {func(s *apiServer, _ *Config) { s.answers["/api/v1/namespaces/shop/pods"] = "403" }, pricing, "pods in namespace shop"},
		"may not proxy":          {func(s *apiServer, _ *Config) { s.answers[system+"/http:xds-1:15954/proxy/debug/rollout"] = "403" }, pricing, "pods/proxy"},
		"an older version":       {func(s *apiServer, _ *Config) { delete(s.answers, system+"/http:xds-1:15954/proxy/debug/rollout") }, pricing, "xds-1"},
		"it does not understand": {func(s *apiServer, _ *Config) { s.answers[system+"/http:xds-1:15954/proxy/debug/rollout"] = "400" }, pricing, "unknown parameter"},
		"nobody is there":        {func(s *apiServer, _ *Config) { s.Close() }, pricing, "connection refused"},
	} {
		s, cfg := startAPI(t)
		c.change(s, &cfg)
		cluster, err := Connect(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.Status(t.Context(), c.w); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error with %q", name, err, c.want)
		}
	}
}

func TestConnectErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	missing := filepath.Join(t.TempDir(), "none")
	for _, cfg := range []Config{{}, {Kubeconfig: missing}, {Context: "none"}} {
		if _, err := Connect(cfg); !errors.Is(err, ErrNoCluster) {
			t.Errorf("%+v: %v; want %v", cfg, err, ErrNoCluster)
		}
	}
	if _, err := Connect(Config{Kubeconfig: missing}); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("%v; want the file named", err)
	}
}

func TestFollow(t *testing.T) {
	s, cfg := startAPI(t)
	c, err := Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1500*time.Millisecond, func() { s.complete.Store(true) })
	var out bytes.Buffer
	if err := c.Follow(t.Context(), pricing, &out, Lines); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "POD "); n != 2 || s.asked.Load() < 3 {
		t.Errorf("%d tables of %d answers; want two, what is the same is not written again:\n%s", n, s.asked.Load(), out.String())
	}
	s.complete.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Follow(ctx, pricing, &out, Lines); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v; want the context's end", err)
	}
}
