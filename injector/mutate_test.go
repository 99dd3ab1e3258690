// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"evenkeel.dev/xds"
)

// fixture is a golden test's input: testdata/NAME.in.yaml.
type fixture struct {
	Namespace struct {
		Name                string
		Labels, Annotations map[string]string
	}
	Pod corev1.Pod
}

// golden is its output: testdata/NAME.out.yaml.
type golden struct {
	Outcome  Outcome
	Reason   Reason      `json:",omitempty"`
	Warnings []string    `json:",omitempty"`
	Pod      *corev1.Pod `json:",omitempty"` // only when injected
}

func fixtures(t testing.TB) map[string]*fixture {
	t.Helper()
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures in testdata: %v", err)
	}
	all := map[string]*fixture{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{}
		if err := yaml.UnmarshalStrict(b, f); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if f.Namespace.Name == "" {
			f.Namespace.Name = "shop"
		}
		all[strings.TrimSuffix(filepath.Base(file), ".in.yaml")] = f
	}
	return all
}

func (f *fixture) namespace() *Namespace {
	return &Namespace{Name: f.Namespace.Name, Labels: f.Namespace.Labels, Annotations: f.Namespace.Annotations}
}

func mutate(t testing.TB, f *fixture) Result {
	t.Helper()
	return Mutate(&f.Pod, f.namespace(), testCluster(), testConfig(t), testSecret)
}

func TestMutate(t *testing.T) {
	for name, f := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			input := f.Pod.DeepCopy()
			r := mutate(t, f)
			if !reflect.DeepEqual(input, &f.Pod) {
				t.Error("Mutate changed its input")
			}
			g := golden{Outcome: r.Outcome, Reason: r.Reason}
			for _, w := range r.Warnings {
				g.Warnings = append(g.Warnings, string(w.Reason)+": "+w.Message)
			}
			if r.Outcome == Injected {
				g.Pod = r.Pod
			} else if r.Pod != &f.Pod {
				t.Error("a skipped pod is not the one that was given")
			}
			got, err := yaml.Marshal(g)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".out.yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (go test ./injector -update writes it)", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("differs from %s (go test ./injector -update, then read the diff):\n%s", file, got)
			}
		})
	}
}

// TestMutateIsIdempotent: the API server calls again after other webhooks, and
// people apply what `kubectl get -o yaml` printed.
func TestMutateIsIdempotent(t *testing.T) {
	for name, f := range fixtures(t) {
		once := mutate(t, f)
		if once.Outcome != Injected {
			continue
		}
		twice := Mutate(once.Pod, f.namespace(), testCluster(), testConfig(t), "another")
		if twice.Outcome != Skipped || twice.Reason != ReasonAlreadyInjected || twice.Pod != once.Pod {
			t.Errorf("%s: a second pass says %s %s", name, twice.Outcome, twice.Reason)
		}
	}
}

// TestContainers checks what no golden file may ever be updated away from.
func TestContainers(t *testing.T) {
	for name, f := range fixtures(t) {
		r := mutate(t, f)
		if r.Outcome != Injected {
			continue
		}
		spec := r.Pod.Spec
		if spec.InitContainers[0].Name != xds.InitContainer || spec.InitContainers[1].Name != xds.SidecarContainer {
			t.Fatalf("%s: our containers are not the first", name)
		}
		if !reflect.DeepEqual(spec.InitContainers[2:], append([]corev1.Container{}, f.Pod.Spec.InitContainers...)) ||
			!reflect.DeepEqual(withoutHold(spec.Containers), withoutHold(f.Pod.Spec.Containers)) {
			t.Errorf("%s: the user's containers were changed", name)
		}
		init, sidecar := spec.InitContainers[0], spec.InitContainers[1]
		if init.RestartPolicy != nil || sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Errorf("%s: the init step must end and the sidecar stay", name)
		}
		for _, c := range []corev1.Container{init, sidecar} {
			s := c.SecurityContext
			if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || *s.Privileged || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s is less confined than it has to be", name, c.Name)
			}
			for _, m := range c.VolumeMounts {
				if !m.ReadOnly && m.Name != volumeState && (m.Name != volumeHold || c.Name != xds.InitContainer) {
					t.Errorf("%s: %s mounts %s writable", name, c.Name, m.Name)
				}
				if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s: %s mounts %s, which does not exist", name, c.Name, m.Name)
				}
			}
		}
		if *init.SecurityContext.RunAsUser != 0 || !slices.Equal(init.SecurityContext.Capabilities.Add, []corev1.Capability{"BPF", "NET_ADMIN"}) {
			t.Errorf("%s: the init step needs uid 0 with BPF and NET_ADMIN and nothing else", name)
		}
		if *sidecar.SecurityContext.RunAsUser == 0 || !*sidecar.SecurityContext.RunAsNonRoot || len(sidecar.SecurityContext.Capabilities.Add) != 0 {
			t.Errorf("%s: the sidecar has privileges", name)
		}
		if slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeCgroup }) {
			t.Errorf("%s: the sidecar sees the node's cgroups", name)
		}
	}
}

