// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"evenkeel.dev/xds"
)

// TestGrace: what the hold may take is added to what the app had.
func TestGrace(t *testing.T) {
	for name, tc := range map[string]struct {
		own         *int64
		annotations map[string]string
		want        *int64 // of the pod
		app         string // of the sidecar's flag; empty: none
	}{
		"absent":                {nil, nil, new(int64(60)), "30s"},
		"set":                   {new(int64(7)), nil, new(int64(37)), "7s"},
		"zero":                  {new(int64(0)), nil, new(int64(0)), ""},
		"below zero":            {new(int64(-5)), nil, new(int64(31)), "1s"},
		"an hour":               {new(int64(3600)), nil, new(int64(3630)), "1h0m0s"},
		"for ever":              {new(int64(math.MaxInt64)), nil, new(int64(math.MaxInt64)), "8760h0m0s"},
		"another bound":         {nil, map[string]string{"drain-timeout": "5s"}, new(int64(35)), "30s"},
		"a bound rounded up":    {nil, map[string]string{"drain-timeout": "1500ms"}, new(int64(32)), "30s"},
		"a floor above it":      {nil, map[string]string{"drain-timeout": "5s", "drain-min": "7s"}, new(int64(37)), "30s"},
		"a floor below it":      {nil, map[string]string{"drain-min": "7s"}, new(int64(60)), "30s"},
		"no bound":              {nil, map[string]string{"drain-timeout": "0s"}, nil, ""},
		"no bound, but a floor": {new(int64(9)), map[string]string{"drain-timeout": "0s", "drain-min": "7s"}, new(int64(9)), ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{}}}
		pod.Spec = corev1.PodSpec{TerminationGracePeriodSeconds: tc.own, Containers: []corev1.Container{{Name: "app", Image: "a"}}}
		for k, v := range tc.annotations {
			pod.Annotations[AnnotationPrefix+k] = v
		}
		r := Mutate(pod, &Namespace{Name: "shop", Labels: enabled()}, testCluster(), testConfig(t), testSecret)
		got := r.Pod.Spec.TerminationGracePeriodSeconds
		if (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
			t.Errorf("%s: the pod's grace period is %v, want %v", name, deref(got), deref(tc.want))
		}
		app := ""
		for _, a := range r.Pod.Spec.InitContainers[1].Args {
			if v, ok := strings.CutPrefix(a, "--app-grace="); ok {
				app = v
			}
		}
		if app != tc.app {
			t.Errorf("%s: the app's grace period is %q, want %q", name, app, tc.app)
		}
		if held := r.Pod.Spec.Containers[0].Lifecycle != nil; held != (tc.app != "") {
			t.Errorf("%s: preStop hook: %v", name, held)
		}
	}
}

func deref(p *int64) any {
	if p == nil {
		return "none"
	}
	return *p
}

// TestHelperNeverKeepsAContainerAway: where its mount could not be made, the hook
// stays as it is.
func TestHelperNeverKeepsAContainerAway(t *testing.T) {
	volumes := []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		{Name: "node", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/run"}}},
	}
	for _, tc := range []struct {
		mount corev1.VolumeMount
		held  bool
	}{
		{corev1.VolumeMount{Name: "scratch", MountPath: "/data"}, true},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/var/run"}, true},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/run/"}, true},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/var/run/evenkeel"}, true},
		{corev1.VolumeMount{Name: "conf", MountPath: "/var/run/evenkeel/holder"}, true},
		{corev1.VolumeMount{Name: "node", MountPath: "/var/run/docker.sock"}, true},
		{corev1.VolumeMount{Name: "conf", MountPath: "/var/running"}, true},

		{corev1.VolumeMount{Name: "scratch", MountPath: "/var/run/evenkeel/hold"}, false},
		{corev1.VolumeMount{Name: "scratch", MountPath: "var/run//evenkeel/hold/"}, false},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/run/evenkeel/hold"}, false},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/var/run/evenkeel/hold/more"}, false},
		{corev1.VolumeMount{Name: "scratch", MountPath: "/var/run", ReadOnly: true}, false},
		{corev1.VolumeMount{Name: "conf", MountPath: "/run/evenkeel"}, false},
		{corev1.VolumeMount{Name: "node", MountPath: "/var/run"}, false},
		{corev1.VolumeMount{Name: "node", MountPath: "/var"}, false},
		{corev1.VolumeMount{Name: "node", MountPath: "/"}, false},
		{corev1.VolumeMount{Name: "elsewhere", MountPath: "/run"}, false},
	} {
		command := []string{"/bin/true"}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{xds.InjectLabel: xds.InjectLabelEnabled}}}
		pod.Spec.Volumes = volumes
		pod.Spec.Containers = []corev1.Container{{
			Name: "app", Image: "a", VolumeMounts: []corev1.VolumeMount{tc.mount},
			Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}},
		}}
		r := Mutate(pod, &Namespace{Name: "shop"}, testCluster(), testConfig(t), testSecret)
		c := r.Pod.Spec.Containers[0]
		held := c.Lifecycle.PreStop.Exec.Command[0] == holdBinary
		if held != tc.held || held != (len(c.VolumeMounts) == 2) || held != (len(r.Warnings) == 0) {
			t.Errorf("%s at %s: held %v, mounts %v, warnings %v; want held %v", tc.mount.Name, tc.mount.MountPath, held, c.VolumeMounts, r.Warnings, tc.held)
		}
	}
}
