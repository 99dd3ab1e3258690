// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package apiserver starts a real API server for tests: the kube-apiserver and etcd
// that `make cluster` has built into the user's cache.
package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a real etcd and kube-apiserver on loopback. It ends with the test.
type Server struct {
	t     *testing.T
	dir   string
	serve []string // the API server's command line
	port  int
	api   *exec.Cmd
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

// Start starts both and returns when they answer; the test is skipped where the binaries
// were not built. user and groups are who the token "xds" belongs to, besides
// "admin", who may do everything.
func Start(t *testing.T, user, groups string) *Server {
	t.Helper()
	a := &Server{t: t, dir: t.TempDir()}
	etcd, peer := "http://127.0.0.1:"+fmt.Sprint(FreePort(t)), "http://127.0.0.1:"+fmt.Sprint(FreePort(t))
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
	keyFile := a.Write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	tokens := a.Write("tokens", fmt.Sprintf("admin,admin,1,system:masters\nxds,%s,2,%s\n", user, groups))
	a.port = FreePort(t)
	a.serve = []string{
		"--etcd-servers=" + etcd, fmt.Sprintf("--secure-port=%d", a.port), "--bind-address=127.0.0.1", "--cert-dir=" + filepath.Join(a.dir, "certs"),
		"--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + keyFile, "--service-account-signing-key-file=" + keyFile, "--service-cluster-ip-range=10.96.0.0/16",
	}
	a.Resume()
	return a
}

// FreePort returns a TCP port of loopback that was free a moment ago.
func FreePort(t *testing.T) int {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port
}

func (a *Server) start(name string, args ...string) *exec.Cmd {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(a.t.Context()), program(a.t, name), args...) // the clean-up ends it
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

// Stop ends the API server as a lost machine does; etcd goes on.
func (a *Server) Stop() {
	_ = a.api.Process.Kill()
	_ = a.api.Wait()
}

// Resume starts the API server again.
func (a *Server) Resume() {
	a.t.Helper()
	a.api = a.start("kube-apiserver", a.serve...)
	a.Until(2*time.Minute, "the API server is ready", func() bool {
		_, err := a.Try("get", "--raw", "/readyz")
		return err == nil
	})
	a.Until(time.Minute, "the default namespace is there", func() bool {
		_, err := a.Try("get", "namespace", "default")
		return err == nil
	})
}

// Until waits until ok, at most for the bound.
func (a *Server) Until(bound time.Duration, what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

// Write writes a file into the server's own directory and returns its path.
func (a *Server) Write(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// Config writes a kubeconfig for the holder of a token and returns its path.
func (a *Server) Config(token string) string {
	return a.Write(token+".kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:%d', insecure-skip-tls-verify: true}}]\n"+
		"users: [{name: u, user: {token: %s}}]\n", a.port, token))
}

// Try runs kubectl as admin.
func (a *Server) Try(args ...string) (string, error) {
	cmd := exec.CommandContext(a.t.Context(), program(a.t, "kubectl"), append([]string{"--kubeconfig=" + a.Config("admin")}, args...)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Kubectl is Try that must succeed.
func (a *Server) Kubectl(args ...string) string {
	a.t.Helper()
	out, err := a.Try(args...)
	if err != nil {
		a.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// Apply creates or changes objects.
func (a *Server) Apply(yaml string) {
	a.t.Helper()
	a.Kubectl("apply", "--validate=false", "-f", a.Write("apply.yaml", yaml))
}
