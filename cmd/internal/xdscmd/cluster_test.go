// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xdscmd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

// apiServer is a real etcd and kube-apiserver on loopback.
type apiServer struct {
	t          *testing.T
	dir        string
	kubectlBin string
	kubeconfig string // the administrator's
	xdsConfig  string // of a user with the control plane's rights
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
	a := &apiServer{t: t, dir: t.TempDir(), kubectlBin: program(t, "kubectl")}
	etcdClient, etcdPeer, port := freePort(t), freePort(t), freePort(t)
	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", etcdClient)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", etcdPeer)
	a.start(program(t, "etcd"), "--name=test", "--data-dir="+filepath.Join(a.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=test="+peerURL)

	saKey, saPub := a.serviceAccountKey()
	tokens := a.write("tokens", "admin,admin,1,system:masters\nxds,xds,2,system:serviceaccounts\n")
	a.start(program(t, "kube-apiserver"), "--etcd-servers="+etcdURL, fmt.Sprintf("--secure-port=%d", port),
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Join(a.dir, "certs"), "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file="+saPub,
		"--service-account-signing-key-file="+saKey, "--service-cluster-ip-range=10.96.0.0/16")
	a.kubeconfig, a.xdsConfig = a.config("admin", port), a.config("xds", port)
	eventuallyWithin(t, 2*time.Minute, "the API server is ready", func() bool {
		_, err := a.try("get", "--raw", "/readyz")
		return err == nil
	})
	eventuallyWithin(t, time.Minute, "the default namespace is there", func() bool {
		_, err := a.try("get", "namespace", "default")
		return err == nil
	})
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

func (a *apiServer) start(program string, args ...string) {
	a.t.Helper()
	log, err := os.Create(filepath.Join(a.dir, filepath.Base(program)+".log"))
	if err != nil {
		a.t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also when the test is killed
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if a.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			a.t.Logf("end of %s:\n%s", log.Name(), text[max(0, len(text)-2000):])
		}
		_ = log.Close()
	})
}

func (a *apiServer) write(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *apiServer) config(token string, port int) string {
	return a.write(token+".kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:%d', insecure-skip-tls-verify: true}}]\n"+
		"users: [{name: u, user: {token: %s}}]\n", port, token))
}

