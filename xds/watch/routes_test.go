// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"evenkeel.dev/xds/snapshot"
)

func httpRoute(name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"HTTPRoute","metadata":{"name":%q,"namespace":"shop"},"spec":%s}`, name, spec)
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		panic(err)
	}
	return u
}

func TestConvertGatewayRoute(t *testing.T) {
	const gateway = `"parentRefs":[{"name":"gw"}]`
	for name, tt := range map[string]struct {
		spec string
		want string // "Kind namespace/name: backends"
	}{
		"backends of all rules, each once": {
			`{` + gateway + `,"rules":[{"backendRefs":[{"name":"web","port":80},{"name":"cart"}]},{"backendRefs":[{"name":"web"}]},{}]}`, "[shop/cart shop/web]",
		},
		"another namespace":                {`{` + gateway + `,"rules":[{"backendRefs":[{"name":"web","namespace":"bank"}]}]}`, "[bank/web]"},
		"group and kind written out":       {`{` + gateway + `,"rules":[{"backendRefs":[{"group":"","kind":"Service","name":"web"}]}]}`, "[shop/web]"},
		"a backend that is no Service":     {`{` + gateway + `,"rules":[{"backendRefs":[{"group":"x.io","kind":"Bucket","name":"web"}]}]}`, "[]"},
		"no parents yet":                   {`{"rules":[{"backendRefs":[{"name":"web"}]}]}`, "[shop/web]"},
		"no rules":                         {`{` + gateway + `}`, "[]"},
		"for the mesh":                     {`{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[{"backendRefs":[{"name":"web-v2"}]}]}`, "[]"},
		"for the mesh and for a Gateway":   {`{"parentRefs":[{"group":"","kind":"Service","name":"web"},{"name":"gw"}],"rules":[{"backendRefs":[{"name":"web-v2"}]}]}`, "[shop/web-v2]"},
		"of a version that we cannot read": {`{"rules":"none"}`, "[] spec: "},
	} {
		c, ps := convert(httpRoute("r", tt.spec))
		got := fmt.Sprint(c.Route.Backends)
		if len(ps) > 0 {
			got += " " + ps[0].String()
		}
		if c.Kind.String() != "HTTPRoute" || c.Key.String() != "shop/r" || !strings.HasPrefix(got, tt.want) || len(ps) == 0 && got != tt.want {
			t.Errorf("%s: %s %s %s, want %s", name, c.Kind, c.Key, got, tt.want)
		}
	}
	u := httpRoute("r", "{}")
	u.SetKind("UDPRoute")
	if _, ps := convert(u); len(ps) == 0 {
		t.Error("a kind that is not watched was converted")
	}
}

func serviceBackend(name string) networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: name}}
}

func kubeIngress() *networkingv1.Ingress {
	byDefault := serviceBackend("web")
	paths := func(backends ...networkingv1.IngressBackend) networkingv1.IngressRule {
		h := &networkingv1.HTTPIngressRuleValue{}
		for _, b := range backends {
			h.Paths = append(h.Paths, networkingv1.HTTPIngressPath{Backend: b})
		}
		return networkingv1.IngressRule{IngressRuleValue: networkingv1.IngressRuleValue{HTTP: h}}
	}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "i", Namespace: "shop"},
		Spec: networkingv1.IngressSpec{
			DefaultBackend: &byDefault,
			Rules:          []networkingv1.IngressRule{paths(serviceBackend("cart"), serviceBackend("api")), {}, paths(serviceBackend("cart"), networkingv1.IngressBackend{})},
		},
	}
}

func TestConvertIngress(t *testing.T) {
	c, ps := convert(kubeIngress())
	if got := fmt.Sprint(c.Kind, c.Key, c.Route.Backends, ps); got != "Ingress shop/i [shop/api shop/cart shop/web] []" {
		t.Error(got)
	}
}

var (
	ingresses  = &metav1.APIResourceList{GroupVersion: "networking.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "ingresses"}, {Name: "networkpolicies"}}}
	httpRoutes = schema.GroupVersionResource{Group: groupGateway, Version: "v1", Resource: "httproutes"}
	gatewayV1  = &metav1.APIResourceList{GroupVersion: "gateway.networking.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "gateways"}, {Name: "httproutes"}}}
	gatewayB1  = &metav1.APIResourceList{GroupVersion: "gateway.networking.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "httproutes"}}}
)

// routesWorld has one Service, an Ingress and an HTTPRoute, and says that those
// kinds exist which are given.
func routesWorld(t *testing.T, kinds ...*metav1.APIResourceList) *kubeWorld {
	t.Helper()
	client := fake.NewClientset(kubeService("a", "10.96.0.1"), kubeIngress())
	client.Resources = kinds
	w := newKubeWorld(t, client)
	w.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{httpRoutes: "HTTPRouteList"},
		httpRoute("r", `{"rules":[{"backendRefs":[{"name":"web"}]}]}`))
	w.kube.dynamic = w.dynamic
	return w
}

func (w *kubeWorld) wantEvents(want ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("events are %q", want), func() bool {
		got := w.sink.events()
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

func TestRoutes(t *testing.T) {
	w := routesWorld(t, ingresses, gatewayV1, gatewayB1)
	w.run()
	w.wantEvents("HTTPRoute shop/r", "Ingress shop/i", "Service shop/a")
	if err := w.dynamic.Resource(httpRoutes).Namespace("shop").Delete(t.Context(), "r", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the route is gone", func() bool { return len(w.sink.events()) == 4 })
}

// A cluster without the Gateway API is normal.
func TestRoutesThatDoNotExist(t *testing.T) {
	w := routesWorld(t, ingresses)
	w.run()
	w.wantEvents("Ingress shop/i", "Service shop/a")
	if strings.Contains(w.log.String(), "level=WARN") || len(w.dynamic.Actions()) != 0 {
		t.Errorf("requests %v, log:\n%s", w.dynamic.Actions(), w.log)
	}
}

// Without the right to a kind, the rest is served, and it is said once.
func TestRoutesForbidden(t *testing.T) {
	w := routesWorld(t, ingresses, gatewayV1)
	tries := make(chan struct{}, 100)
	w.dynamic.PrependReactor("list", "httproutes", func(k8stesting.Action) (bool, runtime.Object, error) {
		tries <- struct{}{}
		return true, nil, apierrors.NewForbidden(httpRoutes.GroupResource(), "", errors.New("no right"))
	})
	w.run()
	w.wantEvents("Ingress shop/i", "Service shop/a")
	for range 3 {
		<-tries
	}
	w.wantLog("level=WARN", "no right to watch a kind of route", "httproutes.gateway.networking.k8s.io")
	if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, w.log)
	}
	if err := w.kube.Health(); err != nil {
		t.Errorf("unhealthy: %v", err)
	}
}

// Definitions come and go.
func TestRoutesFollowDiscovery(t *testing.T) {
	w := routesWorld(t)
	r := &routes{k: w.kube, running: map[schema.GroupVersionResource]*routeWatch{}}
	refresh := func(kinds ...*metav1.APIResourceList) {
		t.Helper()
		w.client.Resources = kinds
		if again := r.refresh(t.Context()); again != discoverEvery {
			t.Errorf("looks again after %s", again)
		}
	}
	defer r.end()
	refresh()
	if len(r.running) != 0 {
		t.Fatalf("%v", r.running)
	}
	refresh(gatewayV1)
	w.until("the route is there", func() bool {
		changes, _ := w.kube.queue.take()
		return len(changes) == 1 && changes[0].Key.String() == "shop/r" && changes[0].Route != nil
	})
	refresh() // not listed for a moment
	refresh(gatewayV1)
	refresh()
	if changes, _ := w.kube.queue.take(); len(changes) != 0 || len(r.running) != 1 {
		t.Errorf("after a moment: %+v, %v", changes, r.running)
	}
	refresh()
	if changes, _ := w.kube.queue.take(); len(changes) != 1 || changes[0].Route != nil || len(r.running) != 0 {
		t.Errorf("gone: %+v, %v", changes, r.running)
	}

	refresh(gatewayV1)
	w.client.PrependReactor("get", "group", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	for range 3 {
		if again := r.refresh(t.Context()); again != discoverAgain || len(r.running) != 1 {
			t.Errorf("no answer: again after %s, %v", again, r.running)
		}
	}
	if n := strings.Count(w.log.String(), "cannot ask which kinds of routes"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// The Gateway API is upgraded: the same routes are now served in another version.
func TestRoutesChangeTheirVersion(t *testing.T) {
	old := httpRoutes
	old.Version = "v1beta1"
	w := routesWorld(t)
	route := httpRoute("r", `{"rules":[{"backendRefs":[{"name":"web"}]}]}`)
	w.kube.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{httpRoutes: "HTTPRouteList", old: "HTTPRouteList"}, route)
	beta := route.DeepCopy()
	beta.SetAPIVersion(gatewayB1.GroupVersion)
	if _, err := w.kube.dynamic.Resource(old).Namespace("shop").Create(t.Context(), beta, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := &routes{k: w.kube, running: map[schema.GroupVersionResource]*routeWatch{}}
	defer r.end()
	store := snapshot.NewStore(snapshot.Config{})
	arrived := func() (came bool) {
		changes, _ := w.kube.queue.take()
		for _, c := range changes {
			store.Apply(c)
			came = came || c.Route != nil
		}
		return came
	}
	for _, version := range []*metav1.APIResourceList{gatewayB1, gatewayV1} {
		w.client.Resources = []*metav1.APIResourceList{version}
		r.refresh(t.Context())
		w.until("the route has come from "+version.GroupVersion, arrived)
	}
	for range 3 {
		r.refresh(t.Context())
		arrived()
	}
	if store.Counts()[snapshot.KindHTTPRoute] != 1 {
		t.Error("the route was taken back with the version that it was known from")
	}
	if _, ok := r.running[httpRoutes]; !ok || len(r.running) != 1 {
		t.Errorf("watched: %v", r.running)
	}
}
