// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"evenkeel.dev/xds/snapshot"
)

const (
	benchWorkloads = 200
	benchReplicas  = 100
)

// benchPod is a Pod as it comes off the wire: no text shares memory with another's.
func benchPod(workload, replica int) *corev1.Pod {
	app := fmt.Sprintf("service-%d", workload)
	ip := fmt.Sprintf("10.%d.%d.%d", workload/250, workload%250, replica)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", workload/20), Name: fmt.Sprintf("%s-7d9fbc6f4-%05d", app, replica),
			UID: types.UID(fmt.Sprintf("6f1c1d0e-3a52-4a51-%04d-%012d", workload, replica)), ResourceVersion: fmt.Sprint(1e6 + workload*1000 + replica),
			Labels: map[string]string{
				"app": app, "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": fmt.Sprintf("product-%d", workload/20),
				"app.kubernetes.io/version": fmt.Sprintf("v1.%d.0", workload%7), "pod-template-hash": "7d9fbc6f4",
			},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", (workload+replica)%500), Containers: []corev1.Container{{Name: "app"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Ready: true}},
		},
	}
}

func benchService(workload int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	first := benchPod(workload, 0)
	app := first.Labels["app"]
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: first.Namespace, Name: app, ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			ClusterIP: fmt.Sprintf("10.96.%d.%d", workload/250, workload%250), Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Name: "grpc", Port: 50051}},
		},
	}
	name, port := "grpc", int32(50051)
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: first.Namespace, Name: app + "-x7k2p", Labels: map[string]string{discoveryv1.LabelServiceName: app}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for r := range benchReplicas {
		p := benchPod(workload, r)
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Status.PodIP}, NodeName: &p.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	}
	return svc, sl
}

// BenchmarkMemory is what a Pod costs while it is watched: the informer's item, the
// snapshot's indexes, and its part of its Service and EndpointSlice.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		before := heap()
		store := snapshot.NewStore(snapshot.Config{})
		items := make(map[string]any, benchWorkloads*(benchReplicas+2))
		keep := func(obj metav1.Object) {
			it, err := trim(obj)
			if err != nil {
				b.Fatal(err)
			}
			store.Apply(it.(*item).change)
			items[fmt.Sprintf("%T %s/%s", obj, obj.GetNamespace(), obj.GetName())] = it
		}
		for w := range benchWorkloads {
			svc, sl := benchService(w)
			keep(svc)
			keep(sl)
			for r := range benchReplicas {
				keep(benchPod(w, r))
			}
			store.Drain()
		}
		b.ReportMetric(float64(heap()-before)/(benchWorkloads*benchReplicas), "B/pod")
		runtime.KeepAlive(items)
		runtime.KeepAlive(store)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
