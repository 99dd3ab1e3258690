// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"evenkeel.dev/injector/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	system = "evenkeel-system"
	day    = 24 * time.Hour
)

// clock is moved by the test alone.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// notes keeps Events as "reason: note".
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, reason+": "+fmt.Sprintf(note, args...))
}

// cluster is a Keeper and a Publisher on controller-runtime's fake API. The real
// API server, its RBAC and its garbage collector are the cluster tests' matter.
type cluster struct {
	client client.Client
	clock  *clock
	keeper *Keeper
	pub    *Publisher
	notes  *notes
	gauges *prometheus.Registry
	cfg    Config
	// refuse makes writes of an object fail.
	refuse func(client.Object) error
	writes int
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	c := &cluster{clock: &clock{now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)}, notes: &notes{}}
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "evenkeel-injector"},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "namespace.inject.evenkeel.dev"}, {Name: "pod.inject.evenkeel.dev"}},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "evenkeel-injector", UID: "role-1"}}
	write := func(o client.Object) error {
		c.writes++
		if c.refuse != nil {
			return c.refuse(o)
		}
		return nil
	}
	c.client = fake.NewClientBuilder().WithObjects(append(objects, webhook, role)...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := write(o); err != nil {
				return err
			}
			return w.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := write(o); err != nil {
				return err
			}
			return w.Update(ctx, o, opts...)
		},
	}).Build()
	c.cfg = Config{
		Namespace: system, Owner: "evenkeel-injector", Now: c.clock.Now,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}.WithDefaults()
	if err := c.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	c.lead(t)
	return c
}

// lead makes a Keeper and a Publisher without memory: the lease's next holder.
func (c *cluster) lead(t *testing.T) {
	t.Helper()
	c.gauges = prometheus.NewPedanticRegistry()
	m, err := NewMetrics(c.gauges)
	if err != nil {
		t.Fatal(err)
	}
	trust := NewTrust()
	c.keeper = &Keeper{Config: c.cfg, Client: c.client, Trust: trust, Events: c.notes, Metrics: m}
	c.pub = &Publisher{Client: c.client, Trust: trust, OwnNamespace: system, Metrics: m, Events: c.notes, Logger: c.cfg.Logger}
}

func (c *cluster) reconcile(t *testing.T) time.Duration {
	t.Helper()
	r, err := c.keeper.Reconcile(t.Context(), reconcile.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if r.RequeueAfter < minSleep || r.RequeueAfter > maxSleep {
		t.Fatalf("sleeps %s, want %s to %s", r.RequeueAfter, minSleep, maxSleep)
	}
	return r.RequeueAfter
}

func (c *cluster) publish(t *testing.T, namespace string) {
	t.Helper()
	if _, err := c.pub.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) get(t *testing.T, namespace, name string, o client.Object) bool {
	t.Helper()
	err := c.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return err == nil
}

func (c *cluster) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	if !c.get(t, system, name, s) {
		t.Fatalf("Secret %s does not exist", name)
	}
	return s
}

func (c *cluster) caBundle(t *testing.T) []byte {
	t.Helper()
	w := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if !c.get(t, "", "evenkeel-injector", w) {
		t.Fatal("no webhook configuration")
	}
	for _, h := range w.Webhooks[1:] {
		if string(h.ClientConfig.CABundle) != string(w.Webhooks[0].ClientConfig.CABundle) {
			t.Error("the webhooks' caBundles differ")
		}
	}
	return w.Webhooks[0].ClientConfig.CABundle
}

func (c *cluster) leaf(t *testing.T, secret string) *pki.Pair {
	t.Helper()
	s := c.secret(t, secret)
	p, err := pki.ParsePair(s.Data[pki.KeyCert], s.Data[pki.KeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return p
}
