// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"evenkeel.dev/xds/snapshot"
)

func TestConvertServiceExposureAndSelector(t *testing.T) {
	selector := map[string]string{"app": "cart"}
	for name, tt := range map[string]struct {
		spec     corev1.ServiceSpec
		external bool
		selector snapshot.Labels
	}{
		"ClusterIP":         {corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: selector}, false, snapshot.NewLabels(selector)},
		"headless":          {corev1.ServiceSpec{ClusterIP: "None", Selector: selector}, false, snapshot.NewLabels(selector)},
		"NodePort":          {corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1"}, true, snapshot.Labels{}},
		"LoadBalancer":      {corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1"}, true, snapshot.Labels{}},
		"externalIPs":       {corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.1"}}, true, snapshot.Labels{}},
		"ExternalName, its": {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "x.example", Selector: selector}, false, snapshot.Labels{}},
	} {
		c, ps := convertService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop"}, Spec: tt.spec})
		if len(ps) > 0 || c.Service.External != tt.external || c.Service.Selector != tt.selector {
			t.Errorf("%s: external %v, selector %v, problems %v", name, c.Service.External, c.Service.Selector, ps)
		}
	}
}

func TestConvertPodDeletion(t *testing.T) {
	grace := int64(45)
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "shop", Labels: map[string]string{"app": "cart"}, DeletionGracePeriodSeconds: &grace,
	}}
	c, _ := convertPod(o)
	if c.Pod.DeletionGrace != 0 || c.Pod.Terminating || c.Pod.Labels != snapshot.NewLabels(o.Labels) {
		t.Errorf("%+v", c.Pod)
	}
	o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if c, _ := convertPod(o); c.Pod.DeletionGrace != 45*time.Second || !c.Pod.Terminating {
		t.Errorf("deleted: %+v", c.Pod)
	}
	o.DeletionGracePeriodSeconds = nil
	if c, _ := convertPod(o); c.Pod.DeletionGrace != 0 {
		t.Errorf("deleted, no grace told: %+v", c.Pod)
	}
}

// Two Pods do not hold two copies of their node's name, and the memory is bounded.
func TestInterner(t *testing.T) {
	in := interner{seen: map[string]string{}}
	a, b := in.of(string([]byte("node1"))), in.of(string([]byte("node1")))
	if a != "node1" || unsafe.StringData(a) != unsafe.StringData(b) {
		t.Errorf("%q and %q are two strings", a, b)
	}
	for i := range maxInterned + 10 {
		in.of(string([]byte{byte(i), byte(i >> 8), byte(i >> 16), 'x'}))
	}
	if n := len(in.seen); n > maxInterned || n == 0 {
		t.Errorf("%d names are remembered", n)
	}
}
