// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"evenkeel.dev/cmd/internal/run"
)

const goodFile = `
sidecarImage: ghcr.io/evenkeel/sidecar:test
initImage: ghcr.io/evenkeel/redirect:test
xdsAddress: evenkeel-xds.evenkeel-system.svc:15950
`

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "injector.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestParseFlags(t *testing.T) {
	cfg, inject, err := parseFlags([]string{"--namespace=evenkeel-system", "--config=" + file(t, goodFile), "--log-level=debug"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.WebhookListen != ":15955" || cfg.AdminListen != ":15956" || cfg.Namespace != "evenkeel-system" {
		t.Errorf("config = %+v", cfg)
	}
	if inject.OutboundPorts[0] != 50051 || inject.Resources.MemoryLimit.String() != "256Mi" {
		t.Errorf("inject = %+v", inject)
	}
}

// TestMistakes: each is named, and all are told at once.
func TestMistakes(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		file string
		want []string
	}{
		{
			"several flags",
			[]string{"--webhook-listen=15955", "--admin-listen=x", "--shutdown-delay=-1s", "extra"},
			goodFile,
			[]string{"--namespace is missing", `--webhook-listen="15955"`, `--admin-listen="x"`, "--shutdown-delay", `"extra"`},
		},
		{"unknown flag", []string{"--namespaces=x"}, goodFile, []string{"-namespaces"}},
		{"unknown key", []string{"--namespace=x"}, goodFile + "sidecarImag: x\n", []string{"sidecarImag"}},
		{"wrong type", []string{"--namespace=x"}, goodFile + "outboundPorts: [a]\n", []string{"outboundPorts"}},
		{"several values", []string{"--namespace=x"}, `
sidecarImage: a b
imagePullPolicy: Sometimes
imagePullSecrets: [UPPER]
xdsAddress: xds
outboundPorts: [50051, 50051]
startTimeout: 1h
readyTimeout: 11m
drainTimeout: -1s
drainMin: never
drainStreams: 25h
logLevel: loud
logFormat: xml
cgroupRoot: sys
resources: {cpuRequest: "3", memoryLimit: 8Mi}
`, []string{"sidecarImage", "initImage", "imagePullPolicy", "imagePullSecrets[0]", "xdsAddress", "outboundPorts: port 50051 is there twice", "startTimeout", "readyTimeout", "drainTimeout", "drainMin", "drainStreams", "logLevel", "logFormat", "cgroupRoot", "resources.cpuRequest", "resources.memoryLimit"}},
		{"own port", []string{"--namespace=x"}, goodFile + "outboundPorts: [15952]\n", []string{"outboundPorts: port 15952 is Evenkeel's own"}},
		{"empty file", []string{"--namespace=x"}, " \n", []string{"configuration is empty"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Main(t.Context(), append([]string{"run", "--config=" + file(t, tc.file)}, tc.args...), &out, &errOut)
			if code != run.Misused || out.Len() != 0 {
				t.Errorf("status %d, stdout %q", code, out.String())
			}
			for _, w := range tc.want {
				if !strings.Contains(errOut.String(), w) {
					t.Errorf("no word of %q in:\n%s", w, errOut.String())
				}
			}
		})
	}
}

// TestNameservers: those of this pod are the cluster's, those of a machine are not.
func TestNameservers(t *testing.T) {
	conf := file(t, "# made by the kubelet\nsearch a.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver ::ffff:10.96.0.11\nnameserver x\nnameserver\noptions ndots:5\n")
	for _, tc := range []struct {
		cfg  Config
		want string
		errs string
	}{
		{Config{ResolvConf: conf}, "[10.96.0.10 10.96.0.11]", ""},
		{Config{ResolvConf: conf, Kubeconfig: "x"}, "[]", ""},
		{Config{}, "[]", ""},
		{Config{ResolvConf: "/nowhere"}, "[]", "--resolv-conf: open /nowhere"},
	} {
		got, err := tc.cfg.nameservers()
		if fmt.Sprint(got) != tc.want || (err != nil) != (tc.errs != "") || err != nil && !strings.Contains(err.Error(), tc.errs) {
			t.Errorf("%+v: %v, %v; want %s, %q", tc.cfg, got, err, tc.want, tc.errs)
		}
	}
}

func TestNoFile(t *testing.T) {
	var out, errOut bytes.Buffer
	if code := Main(t.Context(), []string{"run", "--namespace=x", "--config=/nowhere.yaml"}, &out, &errOut); code != run.Misused ||
		!strings.Contains(errOut.String(), "--config: open /nowhere.yaml") {
		t.Errorf("status %d: %s", code, errOut.String())
	}
}

// TestNoCluster: without credentials it ends with what to do, not with a panic.
func TestNoCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out, errOut bytes.Buffer
	code := Main(t.Context(), []string{"run", "--namespace=x", "--config=" + file(t, goodFile)}, &out, &errOut)
	if code != run.Failed || !strings.Contains(errOut.String(), "--kubeconfig") {
		t.Errorf("status %d: %s", code, errOut.String())
	}
}

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		args      []string
		code      int
		out, errs string
	}{
		{nil, run.Misused, "", "Usage:"},
		{[]string{"--version"}, run.OK, "injector ", ""},
		{[]string{"version"}, run.OK, "injector ", ""},
		{[]string{"--help"}, run.OK, "--namespace", ""},
		{[]string{"run", "--help"}, run.OK, "-shutdown-delay", ""},
		{[]string{"inject"}, run.Misused, "", `unknown command "inject"`},
	} {
		var out, errOut bytes.Buffer
		if code := Main(t.Context(), tc.args, &out, &errOut); code != tc.code || !strings.Contains(out.String(), tc.out) || !strings.Contains(errOut.String(), tc.errs) {
			t.Errorf("%q: status %d, stdout %q, stderr %q", tc.args, code, out.String(), errOut.String())
		}
	}
}