func (a *apiServer) serviceAccountKey() (private, public string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write("sa.key", keyPEM(a.t, key)), a.write("sa.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})))
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

func (a *apiServer) try(args ...string) (string, error) {
	cmd := exec.Command(a.kubectlBin, append([]string{"--kubeconfig=" + a.kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (a *apiServer) kubectl(args ...string) string {
	a.t.Helper()
	out, err := a.try(args...)
	if err != nil {
		a.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

func (a *apiServer) apply(yaml string) {
	a.t.Helper()
	a.kubectl("apply", "--validate=false", "-f", a.write("apply.yaml", yaml))
}

// serving writes a certificate for 127.0.0.1 and returns its files and a pool.
func serving(t *testing.T, dir string, serial int64) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "xds"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for name, data := range map[string][]byte{cert: certPEM, key: []byte(keyPEM(t, k))} {
		if err := os.WriteFile(name+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

const clusterObjects = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: xds}
rules:
- {apiGroups: [""], resources: [services, pods, nodes], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: xds}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: xds}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: xds}]
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: v1
kind: Node
metadata: {name: node1, labels: {topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec: {clusterIP: 10.96.0.44, ports: [{name: grpc, port: 50051, targetPort: 8080}]}
`

const clusterPod = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, labels: {filler: "%s"}}
spec:
  nodeName: node1
  automountServiceAccountToken: false
  containers: [{name: app, image: x}]
  initContainers: [{name: evenkeel-sidecar, image: x, restartPolicy: Always}]
`

func clusterSlice(pod, uid, conditions string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pricing-1, namespace: shop, labels: {kubernetes.io/service-name: pricing}}
addressType: IPv4
ports: [{name: grpc, port: 8080}]
endpoints: [{addresses: [10.244.1.7], conditions: %s, nodeName: node1, targetRef: {kind: Pod, namespace: shop, name: %s, uid: %s}}]
`, conditions, pod, uid)
}

// The whole control plane against a real API server: watches in protobuf with no
// more rights than the chart gives, a token of its TokenRequest API verified with
// its keys, TLS whose certificate changes, a Pod through all its states.
func TestRealAPIServer(t *testing.T) {
	a := startAPIServer(t)
	a.apply(clusterObjects)
	a.apply(fmt.Sprintf(clusterPod, "web-1", ""))
	a.apply(fmt.Sprintf(clusterPod, "pricing-1", strings.Repeat("x", 60)))
	uid := a.kubectl("-n", "shop", "get", "pod", "pricing-1", "-o", "jsonpath={.metadata.uid}")
	token := a.kubectl("-n", "shop", "create", "token", "default", "--audience=evenkeel", "--bound-object-kind=Pod", "--bound-object-name=web-1")

	dir := t.TempDir()
	cert, key, pool := serving(t, dir, 1)
	port := freePort(t)
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	var log output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, []string{"run", "--listen=" + listen, "--admin-listen=127.0.0.1:0", "--kubeconfig=" + a.xdsConfig, "--tls-cert=" + cert, "--tls-key=" + key, "--log-format=text"}, io.Discard, &log)
	}()
	defer func() {
		cancel()
		if status := <-done; status != run.OK {
			t.Errorf("status %d", status)
		}
		if t.Failed() {
			t.Logf("log of the control plane:\n%s", log.String())
		}
	}()
	admin := adminAddress(t, &log)
	eventuallyWithin(t, time.Minute, "it is ready", func() bool { code, _ := get(t, admin, "/readyz"); return code == 200 })

	c := dialSidecar(t, listen, pool, token, "shop/web-1")
	c.subscribe(xds.DestinationType, "address/10.96.0.44:50051", "name/shop/pricing:50051")
	c.subscribe(xds.EndpointType, xds.EndpointCollection("shop/pricing:50051"))
	c.want("nothing runs yet", "")
	a.apply(clusterSlice("pricing-1", uid, "{ready: false, serving: false}"))
	a.kubectl("-n", "shop", "patch", "pod", "pricing-1", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","podIP":"10.244.1.7","podIPs":[{"ip":"10.244.1.7"}],"containerStatuses":[{"name":"app","ready":true,"image":"x","imageID":"x","restartCount":0,"state":{"running":{}}}],"initContainerStatuses":[{"name":"evenkeel-sidecar","ready":false,"image":"x","imageID":"x","restartCount":0,"state":{"running":{}}}]}}`)
	c.want("its app is ready, our sidecar is not", "10.244.1.7:8080 UNHEALTHY z1")
	a.apply(clusterSlice("pricing-1", uid, "{ready: true, serving: true}"))
	c.want("it is ready", "10.244.1.7:8080 HEALTHY z1")
	a.kubectl("-n", "shop", "delete", "pod", "pricing-1", "--wait=false", "--grace-period=60")
	c.want("its Pod is being deleted, the slice is behind", "10.244.1.7:8080 DRAINING z1")
	a.kubectl("-n", "shop", "delete", "pod", "pricing-1", "--grace-period=0", "--force")
	c.want("its Pod is gone, the slice is behind", "")

	// The certificate changes under the running server.
	_, _, pool2 := serving(t, dir, 2)
	eventually(t, "new connections see the new certificate", func() bool {
		conn, err := tls.Dial("tcp", listen, &tls.Config{RootCAs: pool2, NextProtos: []string{"h2"}})
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	// A token for another audience, and the stream's end with its Pod.
	other := a.kubectl("-n", "shop", "create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name=web-1")
	bad := dialSidecar(t, listen, pool2, other, "shop/web-1")
	bad.subscribe(xds.DestinationType, "address/10.96.0.44:50051")
	bad.fails("Unauthenticated", "audience")
	a.kubectl("-n", "shop", "delete", "pod", "web-1", "--grace-period=0", "--force")
	c.fails("Unauthenticated", "is gone")
}

// sidecar is the client's end of a stream over TLS.
type sidecar struct {
	t      *testing.T
	stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel context.CancelFunc
	node   *corepb.Node
	have   map[string]*endpointpb.LbEndpoint
	whole  bool
}

func dialSidecar(t *testing.T, addr string, pool *x509.CertPool, token, id string) *sidecar {
	t.Helper()
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); _ = cc.Close() })
	ctx = metadata.AppendToOutgoingContext(ctx, xds.MetadataKeyAuth, xds.AuthSchemeBearer+token)
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return &sidecar{t: t, stream: stream, cancel: cancel, node: &corepb.Node{Id: id}, have: map[string]*endpointpb.LbEndpoint{}}
}

func (c *sidecar) subscribe(typeURL string, names ...string) {
	c.t.Helper()
	if err := c.stream.Send(&discoverypb.DeltaDiscoveryRequest{Node: c.node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
	c.node = nil
}

func (c *sidecar) recv() error {
	r, err := c.stream.Recv()
	if err != nil {
		return err
	}
	for _, n := range r.GetRemovedResources() {
		delete(c.have, n)
	}
	for _, res := range r.GetResources() {
		if r.GetTypeUrl() != xds.EndpointType {
			continue
		}
		if strings.HasSuffix(res.GetName(), "/*") {
			c.whole = true
			continue
		}
		ep := &endpointpb.LbEndpoint{}
		if err := res.GetResource().UnmarshalTo(ep); err != nil {
			return err
		}
		c.have[res.GetName()] = ep
	}
	return c.stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

func (c *sidecar) want(what, want string) {
	c.t.Helper()
	watchdog := time.AfterFunc(30*time.Second, c.cancel)
	defer watchdog.Stop()
	for {
		var got []string
		for _, ep := range c.have {
			sa := ep.GetEndpoint().GetAddress().GetSocketAddress()
			zone := ep.GetMetadata().GetFilterMetadata()[xds.EndpointMetadata].GetFields()[xds.EndpointZone].GetStringValue()
			got = append(got, fmt.Sprintf("%s:%d %s %s", sa.GetAddress(), sa.GetPortValue(), ep.GetHealthStatus(), zone))
		}
		slices.Sort(got)
		if c.whole && strings.Join(got, ", ") == want {
			return
		}
		if err := c.recv(); err != nil {
			c.t.Fatalf("%s: %v; have %v, want %q", what, err, got, want)
		}
	}
}

func (c *sidecar) fails(parts ...string) {
	c.t.Helper()
	watchdog := time.AfterFunc(30*time.Second, c.cancel)
	defer watchdog.Stop()
	for eofs := 0; ; {
		err := c.recv()
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && eofs == 0 {
			eofs++ // Send's: the next Recv tells the reason
			continue
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				c.t.Errorf("the stream ended with %q, which does not say %q", err, p)
			}
		}
		return
	}
}

func eventuallyWithin(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never came true within %s: %s", d, what)
}
