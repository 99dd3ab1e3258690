// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"evenkeel.dev/sidecar"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/rollout"
	"evenkeel.dev/xds/server"
	"evenkeel.dev/xds/watch"
)

// replica is one of several control planes over the same manifests, on TLS. It
// believes who a sidecar says it is: there is nobody to issue tokens.
type replica struct{ stop func() }

func startReplica(t *testing.T, name, dir string, ln net.Listener, creds credentials.TransportCredentials) *replica {
	t.Helper()
	files, err := watch.NewFiles(watch.FilesConfig{Logger: quiet, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := rollout.New(rollout.Config{Logger: quiet, Replica: name, Settle: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Config{Logger: quiet, Observer: tracker, Tracker: tracker})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{}
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return files.Run(ctx, srv) })
	g.Go(func() error { return tracker.Run(ctx, srv) })
	g.Go(func() error { return srv.Serve(ctx, ln, creds) })
	ended := false
	r.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("replica %s: %v", name, err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// selfSigned is a certificate for ip, and itself as the CA that a sidecar reads.
func selfSigned(t *testing.T, ip string) (credentials.TransportCredentials, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{netip.MustParseAddr(ip).AsSlice()},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestTwoReplicas: both hear of every endpoint, both have a say, and one that is
// killed is not waited for.
func TestTwoReplicas(t *testing.T) {
	port, calls := startBackends(t, 2)
	c := &cluster{t: t, port: port, dir: t.TempDir()}

	// The first one's address is also the Service's: it is what sidecars dial.
	ln1, err := net.Listen("tcp4", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	xdsPort := ln1.Addr().(*net.TCPAddr).Port
	ln2, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.10:%d", xdsPort))
	if err != nil {
		t.Fatal(err)
	}
	self := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: evenkeel-xds, namespace: evenkeel-system}
spec: {clusterIP: 127.0.0.9, ports: [{port: %d}], selector: {app: xds}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: evenkeel-xds-1, namespace: evenkeel-system, labels: {kubernetes.io/service-name: evenkeel-xds}}
addressType: IPv4
ports: [{port: %d}]
endpoints: [{addresses: [127.0.0.9], conditions: {ready: true}}, {addresses: [127.0.0.10], conditions: {ready: true}}]
`, xdsPort, xdsPort)
	if err := os.WriteFile(filepath.Join(c.dir, "xds.yaml"), []byte(self), 0o644); err != nil {
		t.Fatal(err)
	}
	old, fresh := serverPod{n: 2, appReady: true, ready: true}, serverPod{n: 3, appReady: true}
	c.write(old)
	creds, ca := selfSigned(t, "127.0.0.9")
	startReplica(t, "xds-a", c.dir, ln1, creds)
	second := startReplica(t, "xds-b", c.dir, ln2, creds)

	secrets := t.TempDir()
	tls := []string{"--xds-ca=" + filepath.Join(secrets, "ca"), "--xds-token=" + filepath.Join(secrets, "token")}
	for name, text := range map[string][]byte{"ca": ca, "token": []byte("none")} {
		if err := os.WriteFile(filepath.Join(secrets, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := ln1.Addr().String()
	app := prepare(t, target, append(tls, "--pod-uid=uid-client", "--workload=cart")...)
	app.launch()
	rpcs, _ := client(t, app)
	eventually(t, "the client is served", func() bool { return check(t, rpcs) == nil })
	streams := func(p *process, n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d replicas are reported to", n), func() bool {
			_, metrics := get(t, "http://"+p.pod+"/metrics")
			return strings.Contains(metrics, fmt.Sprintf("evenkeel_discovery_report_streams %d\n", n))
		})
	}
	streams(app, 2)

	// Another pod of the same workload is connected before its app starts.
	twin := prepare(t, target, append(tls, "--pod=client-2", "--pod-uid=uid-twin", "--workload=cart")...)
	twin.launch()
	if out, err := command("wait", "--debug="+twin.debug, "--timeout="+patience.String()).CombinedOutput(); err != nil || !strings.Contains(string(out), "the sidecar serves after") {
		t.Errorf("wait: %v: %s", err, out)
	}
	_, endpoints := get(t, "http://"+twin.debug+"/debug/endpoints")
	var snap sidecar.Snapshot
	if err := json.Unmarshal([]byte(endpoints), &snap); err != nil {
		t.Fatal(err)
	}
	if len(snap.Services) != 1 || len(snap.Services[0].Endpoints) != 1 || snap.Services[0].Endpoints[0].Sessions != 1 {
		t.Errorf("the learned upstream when the app starts: %s", endpoints)
	}

	c.write(old, fresh)
	server := prepare(t, target, append(tls, "--pod="+fresh.name(), "--pod-uid="+fresh.uid(), "--drain-min=0s")...)
	server.cmd.Env = append(server.cmd.Environ(), xds.EnvHoldSecret+"="+secret)
	server.launch()
	if l := server.waitForHold("ready", 1); l.Reason != "answered" {
		t.Errorf("ready because %q", l.Reason)
	}
	streams(server, 2)
	fresh.ready = true
	c.write(old, fresh)
	eventually(t, "it has its share", func() bool {
		if err := check(t, rpcs); err != nil {
			t.Fatal(err)
		}
		return calls()[1] > 0
	})

	end := openStreams(t, rpcs)
	fresh.deleted = true
	c.write(old, fresh)
	hook := callHold(t, server)
	time.Sleep(300 * time.Millisecond)
	second.stop()
	streams(server, 1)
	select {
	case err := <-hook:
		t.Fatalf("released with RPCs in flight, when one of two replicas was stopped: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	end()
	begin := time.Now()
	if err := <-hook; err != nil {
		t.Errorf("the hook: %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("released %s after the last RPC", d)
	}
	if l := server.waitForHold("drain", 1); l.Reason != "answered" {
		t.Errorf("drained because %q", l.Reason)
	}
}
