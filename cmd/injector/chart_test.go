// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/cmd/internal/sidecarcmd"
	"evenkeel.dev/injector"
	"evenkeel.dev/injector/certs"
	"evenkeel.dev/xds"
)

const chart = "../../charts/evenkeel"

func template(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(chart, "templates", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestChartDefaults: what the chart's values say by default is what the program
// does by default.
func TestChartDefaults(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Injection struct {
			OutboundPorts []uint16        `json:"outboundPorts"`
			StartTimeout  metav1.Duration `json:"startTimeout"`
			ReadyTimeout  metav1.Duration `json:"readyTimeout"`
			DrainTimeout  metav1.Duration `json:"drainTimeout"`
			DrainMin      string          `json:"drainMin"`
			DrainStreams  metav1.Duration `json:"drainStreams"`
			Log           struct{ Level, Format string }
			CgroupRoot    string             `json:"cgroupRoot"`
			Resources     injector.Resources `json:"resources"`
		}
	}
	if err := yaml.Unmarshal(b, &values); err != nil {
		t.Fatal(err)
	}
	i := values.Injection
	fromChart := &injector.Config{
		OutboundPorts: i.OutboundPorts, StartTimeout: i.StartTimeout,
		ReadyTimeout: i.ReadyTimeout, DrainTimeout: &i.DrainTimeout, DrainMin: i.DrainMin, DrainStreams: i.DrainStreams,
		LogLevel: i.Log.Level, LogFormat: i.Log.Format, CgroupRoot: i.CgroupRoot, Resources: i.Resources,
	}
	got, want := encode(t, fromChart.WithDefaults()), encode(t, (&injector.Config{}).WithDefaults())
	if got != want {
		t.Errorf("the chart's defaults differ from the program's:\nchart   %s\nprogram %s", got, want)
	}
}

func encode(t *testing.T, c *injector.Config) string {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestChartFlags: the chart starts the injector with flags that it has.
func TestChartFlags(t *testing.T) {
	fs := newFlags(&Config{})
	flags := regexp.MustCompile(`(?m)^- --([a-z-]+)=`).FindAllStringSubmatch(template(t, "injector-deployment.yaml"), -1)
	if len(flags) < 5 {
		t.Fatalf("only %d flags found in the template", len(flags))
	}
	for _, f := range flags {
		if fs.Lookup(f[1]) == nil {
			t.Errorf("the chart uses --%s, which the injector does not have", f[1])
		}
	}
}

// TestChartFile: the file that the chart writes has the keys that the program reads.
func TestChartFile(t *testing.T) {
	_, file, _ := strings.Cut(template(t, "injector-config.yaml"), "injector.yaml: |\n")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^ {4}([a-zA-Z]+):`).FindAllStringSubmatch(file, -1) {
		got = append(got, m[1])
	}
	var want []string
	for f := range reflect.TypeFor[injector.Config]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, key)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("keys differ:\nchart   %q\nprogram %q", got, want)
	}
}

// TestChartNames: the names in the chart's roles are those that the program uses.
func TestChartNames(t *testing.T) {
	rbac := template(t, "injector-rbac.yaml")
	for _, want := range []string{
		"resourceNames: [" + strings.Join([]string{certs.RootSecret, certs.XDSSecret, certs.InjectorSecret}, ", ") + "]",
		"resourceNames: [" + certs.TrustConfigMap + "]",
	} {
		if !strings.Contains(rbac, want) {
			t.Errorf("no %q in the injector's roles", want)
		}
	}
	if !strings.Contains(template(t, "injector-webhook.yaml"), "path: "+injector.WebhookPath+",") {
		t.Errorf("the webhook's configuration does not call %s", injector.WebhookPath)
	}
	if injector.TrustConfigMap != certs.TrustConfigMap || injector.TrustKey != certs.TrustKey {
		t.Error("pods mount another ConfigMap than is published")
	}
}

// TestSidecarFlags: pods start the sidecar with flags that it has.
func TestSidecarFlags(t *testing.T) {
	cfg, err := injector.ParseConfig([]byte(goodFile))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
	ns := &injector.Namespace{Name: "shop", Labels: map[string]string{xds.InjectLabel: xds.InjectLabelEnabled}}
	r := injector.Mutate(pod, ns, &injector.Cluster{OwnNamespace: "evenkeel-system"}, cfg, "00112233445566778899aabbccddeeff")
	if r.Outcome != injector.Injected {
		t.Fatal(r.Reason)
	}
	sidecar := r.Pod.Spec.InitContainers[1]
	for _, args := range [][]string{sidecar.Args, sidecar.Lifecycle.PostStart.Exec.Command[1:]} {
		var out, errOut bytes.Buffer
		// Flags are read in order: --help at the end is reached if all before it are known.
		if code := sidecarcmd.Main(t.Context(), append(slices.Clone(args), "--help"), &out, &errOut); code != run.OK {
			t.Errorf("sidecar %q: status %d: %s", args, code, errOut.String())
		}
	}
}
