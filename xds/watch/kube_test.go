// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"evenkeel.dev/xds/snapshot"
)

// The informers' behaviour against a real API server is tested in
// cmd/internal/xdscmd; here it is ours.

type kubeWorld struct {
	*folder // sink, log and until
	kube    *Kube
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient // routesWorld's
	metrics *prometheus.Registry
}

func newKubeWorld(t *testing.T, client *fake.Clientset) *kubeWorld {
	t.Helper()
	w := &kubeWorld{folder: &folder{t: t, sink: newSink(), log: &logBuffer{}}, client: client, metrics: prometheus.NewRegistry()}
	k, err := newKube(KubeConfig{Logger: slog.New(slog.NewTextHandler(w.log, nil)), Registerer: w.metrics}, client, dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()))
	if err != nil {
		t.Fatal(err)
	}
	w.kube = k
	return w
}

func startKube(t *testing.T, client *fake.Clientset) *kubeWorld {
	t.Helper()
	w := newKubeWorld(t, client)
	w.run()
	return w
}

func (w *kubeWorld) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.kube.Run(ctx, w.sink) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
}

// counter is the value of one series, by its label's value.
func (w *kubeWorld) counter(name, label string) float64 {
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func (w *kubeWorld) wantCounter(name, label string, want float64) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s of %s is %v", name, label, want), func() bool { return w.counter(name, label) == want })
}

func (w *kubeWorld) isSynced() bool {
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	return w.sink.synced == 1
}

func kubeService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", Annotations: map[string]string{}},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 50051}}},
	}
}

func kubePod(name, uid, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: "u"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
}

