// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2spec

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// namespace is the sidecar's and the Service's: so the Service's name alone names it.
const namespace = "h2spec"

// route is a port of the Service "localhost" and where it leads.
type route struct{ port, target int }

// startEvenkeel runs the real control plane on manifests made of the routes, and the real sidecar. It returns once the sidecar is ready.
func startEvenkeel(t *testing.T, listen int, routes []route) {
	t.Helper()
	dir := t.TempDir()
	manifests, state := filepath.Join(dir, "manifests"), filepath.Join(dir, "state")
	for _, d := range []string{manifests, state} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(manifests, "localhost.yaml"), []byte(service(routes)), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + filepath.Join(dir, "xds.sock")
	pod := "127.0.0.1:" + strconv.Itoa(freePorts(t, 1))
	start(t, programs.xds, "run", "--files="+manifests, "--listen="+socket, "--admin-listen=127.0.0.1:0")
	start(t, programs.sidecar, "run", "--listen-port="+strconv.Itoa(listen), "--pod-listen="+pod, "--debug-listen=127.0.0.1:0",
		"--xds="+socket, "--namespace="+namespace, "--pod=judge", "--state-dir="+state, "--log-level=warn")
	within(t, 30*time.Second, "the sidecar is ready", func() error {
		resp, err := http.Get("http://" + pod + "/ready")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/ready: %s", resp.Status)
		}
		return nil
	})
}

// service is the Service "localhost" and one EndpointSlice that leads each of its ports to this machine's.
func service(routes []route) string {
	var ports, slices strings.Builder
	for _, r := range routes {
		fmt.Fprintf(&ports, "  - {name: p%d, port: %d}\n", r.port, r.port)
		fmt.Fprintf(&slices, "- {name: p%d, port: %d, protocol: TCP}\n", r.port, r.target)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: localhost, namespace: %[1]s}
spec:
  clusterIP: 10.96.7.7
  ports:
%[2]s---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: localhost-0, namespace: %[1]s, labels: {kubernetes.io/service-name: localhost}}
addressType: IPv4
ports:
%[3]sendpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
`, namespace, ports.String(), slices.String())
}

// start runs a daemon until the test ends.
func start(t *testing.T, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	})
}

// freePorts returns the first of n ports in a row that nobody listens on now.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		ln, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			t.Fatal(err)
		}
		first := ln.Addr().(*net.TCPAddr).Port
		held := []net.Listener{ln}
		for p := first + 1; p < first+n && p < 1<<16; p++ {
			if ln, err = net.Listen("tcp", "localhost:"+strconv.Itoa(p)); err != nil {
				break
			}
			held = append(held, ln)
		}
		for _, ln := range held {
			ln.Close()
		}
		if len(held) == n {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// within fails the test unless ok comes to return nil.
func within(t *testing.T, limit time.Duration, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", limit, what, err)
		}
	}
}
