// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"

	"evenkeel.dev/xds/snapshot"
)

const (
	groupIngress = "networking.k8s.io"
	groupGateway = "gateway.networking.k8s.io"
)

// routeKinds are watched where the API server has them.
var routeKinds = map[schema.GroupResource]snapshot.Kind{
	{Group: groupIngress, Resource: "ingresses"}:  snapshot.KindIngress,
	{Group: groupGateway, Resource: "httproutes"}: snapshot.KindHTTPRoute,
	{Group: groupGateway, Resource: "grpcroutes"}: snapshot.KindGRPCRoute,
	{Group: groupGateway, Resource: "tcproutes"}:  snapshot.KindTCPRoute,
	{Group: groupGateway, Resource: "tlsroutes"}:  snapshot.KindTLSRoute,
}

const (
	// discoverEvery is how often it is asked which kinds of routes there are: they
	// come and go with their CustomResourceDefinitions.
	discoverEvery = time.Minute
	// discoverAgain is how soon, when the API server did not answer.
	discoverAgain = 5 * time.Second
)

// routes keeps an informer for each kind of route that there is. All is owned by
// run but the informers.
type routes struct {
	k       *Kube
	running map[schema.GroupVersionResource]*routeWatch
	failed  bool // the last question was not answered
}

type routeWatch struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     chan struct{}
	missed   bool // it was not there when last asked
}

// watchRoutes runs until ctx is done. Nothing waits for it: without it, Services
// look as if only their type said who has their addresses.
func (k *Kube) watchRoutes(ctx context.Context) {
	r := &routes{k: k, running: map[schema.GroupVersionResource]*routeWatch{}}
	defer r.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(r.refresh(ctx))
	}
}

// refresh starts and stops informers, and returns when to look again.
func (r *routes) refresh(ctx context.Context) time.Duration {
	there, err := r.discover(ctx)
	if err != nil {
		if ctx.Err() == nil && !r.failed {
			r.k.log.Warn("cannot ask which kinds of routes there are; those that are watched stay", "error", err)
		}
		r.failed = true
		return discoverAgain
	}
	r.failed = false
	for gvr, w := range r.running {
		_, ok := there[gvr]
		// An API server that is just starting does not list all at once.
		again := w.missed
		if w.missed = !ok; !ok && again {
			r.k.log.Info("a kind of route is gone, and its routes", "resource", gvr.GroupResource().String())
			r.forget(gvr, w)
		}
	}
	for gvr, kind := range there {
		if r.running[gvr] != nil {
			continue
		}
		r.forgetOther(gvr)
		if err := r.start(ctx, gvr, kind); err != nil {
			r.k.log.Error("cannot watch routes", "resource", gvr.GroupResource().String(), "error", err)
		}
	}
	return discoverEvery
}

// forgetOther ends the watch of another version of what is about to be watched:
// later, it would take back the same routes that the new one has delivered.
func (r *routes) forgetOther(gvr schema.GroupVersionResource) {
	for other, w := range r.running {
		if other.GroupResource() == gvr.GroupResource() {
			r.k.log.Info("routes are watched in another version", "resource", gvr.GroupResource().String(), "version", gvr.Version)
			r.forget(other, w)
		}
	}
}

// discover returns the kinds that there are, each in the version that the API
// server prefers of those that have it. A group that does not exist is no error.
func (r *routes) discover(ctx context.Context) (map[schema.GroupVersionResource]snapshot.Kind, error) {
	api := discovery.ToDiscoveryInterfaceWithContext(r.k.client.Discovery())
	groups, err := api.ServerGroupsWithContext(ctx)
	if err != nil {
		return nil, err
	}
	there := map[schema.GroupVersionResource]snapshot.Kind{}
	for _, g := range groups.Groups {
		if g.Name != groupIngress && g.Name != groupGateway {
			continue
		}
		seen := map[string]bool{}
		for _, v := range g.Versions {
			if g.Name == groupIngress && v.Version != networkingv1.SchemeGroupVersion.Version {
				continue
			}
			list, err := api.ServerResourcesForGroupVersionWithContext(ctx, v.GroupVersion)
			if apierrors.IsNotFound(err) {
				continue // it went away in between
			}
			if err != nil {
				return nil, err
			}
			for _, res := range list.APIResources {
				kind, ok := routeKinds[schema.GroupResource{Group: g.Name, Resource: res.Name}]
				if ok && !seen[res.Name] {
					seen[res.Name] = true
					there[schema.GroupVersionResource{Group: g.Name, Version: v.Version, Resource: res.Name}] = kind
				}
			}
		}
	}
	return there, nil
}

