// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"evenkeel.dev/xds"
)

// running is a pod without a sidecar; edit makes another one of it.
func running(namespace, name string, edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "a"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if edit != nil {
		edit(pod)
	}
	return pod
}

func label(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[xds.InjectLabel] = value }
}

// census is one on controller-runtime's fake API, which hands out lists in pages
// of a single pod.
type census struct {
	*Census
	client client.Client
	gauges *prometheus.Registry
	log    bytes.Buffer
	lists  []string
	refuse error
}

func newCensus(t *testing.T, objects ...client.Object) *census {
	t.Helper()
	c := &census{gauges: prometheus.NewPedanticRegistry()}
	phase := func(o client.Object) []string { return []string{string(o.(*corev1.Pod).Status.Phase)} }
	c.client = fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Pod{}, "status.phase", phase).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			pods, ok := list.(*corev1.PodList)
			if !ok {
				return w.List(ctx, list, opts...)
			}
			if c.refuse != nil {
				return c.refuse
			}
			var o client.ListOptions
			o.ApplyOptions(opts)
			if o.Limit != censusPage {
				t.Errorf("a list of pods without a bound: %+v", o)
			}
			c.lists = append(c.lists, o.Namespace+"?"+o.LabelSelector.String())
			skip := len(o.Continue)
			o.Continue, o.Limit = "", 0
			if err := w.List(ctx, pods, &o); err != nil {
				return err
			}
			pods.Items = pods.Items[min(skip, len(pods.Items)):]
			if len(pods.Items) > 1 {
				pods.Items, pods.Continue = pods.Items[:1], strings.Repeat("x", skip+1)
			}
			return nil
		},
	}).Build()
	metrics, err := NewMetrics(c.gauges)
	if err != nil {
		t.Fatal(err)
	}
	c.Census = &Census{Namespaces: c.client, Live: c.client, Cluster: testCluster(), Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&c.log, nil))}
	return c
}

func (c *census) metric(t *testing.T) map[string]int {
	t.Helper()
	families, err := c.gauges.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		if f.GetName() == "evenkeel_injector_uninjected_pods" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = int(m.GetGauge().GetValue())
			}
		}
	}
	return got
}

func TestCensusCountsWhoShouldHaveASidecar(t *testing.T) {
	strict := namespace("strict", enabled())
	strict.Labels[podSecurityEnforce] = "restricted"
	c := newCensus(t,
		namespace("shop", enabled()), namespace("full", enabled()), namespace("plain", nil), namespace("evenkeel-system", enabled()), strict,
		running("shop", "old-1", nil), running("shop", "old-2", nil), running("shop", "old-3", label("enabled")),
		running("shop", "refused", label("disabled")),
		running("shop", "injected", func(p *corev1.Pod) { p.Labels[InjectedLabel] = "true" }),
		running("shop", "done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		running("shop", "starts", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		running("shop", "ends", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"x/y"}
		}),
		running("shop", "node", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		running("shop", "taken", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: xds.PortPod}}
		}),
		running("full", "injected", func(p *corev1.Pod) { p.Labels[InjectedLabel] = "true" }),
		running("plain", "no", nil), running("plain", "yes", label("enabled")),
		running("strict", "forbidden", nil), running("evenkeel-system", "own", nil),
	)
	c.take(t.Context())
	if got, want := c.metric(t), map[string]int{"shop": 3, "full": 0, "plain": 1, "strict": 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if want := "pods=\"[old-1 old-2 old-3]\""; !strings.Contains(c.log.String(), want) {
		t.Errorf("no %s in the log:\n%s", want, c.log.String())
	}
	for _, l := range c.lists {
		if ns, selector, _ := strings.Cut(l, "?"); !strings.Contains(selector, "!"+InjectedLabel) || ns == "" && !strings.Contains(selector, xds.InjectLabel+"=enabled") {
			t.Errorf("a list %q asks for pods that nobody counts", l)
		}
	}

	// Told once; no answer changes nothing; what is mended is no longer told.
	told := c.log.Len()
	c.take(t.Context())
	if c.log.Len() != told {
		t.Errorf("told again:\n%s", c.log.String()[told:])
	}
	before := c.metric(t)
	c.refuse = errors.New("connection refused")
	c.take(t.Context())
	if got := c.metric(t); !reflect.DeepEqual(got, before) || !strings.Contains(c.log.String(), "connection refused") {
		t.Errorf("without an answer it says %v, want the last %v and a log line", got, before)
	}
	c.refuse = nil
	for _, name := range []string{"old-1", "old-2", "old-3"} {
		if err := c.client.Delete(t.Context(), running("shop", name, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.client.Delete(t.Context(), running("plain", "yes", nil)); err != nil {
		t.Fatal(err)
	}
	c.take(t.Context())
	if got, want := c.metric(t), map[string]int{"shop": 0, "full": 0, "strict": 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// TestCensusRuns: at once, each minute, until it is told to end.
func TestCensusRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCensus(t, namespace("shop", enabled()))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Start(ctx) }()
		for minute := range 3 {
			synctest.Wait()
			if got, want := c.metric(t), fmt.Sprintf("map[shop:%d]", minute); fmt.Sprint(got) != want {
				t.Errorf("after %d minutes: %v, want %s", minute, got, want)
			}
			if err := c.client.Create(t.Context(), running("shop", fmt.Sprint("late-", minute), nil)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(censusPeriod)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