func TestKube(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "s", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.9"}}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
	w := startKube(t, fake.NewClientset(kubeService("a", "10.96.0.1"), slice, kubePod("p", "u", "10.0.0.9"), node))
	w.until("it is synced", w.isSynced)
	// Synced comes after everything that existed.
	got := w.sink.events()
	slices.Sort(got)
	if want := []string{"EndpointSlice shop/s", "Node n", "Pod shop/p", "Service shop/a"}; !slices.Equal(got, want) {
		t.Fatalf("at first %q, want %q", got, want)
	}
	ctx := t.Context()
	services := w.client.CoreV1().Services("shop")
	if _, err := services.Create(ctx, kubeService("b", "10.96.0.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantServices("a=10.96.0.1 b=10.96.0.2")
	if _, err := services.Update(ctx, kubeService("b", "10.96.0.3"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantServices("a=10.96.0.1 b=10.96.0.3")
	if err := services.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantServices("b=10.96.0.3")

	// A field that cannot be used is logged, counted, and costs nothing else.
	bad := kubeService("c", "10.96.0.4")
	bad.Annotations["balancer.evenkeel.dev/policy"] = "fastest"
	if _, err := services.Create(ctx, bad, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantServices("b=10.96.0.3 c=10.96.0.4")
	w.wantLog("level=WARN", "object=shop/c", "field=metadata.annotations[balancer.evenkeel.dev/policy]", "fastest")
	w.wantGauge("evenkeel_xds_invalid_objects", 1)
	if _, err := services.Update(ctx, kubeService("c", "10.96.0.4"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantGauge("evenkeel_xds_invalid_objects", 0)
	w.wantGauge("evenkeel_xds_watch_age_seconds", 0) // and a few milliseconds
}

// wantGauge wants the whole part of every series of a gauge.
func (w *kubeWorld) wantGauge(name string, want int) {
	w.t.Helper()
	w.until(name, func() bool {
		families, err := w.metrics.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
			ok := len(f.GetMetric()) > 0
			for _, m := range f.GetMetric() {
				ok = ok && int(m.GetGauge().GetValue()) == want
			}
			return ok
		}
		return false
	})
}

// Without the right to list one kind, nothing is served, and the log says which.
func TestKubeWaitsForEveryKind(t *testing.T) {
	client := fake.NewClientset(kubeService("a", "10.96.0.1"))
	client.PrependReactor("list", "endpointslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("endpointslices is forbidden")
	})
	w := startKube(t, client)
	w.wantLog("level=WARN", "watch interrupted", "resource=endpointslices", "is forbidden")
	time.Sleep(50 * time.Millisecond)
	if w.isSynced() || len(w.sink.events()) != 0 {
		t.Errorf("synced without endpoint slices; events %q", w.sink.events())
	}
}

// The informer may know of a deletion only afterwards, by a new list.
func TestKubeTombstones(t *testing.T) {
	k, err := newKube(KubeConfig{Logger: slog.New(slog.DiscardHandler)}, fake.NewClientset(), nil)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := trim(kubePod("p", "u", "10.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := trim(obj)
	if err != nil || again != obj {
		t.Errorf("trimmed twice: %v, %v", again, err)
	}
	h := k.handler()
	h.OnAdd(obj, true)
	changes, _ := k.queue.take()
	if len(changes) != 1 || changes[0].Pod == nil {
		t.Fatalf("%+v", changes)
	}
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/p", Obj: obj})
	changes, _ = k.queue.take()
	if len(changes) != 1 || changes[0].Pod != nil || changes[0].Key != (snapshot.ObjectKey{Namespace: "shop", Name: "p"}) {
		t.Fatalf("%+v", changes)
	}
	// Nonsense must not end the process.
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "shop/p"})
	h.OnAdd("nonsense", false)
	if changes, _ = k.queue.take(); len(changes) != 0 {
		t.Errorf("%+v", changes)
	}
}

// What waits is the newest state of each object, with the time of the first.
func TestQueueCoalesces(t *testing.T) {
	q := newQueue()
	t0 := time.Unix(100, 0)
	key := snapshot.ObjectKey{Namespace: "shop", Name: "a"}
	for i := range 1000 {
		q.put(snapshot.Change{Kind: snapshot.KindService, Key: key, Service: &snapshot.Service{Key: key, Policy: strings.Repeat("x", i)}}, t0.Add(time.Duration(i)))
	}
	changes, first := q.take()
	if len(changes) != 1 || len(changes[0].Service.Policy) != 999 || !first.Equal(t0) {
		t.Errorf("%d changes, first %s", len(changes), first)
	}
}

func TestConvertPodReadiness(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "app"}, {Name: "helper"}},
				InitContainers: []corev1.Container{{Name: "once"}, {Name: "evenkeel-sidecar", RestartPolicy: &always}, {Name: "other", RestartPolicy: &always}},
			},
			Status: corev1.PodStatus{
				Phase:                 corev1.PodRunning,
				ContainerStatuses:     []corev1.ContainerStatus{{Name: "helper", Ready: true}, {Name: "app", Ready: true}},
				InitContainerStatuses: []corev1.ContainerStatus{{Name: "other", Ready: true}, {Name: "evenkeel-sidecar"}},
			},
		}
		change(p)
		return p
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"all but our sidecar":         {func(*corev1.Pod) {}, true},
		"ours too":                    {func(p *corev1.Pod) { p.Status.InitContainerStatuses[1].Ready = true }, true},
		"pending":                     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, false},
		"a container is not ready":    {func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Ready = false }, false},
		"a container has no status":   {func(p *corev1.Pod) { p.Status.ContainerStatuses = p.Status.ContainerStatuses[:1] }, false},
		"another sidecar is not":      {func(p *corev1.Pod) { p.Status.InitContainerStatuses[0].Ready = false }, false},
		"our sidecar as a container":  {func(p *corev1.Pod) { p.Spec.Containers[1].Name = "evenkeel-sidecar" }, true},
		"no containers (not started)": {func(p *corev1.Pod) { p.Spec.Containers = nil }, false},
	} {
		if got := appReady(pod(tt.change)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestConvertPodReadyCondition(t *testing.T) {
	for name, tt := range map[string]struct {
		conditions []corev1.PodCondition
		want       bool
	}{
		"none":          {nil, false},
		"another":       {[]corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}, false},
		"not ready":     {[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}, false},
		"not known":     {[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionUnknown}}, false},
		"ready, behind": {[]corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}, true},
	} {
		c, _ := convertPod(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: tt.conditions}})
		if c.Pod.Ready != tt.want {
			t.Errorf("%s: %v, want %v", name, c.Pod.Ready, tt.want)
		}
	}
}