func (r *routes) start(ctx context.Context, gvr schema.GroupVersionResource, kind snapshot.Kind) error {
	var p pulse // routes are not a matter of health
	var inf cache.SharedIndexInformer
	if kind == snapshot.KindIngress {
		inf = newInformer(r.k.client, r.k.client.NetworkingV1().Ingresses(metav1.NamespaceAll), &networkingv1.Ingress{}, "", &p)
	} else {
		inf = newInformer(r.k.dynamic, r.k.dynamic.Resource(gvr), &unstructured.Unstructured{}, "", &p)
	}
	if err := inf.SetTransform(trim); err != nil {
		return err
	}
	if err := inf.SetWatchErrorHandlerWithContext(r.k.routeError(gvr)); err != nil {
		return err
	}
	if _, err := inf.AddEventHandler(r.k.handler()); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	w := &routeWatch{informer: inf, stop: stop, done: make(chan struct{})}
	r.running[gvr] = w
	go func() {
		defer close(w.done)
		inf.RunWithContext(ctx)
	}()
	return nil
}

// forget ends an informer, and takes back what it delivered.
func (r *routes) forget(gvr schema.GroupVersionResource, w *routeWatch) {
	w.stop()
	<-w.done
	delete(r.running, gvr)
	for _, obj := range w.informer.GetStore().List() {
		r.k.deleted(obj)
	}
}

func (r *routes) end() {
	for _, w := range r.running {
		w.stop()
	}
	for _, w := range r.running {
		<-w.done
	}
}

// routeError says once that there is no right to a kind; the informer goes on
// asking, seldom, and finds out when there is.
func (k *Kube) routeError(gvr schema.GroupVersionResource) cache.WatchErrorHandlerWithContext {
	var said atomic.Bool
	usual := k.watchError(gvr.Resource)
	return func(ctx context.Context, r *cache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err):
			if !said.Swap(true) {
				k.log.Warn("no right to watch a kind of route: Services that only it opens to clients outside count as inner ones",
					"resource", gvr.GroupResource().String(), "error", err)
			}
		case apierrors.IsNotFound(err):
			// Its definition was deleted; refresh finds out.
		default:
			usual(ctx, r, err)
		}
	}
}

// gatewayRoute is what the routes of the Gateway API have in common.
type gatewayRoute struct {
	Spec struct {
		ParentRefs []routeRef `json:"parentRefs"`
		Rules      []struct {
			BackendRefs []routeRef `json:"backendRefs"`
		} `json:"rules"`
	} `json:"spec"`
}

// routeRef is a reference with the defaults of where it stands.
type routeRef struct {
	Group     *string `json:"group"`
	Kind      *string `json:"kind"`
	Namespace *string `json:"namespace"`
	Name      string  `json:"name"`
}

// toService: of a backend nothing is said means a Service, of a parent a Gateway.
func (r *routeRef) toService() bool {
	return (r.Group == nil || *r.Group == "") && (r.Kind == nil || *r.Kind == "Service")
}

func (r *routeRef) parentIsService() bool { return r.Kind != nil && r.toService() && r.Group != nil }

var gatewayKinds = sync.OnceValue(func() map[string]snapshot.Kind {
	m := map[string]snapshot.Kind{}
	for gr, kind := range routeKinds {
		if gr.Group == groupGateway {
			m[kind.String()] = kind
		}
	}
	return m
})

func convertGatewayRoute(u *unstructured.Unstructured) (snapshot.Change, problems) {
	var ps problems
	kind, ok := gatewayKinds()[u.GetKind()]
	if !ok {
		return snapshot.Change{}, problems{{field: "kind", text: fmt.Sprintf("%.50q is not watched", u.GetKind())}}
	}
	key := snapshot.ObjectKey{Namespace: names.of(u.GetNamespace()), Name: u.GetName()}
	r := &snapshot.Route{Key: key}
	c := snapshot.Change{Kind: kind, Key: key, Route: r}
	var route gatewayRoute
	if err := fromUnstructured(u, &route); err != nil {
		ps.add("spec", "%s", err)
		return c, ps
	}
	if isMesh(route.Spec.ParentRefs) {
		return c, nil
	}
	for i := range route.Spec.Rules {
		for j := range route.Spec.Rules[i].BackendRefs {
			b := &route.Spec.Rules[i].BackendRefs[j]
			if !b.toService() || b.Name == "" {
				continue
			}
			ns := key.Namespace
			if b.Namespace != nil && *b.Namespace != "" {
				ns = *b.Namespace
			}
			r.Backends = append(r.Backends, snapshot.ObjectKey{Namespace: names.of(ns), Name: b.Name})
		}
	}
	sortBackends(r)
	return c, nil
}

// isMesh: all parents are Services, so that the route is for the mesh's own clients
// (GAMMA) and opens nothing to others.
func isMesh(parents []routeRef) bool {
	for i := range parents {
		if !parents[i].parentIsService() {
			return false
		}
	}
	return len(parents) > 0
}
