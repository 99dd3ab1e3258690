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
	"path/filepath"
	"slices"
	"strings"
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
	"evenkeel.dev/xds/watch/apiserver"
)

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
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
	a := apiserver.Start(t, "xds", "system:serviceaccounts")
	a.Apply(clusterObjects)
	a.Apply(fmt.Sprintf(clusterPod, "web-1", ""))
	a.Apply(fmt.Sprintf(clusterPod, "pricing-1", strings.Repeat("x", 60)))
	uid := a.Kubectl("-n", "shop", "get", "pod", "pricing-1", "-o", "jsonpath={.metadata.uid}")
	token := a.Kubectl("-n", "shop", "create", "token", "default", "--audience=evenkeel", "--bound-object-kind=Pod", "--bound-object-name=web-1")

	dir := t.TempDir()
	cert, key, pool := serving(t, dir, 1)
	port := apiserver.FreePort(t)
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	var log output
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, []string{"run", "--listen=" + listen, "--admin-listen=127.0.0.1:0", "--kubeconfig=" + a.Config("xds"), "--tls-cert=" + cert, "--tls-key=" + key, "--log-format=text"}, io.Discard, &log)
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
	a.Apply(clusterSlice("pricing-1", uid, "{ready: false, serving: false}"))
	a.Kubectl("-n", "shop", "patch", "pod", "pricing-1", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","podIP":"10.244.1.7","podIPs":[{"ip":"10.244.1.7"}],"containerStatuses":[{"name":"app","ready":true,"image":"x","imageID":"x","restartCount":0,"state":{"running":{}}}],"initContainerStatuses":[{"name":"evenkeel-sidecar","ready":false,"image":"x","imageID":"x","restartCount":0,"state":{"running":{}}}]}}`)
	c.want("its app is ready, our sidecar is not", "10.244.1.7:8080 UNHEALTHY z1")
	a.Apply(clusterSlice("pricing-1", uid, "{ready: true, serving: true}"))
	c.want("it is ready", "10.244.1.7:8080 HEALTHY z1")
	a.Kubectl("-n", "shop", "delete", "pod", "pricing-1", "--wait=false", "--grace-period=60")
	c.want("its Pod is being deleted, the slice is behind", "10.244.1.7:8080 DRAINING z1")
	a.Kubectl("-n", "shop", "delete", "pod", "pricing-1", "--grace-period=0", "--force")
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
	other := a.Kubectl("-n", "shop", "create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name=web-1")
	bad := dialSidecar(t, listen, pool2, other, "shop/web-1")
	bad.subscribe(xds.DestinationType, "address/10.96.0.44:50051")
	bad.fails("Unauthenticated", "audience")
	a.Kubectl("-n", "shop", "delete", "pod", "web-1", "--grace-period=0", "--force")
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
