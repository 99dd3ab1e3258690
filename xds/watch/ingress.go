// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"evenkeel.dev/xds/snapshot"
)

func convertIngress(o *networkingv1.Ingress) (snapshot.Change, problems) {
	key := keyOf(&o.ObjectMeta)
	r := &snapshot.Route{Key: key}
	add := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil && b.Service.Name != "" {
			r.Backends = append(r.Backends, snapshot.ObjectKey{Namespace: key.Namespace, Name: b.Service.Name})
		}
	}
	add(o.Spec.DefaultBackend)
	for i := range o.Spec.Rules {
		if http := o.Spec.Rules[i].HTTP; http != nil {
			for j := range http.Paths {
				add(&http.Paths[j].Backend)
			}
		}
	}
	sortBackends(r)
	return snapshot.Change{Kind: snapshot.KindIngress, Key: key, Route: r}, nil
}

func sortBackends(r *snapshot.Route) {
	slices.SortFunc(r.Backends, snapshot.ObjectKey.Compare)
	r.Backends = slices.Compact(r.Backends)
}

func fromUnstructured(u *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
}
