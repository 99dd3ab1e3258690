// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package interop

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// goServer is the command line of grpc-go's interop server.
func goServer(port int) []string { return []string{programs.server, "-port=" + strconv.Itoa(port)} }

// startServer starts an interop server and returns its port. It ends with the test.
func startServer(t *testing.T, command func(port int) []string) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	args := command(port)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			conn.Close()
			return port
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v does not listen: %v", args, err)
		}
	}
}

// service writes a Service with one endpoint on loopback for each port, as an EndpointSlice each: ports are a slice's, not an endpoint's.
func service(dir, name, clusterIP string, ports []int) error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %s, namespace: interop}
spec:
  clusterIP: %s
  ports: [{name: grpc, port: 50051}]
`, name, clusterIP)
	for _, port := range ports {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, namespace: interop, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: grpc, port: %d, protocol: TCP}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
`, name, port, name, port)
	}
	return os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(b.String()), 0o644)
}
