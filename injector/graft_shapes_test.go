// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What people and other webhooks send may have nulls and empty lists where the
// injector adds something, and elements that only their order tells apart.
func TestGraftOddShapes(t *testing.T) {
	for name, raw := range map[string]string{
		"nulls":         `{"metadata":{"generateName":"a-","labels":null,"annotations":null},"spec":{"initContainers":null,"volumes":null,"imagePullSecrets":null,"containers":[{"name":"app","image":"a"}]}}`,
		"empty lists":   `{"metadata":{"labels":{}},"spec":{"initContainers":[],"volumes":[],"imagePullSecrets":[],"containers":[{"name":"app","image":"a"}]}}`,
		"nothing":       `{"metadata":{},"spec":{"containers":[{"name":"app","image":"a"}]}}`,
		"unknown field": `{"metadata":{},"spec":{"futureField":{"a":[1]},"initContainers":[{"name":"x","image":"i","futureField":1},{"name":"y","image":"i"}],"containers":[{"name":"app","image":"a","futureField":[1]}]}}`,
		"twice in env":  `{"metadata":{},"spec":{"containers":[{"name":"app","image":"a","env":[{"name":"A","value":"1"},{"name":"B","value":"$(A)"},{"name":"A","value":"2"}],"ports":[{"containerPort":53,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"}]}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := json.Unmarshal([]byte(raw), pod); err != nil {
				t.Fatal(err)
			}
			cfg := (&Config{SidecarImage: "s", InitImage: "i", XDSAddress: "x:1", ImagePullSecrets: []string{"pull"}}).WithDefaults()
			res := Mutate(pod, &Namespace{Name: "shop", Labels: map[string]string{"evenkeel.dev/inject": "enabled"}}, &Cluster{OwnNamespace: "own"}, cfg, testSecret)
			patched, err := graft([]byte(raw), pod, res.Pod)
			if err != nil {
				t.Fatal(err)
			}
			var before, after map[string]any
			if err := json.Unmarshal([]byte(raw), &before); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(patched, &after); err != nil {
				t.Fatal(err)
			}
			spec, was := after["spec"].(map[string]any), before["spec"].(map[string]any)
			inits, _ := spec["initContainers"].([]any)
			old, _ := was["initContainers"].([]any)
			if len(inits) != len(old)+2 {
				t.Fatalf("init containers: %v", inits)
			}
			for i, want := range []string{"evenkeel-init", "evenkeel-sidecar"} {
				if got := inits[i].(map[string]any)["name"]; got != want {
					t.Errorf("initContainers[%d] is %v, want %s", i, got, want)
				}
			}
			same(t, "the user's init containers", inits[2:], append([]any{}, old...))
			containers, _ := spec["containers"].([]any)
			for _, c := range containers {
				delete(c.(map[string]any), "lifecycle") // ours: none of these pods has one
			}
			same(t, "containers", spec["containers"], was["containers"])
			same(t, "a field that these types do not know", spec["futureField"], was["futureField"])
			if v, _ := spec["volumes"].([]any); len(v) != 4 {
				t.Errorf("volumes: %v", v)
			}
			same(t, "pull secrets", spec["imagePullSecrets"], []any{map[string]any{"name": "pull"}})
			same(t, "labels", after["metadata"].(map[string]any)["labels"], map[string]any{InjectedLabel: "true"})
		})
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}
