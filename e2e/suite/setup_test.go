// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
	"evenkeel.dev/e2e/testapp/images"
)

// keepEnv leaves the cluster of a run for a look at it.
const keepEnv = "EVENKEEL_E2E_KEEP"

// suite is one cluster with Evenkeel installed.
type suite struct {
	c    *cluster.Cluster
	root string // the checkout
}

func TestEvenkeel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the cluster is made of namespaces and cgroups")
	}
	s := start(t, "suite")
	for _, sub := range []struct {
		name string
		f    func(*testing.T, *suite)
	}{
		{"Installed", testInstalled},
		{"PodWithoutLabelIsUntouched", testUntouched},
		{"BadValuesAndManifestsAreNamed", testBadInput},
		{"EachClientIsBalanced", testBalanced},
		{"NewServersGetTheirShare", testScaleOut},
		{"HeadlessIsBalanced", testHeadless},
		{"StatefulSetNameReachesThatPod", testStatefulSetName},
		{"PodCallsItsOwnService", testOwnService},
		{"TLSAndHTTP1PassThrough", testPassThrough},
		{"KilledWorkerIsBackWithinASecond", testKilledWorker},
		{"KilledSidecarFailsOpen", testKilledSidecar},
		{"ControlPlaneAway", testControlPlaneAway},
		{"ServiceMadeAndDeleted", testServiceMadeAndDeleted},
		{"UninstallLeavesNothing", testUninstall},
	} {
		if !t.Run(sub.name, func(t *testing.T) { sub.f(t, s) }) {
			s.dump(t, sub.name)
			return // what follows builds on it
		}
	}
}

// start builds everything and starts a cluster that has the images; more are
// builders of images which only some tests need.
func start(t *testing.T, name string, more ...func(context.Context, images.Config) (string, error)) *suite {
	ctx := t.Context()
	s := &suite{}
	var err error
	if s.root, err = filepath.Abs("../.."); err != nil {
		t.Fatal(err)
	}
	progress := func(line string) { t.Log(line) }
	cfg := cluster.Config{Name: name, Progress: progress}
	if err := cluster.Build(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	archives := s.images(t, more...)
	if s.c, err = cluster.Start(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background() // t's is over
		if os.Getenv(keepEnv) != "" {
			t.Logf("%s is set: the cluster stays; kubeconfig %s", keepEnv, s.c.Kubeconfig())
			if err := s.c.Detach(); err != nil {
				t.Error(err)
			}
			return
		}
		if err := s.c.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := s.c.LoadImage(ctx, archives...); err != nil {
		t.Fatal(err)
	}
	return s
}

// images builds Evenkeel's images with the command that users have, and those of
// the test programs.
func (s *suite) images(t *testing.T, more ...func(context.Context, images.Config) (string, error)) []string {
	ctx := t.Context()
	out := t.TempDir()
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/internal/images", "--out="+out, "--registry=e2e.local", "--version=e2e")
	cmd.Dir = s.root
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("images: %v\n%s", err, b)
	}
	var archives []string
	for _, name := range []string{"sidecar", "redirect", "injector", "xds"} {
		archives = append(archives, filepath.Join(out, name+".tar"))
	}
	cfg := images.Config{Progress: func(line string) { t.Log(line) }}
	for _, build := range append(more, images.Go, images.Python) {
		archive, err := build(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, archive)
	}
	return archives
}

// dump keeps what explains a failure.
func (s *suite) dump(t *testing.T, name string) {
	dir := filepath.Join(s.root, "bin", "logs", "e2e-dump", name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := s.c.Dump(ctx, dir); err != nil {
		t.Logf("dump is not whole: %v", err)
	}
	t.Logf("cluster's objects and logs: %s", dir)
}

// install installs the chart; more are values, "key=value".
func (s *suite) install(t *testing.T, more ...string) {
	t.Helper()
	args := []string{
		"install", "evenkeel", s.root + "/charts/evenkeel", "-n", "evenkeel-system", "--create-namespace",
		"--set", "image.registry=e2e.local,image.tag=e2e,image.pullPolicy=Never", "--wait", "--timeout=2m",
	}
	for _, v := range more {
		args = append(args, "--set", v)
	}
	if _, err := s.c.Helm(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// waitCA waits until a labelled namespace has what its pods need.
func (s *suite) waitCA(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, 30*time.Second, "the CA reaches the labelled namespace "+namespace, func() error {
		out, err := s.c.Kubectl(t.Context(), "-n", namespace, "get", "configmap", "evenkeel-ca", "-o", `jsonpath={.data.ca\.crt}`)
		if err == nil && !strings.Contains(out, "BEGIN CERTIFICATE") {
			err = fmt.Errorf("ca.crt is %q", out)
		}
		return err
	})
}

func (s *suite) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *suite) apply(t *testing.T, namespace, manifest string) {
	t.Helper()
	if _, err := s.c.KubectlInput(t.Context(), manifest, "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// delete removes what apply made. After a failure it stays, for the dump.
func (s *suite) delete(t *testing.T, namespace, manifest string) {
	t.Helper()
	if t.Failed() {
		return
	}
	if _, err := s.c.KubectlInput(t.Context(), manifest, "delete", "-n", namespace, "--ignore-not-found", "--wait=true", "--timeout=90s", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) pods(t *testing.T, namespace, app string, n int) []cluster.Pod {
	t.Helper()
	pods, err := s.c.WaitPods(t.Context(), namespace, "app="+app, n, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// eventually polls until f has no error.
func eventually(t *testing.T, within time.Duration, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, within, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
