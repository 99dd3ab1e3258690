// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/xds/snapshot"
)

// apiServer is a real etcd and kube-apiserver on loopback.
type apiServer struct {
	t      *testing.T
	dir    string
	serve  []string // the API server's command line
	port   int
	server *exec.Cmd
}

// program finds what `make cluster` has built: the newest of its versions.
func program(t *testing.T, name string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	built, err := filepath.Glob(filepath.Join(cache, "evenkeel", "programs", name+"-[0-9]*", name))
	if err != nil {
		t.Fatal(err)
	}
	newest, when := "", time.Time{}
	for _, path := range built {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(when) {
			newest, when = path, info.ModTime()
		}
	}
	if newest == "" {
		t.Skipf("needs a real API server: no %s; `.ci/step programs` builds it", name)
	}
	return newest
}

// startAPIServer uses the binaries that `make cluster` builds.
func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{t: t, dir: t.TempDir()}
	etcd, peer := "http://127.0.0.1:"+fmt.Sprint(freePort(t)), "http://127.0.0.1:"+fmt.Sprint(freePort(t))
	a.start("etcd", "--name=test", "--data-dir="+filepath.Join(a.dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := a.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	tokens := a.write("tokens", "admin,admin,1,system:masters\nxds,system:serviceaccount:evenkeel-system:evenkeel-xds,2,system:authenticated\n")
	a.port = freePort(t)
	a.serve = []string{
		"--etcd-servers=" + etcd, fmt.Sprintf("--secure-port=%d", a.port), "--bind-address=127.0.0.1", "--cert-dir=" + filepath.Join(a.dir, "certs"),
		"--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + keyFile, "--service-account-signing-key-file=" + keyFile, "--service-cluster-ip-range=10.96.0.0/16",
	}
	a.resume()
	return a
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port
}

func (a *apiServer) start(name string, args ...string) *exec.Cmd {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	cmd := exec.Command(program(a.t, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also when the test is killed
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if a.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			a.t.Logf("end of %s:\n%s", log.Name(), text[max(0, len(text)-2000):])
		}
	})
	return cmd
}

// stop ends the API server as a lost machine does; resume starts it again.
func (a *apiServer) stop() {
	_ = a.server.Process.Kill()
	_ = a.server.Wait()
}

func (a *apiServer) resume() {
	a.t.Helper()
	a.server = a.start("kube-apiserver", a.serve...)
	a.until(2*time.Minute, "the API server is ready", func() bool {
		_, err := a.try("get", "--raw", "/readyz")
		return err == nil
	})
	a.until(time.Minute, "the default namespace is there", func() bool {
		_, err := a.try("get", "namespace", "default")
		return err == nil
	})
}

func (a *apiServer) until(bound time.Duration, what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

func (a *apiServer) write(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *apiServer) config(token string) string {
	return a.write(token+".kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:%d', insecure-skip-tls-verify: true}}]\n"+
		"users: [{name: u, user: {token: %s}}]\n", a.port, token))
}

func (a *apiServer) try(args ...string) (string, error) {
	cmd := exec.Command(program(a.t, "kubectl"), append([]string{"--kubeconfig=" + a.config("admin")}, args...)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (a *apiServer) kubectl(args ...string) string {
	a.t.Helper()
	out, err := a.try(args...)
	if err != nil {
		a.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

func (a *apiServer) apply(yaml string) {
	a.t.Helper()
	a.kubectl("apply", "--validate=false", "-f", a.write("apply.yaml", yaml))
}

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
	a := startAPIServer(t)
	a.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: evenkeel-system}\n---\n" + chartRole(t))
	a.apply(apiObjects)
	a.kubectl("wait", "--for=condition=Established", "crd/grpcroutes.gateway.networking.k8s.io")
	a.until(time.Minute, "the route is taken", func() bool {
		_, err := a.try("apply", "--validate=false", "-f", a.write("route.yaml", apiRoute))
		return err == nil
	})

	log := &logBuffer{}
	k, err := Connect(KubeConfig{Logger: slog.New(slog.NewTextHandler(log, nil)), Registerer: prometheus.NewRegistry(), Kubeconfig: a.config("xds")})
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
	a.until(time.Minute, "Ingress and route are known", func() bool {
		c := store.counts()
		return c[snapshot.KindIngress] == 1 && c[snapshot.KindGRPCRoute] == 1 && exposure() == snapshot.ExposureExternal
	})
	a.kubectl("-n", "shop", "delete", "ingress", "i")
	a.until(time.Minute, "the route alone still exposes it", func() bool { return store.counts()[snapshot.KindIngress] == 0 })
	if exposure() != snapshot.ExposureExternal {
		t.Error("not exposed though a GRPCRoute names its Service")
	}
	a.kubectl("-n", "shop", "delete", "grpcroute", "r")
	a.until(time.Minute, "nothing exposes it", func() bool { return exposure() == snapshot.ExposureService })

	m, _ := store.membership(web1)
	for range 2 {
		k.Event(web1, m.UID, "HoldTimeout", "ready hold ended after 15.0s without shop/cart-1")
	}
	a.until(time.Minute, "the Event is counted up", func() bool {
		out := a.kubectl("-n", "shop", "get", "events", "--field-selector=involvedObject.uid="+m.UID, "-o",
			"jsonpath={range .items[*]}{.type} {.reason} {.reportingComponent} {.count} {.message}{end}")
		return out == "Warning HoldTimeout evenkeel-xds 2 ready hold ended after 15.0s without shop/cart-1"
	})
	if strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), "level=ERROR") {
		t.Error("what is normal is warned about")
	}
	if err := k.Health(); err != nil {
		t.Errorf("with the API server there: %v", err)
	}

	a.stop()
	a.until(time.Minute, "it is unhealthy a minute after the API server died", func() bool {
		err := k.health(time.Now().Add(time.Minute))
		return err != nil && strings.Contains(err.Error(), "pods") && strings.Contains(err.Error(), "services")
	})
	if err := k.Health(); err != nil {
		t.Errorf("at once: %v", err)
	}
	a.resume()
	a.kubectl("-n", "shop", "patch", "service", "web", "--type=merge", "-p", `{"spec":{"type":"NodePort"}}`)
	a.until(time.Minute, "what changes is seen again", func() bool { return exposure() == snapshot.ExposureExternal })
	a.until(time.Minute, "it is healthy again", func() bool { return k.health(time.Now().Add(time.Minute)) == nil })
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