// withoutHold leaves out what a hold may change: the preStop hook, and the mount
// of the helper for commands.
func withoutHold(containers []corev1.Container) []corev1.Container {
	var rest []corev1.Container
	for i := range containers {
		c := containers[i].DeepCopy()
		if c.Lifecycle != nil {
			c.Lifecycle.PreStop = nil
			if *c.Lifecycle == (corev1.Lifecycle{}) {
				c.Lifecycle = nil
			}
		}
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeHold })
		if len(c.VolumeMounts) == 0 {
			c.VolumeMounts = nil
		}
		rest = append(rest, *c)
	}
	return rest
}

// TestGraft: the patch gives the API server what Mutate gave, and keeps fields
// of the pod that this program's types do not know.
func TestGraft(t *testing.T) {
	for name, f := range fixtures(t) {
		r := mutate(t, f)
		if r.Outcome != Injected {
			continue
		}
		t.Run(name, func(t *testing.T) {
			raw := rawPod(t, &f.Pod)
			// A field of a later Kubernetes in every place where one may appear.
			visit := func(m map[string]any) { m["fieldOfTheFuture"] = map[string]any{"x": "y"} }
			spec := raw["spec"].(map[string]any)
			visit(raw)
			visit(spec)
			for _, list := range []string{"initContainers", "containers", "volumes"} {
				items, _ := spec[list].([]any)
				for _, item := range items {
					visit(item.(map[string]any))
					// stopSignal was such a field; it is beside the hook that becomes ours.
					if lifecycle, ok := item.(map[string]any)["lifecycle"].(map[string]any); ok {
						visit(lifecycle)
					}
				}
			}
			before, err := json.Marshal(raw)
			if err != nil {
				t.Fatal(err)
			}
			after, err := graft(before, &f.Pod, r.Pod)
			if err != nil {
				t.Fatal(err)
			}
			got := &corev1.Pod{}
			if err := json.Unmarshal(after, got); err != nil {
				t.Fatal(err)
			}
			if want := rawPod(t, r.Pod); !reflect.DeepEqual(rawPod(t, got), want) {
				t.Errorf("grafted pod differs from the mutated one:\ngot  %v\nwant %v", rawPod(t, got), want)
			}
			if n, want := bytes.Count(after, []byte("fieldOfTheFuture")), bytes.Count(before, []byte("fieldOfTheFuture")); n != want {
				t.Errorf("%d of %d unknown fields survived", n, want)
			}
			var out struct {
				Spec struct{ InitContainers []map[string]any }
			}
			if err := json.Unmarshal(after, &out); err != nil {
				t.Fatal(err)
			}
			for i, c := range out.Spec.InitContainers {
				if _, has := c["fieldOfTheFuture"]; has != (i >= 2) {
					t.Errorf("init container %s has another one's field", c["name"])
				}
			}
		})
	}
}

// TestGraftOddLists: lists whose merge key is not unique are legal and stay.
func TestGraftOddLists(t *testing.T) {
	f := fixtures(t)["deployment"]
	c := &f.Pod.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{ContainerPort: 53, Protocol: "UDP"}, {ContainerPort: 53, Protocol: "TCP"}, {ContainerPort: 53, Protocol: "SCTP"}}
	c.Env = []corev1.EnvVar{{Name: "B", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B", Value: "3"}}
	f.Pod.Spec.Tolerations = []corev1.Toleration{{Key: "b"}, {Key: "a"}, {Key: "b"}}
	f.Pod.Spec.HostAliases = []corev1.HostAlias{{IP: "127.0.0.1", Hostnames: []string{"x"}}, {IP: "127.0.0.1", Hostnames: []string{"y"}}}
	r := mutate(t, f)
	before, err := json.Marshal(&f.Pod)
	if err != nil {
		t.Fatal(err)
	}
	after, err := graft(before, &f.Pod, r.Pod)
	if err != nil {
		t.Fatal(err)
	}
	got := &corev1.Pod{}
	if err := json.Unmarshal(after, got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(rawPod(t, got), rawPod(t, r.Pod)) {
		t.Errorf("grafted pod differs:\ngot  %v\nwant %v", rawPod(t, got), rawPod(t, r.Pod))
	}
}

func rawPod(t testing.TB, pod *corev1.Pod) map[string]any {
	t.Helper()
	b, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// applyPatch is what the API server does with a response.
func applyPatch(t testing.TB, raw, patch []byte) *corev1.Pod {
	t.Helper()
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Apply(raw)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(out, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func FuzzAnnotations(f *testing.F) {
	for name := range annotations {
		f.Add(AnnotationPrefix+name, "1")
	}
	f.Add("config.evenkeel.dev/outbound-ports", ",")
	f.Add("config.evenkeel.dev/sidecar-memory", "1e400")
	f.Fuzz(func(t *testing.T, key, value string) {
		base := testConfig(t)
		cfg, warnings := configure(base, nil, map[string]string{key: value})
		if err := cfg.Validate(); err != nil {
			t.Errorf("%q=%q made a configuration that is not valid: %v (warnings %v)", key, value, err, warnings)
		}
		if err := base.Validate(); err != nil {
			t.Errorf("%q=%q changed the base configuration: %v", key, value, err)
		}
	})
}
