// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// CacheOptions narrows the manager's cache to what RBAC lets the injector see,
// and to what it needs of that.
func CacheOptions() map[client.Object]cache.ByObject {
	exists, err := labels.NewRequirement(injectedLabel, selection.Exists, nil)
	if err != nil {
		panic(err) // injectedLabel is a constant and a valid key
	}
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: labels.NewSelector().Add(*exists), Transform: bare},
		// With this selector a list of one name's objects in all namespaces is
		// covered by a ClusterRole with resourceNames.
		&corev1.ConfigMap{}: {Field: named(TrustConfigMap)},
		&corev1.Namespace{}: {Transform: cache.TransformStripManagedFields()},
	}
}

// Uncached are the kinds that the manager's client reads from the API server:
// decisions about keys are not made from a cache, and a cache of all Secrets
// would need the right to read all.
func Uncached() []client.Object {
	return []client.Object{&corev1.Secret{}, &rbacv1.ClusterRole{}, &admissionregistrationv1.MutatingWebhookConfiguration{}}
}

// bare keeps of a pod's metadata what the Publisher asks for: there may be
// many thousands.
func bare(o any) (any, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	m.SetManagedFields(nil)
	m.SetAnnotations(nil)
	m.SetOwnerReferences(nil)
	return o, nil
}

func named(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

// Setup adds the controllers to mgr, and feeds store on every replica.
func Setup(ctx context.Context, mgr manager.Manager, cfg Config, m *Metrics, store *Store) error {
	trust := NewTrust()
	keeper := &Keeper{
		Config: cfg, Client: mgr.GetClient(), Trust: trust, Metrics: m,
		Events: mgr.GetEventRecorder("evenkeel-injector"),
	}
	// One cache for each object by name; see CacheOptions for why by name.
	watched := []struct {
		object    client.Object
		namespace string
		name      string
	}{
		{&corev1.Secret{}, cfg.Namespace, RootSecret},
		{&admissionregistrationv1.MutatingWebhookConfiguration{}, "", cfg.Webhook},
	}
	for _, s := range cfg.Serving {
		watched = append(watched, struct {
			object    client.Object
			namespace string
			name      string
		}{&corev1.Secret{}, cfg.Namespace, s.Secret})
	}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}} // there is one state, so one request
	})
	keeping := builder.ControllerManagedBy(mgr).Named("certificates")
	for _, w := range watched {
		c, err := objectCache(mgr, w.object, w.namespace, w.name)
		if err != nil {
			return fmt.Errorf("watch %T %s: %w", w.object, w.name, err)
		}
		keeping = keeping.WatchesRawSource(source.Kind(c, w.object, one))
		if w.name == InjectorSecret {
			if err := feed(ctx, c, w.object, store.Handler()); err != nil {
				return err
			}
		}
	}
	// The first reconcile must not wait for an object to exist.
	start := make(chan event.GenericEvent, 1)
	start <- event.GenericEvent{Object: &corev1.Secret{}}
	keeping = keeping.WatchesRawSource(source.Channel(start, one))
	if err := keeping.Complete(keeper); err != nil {
		return err
	}
	return setupPublisher(mgr, &Publisher{
		Client: mgr.GetClient(), Trust: trust, OwnNamespace: cfg.Namespace,
		Metrics: m, Events: keeper.Events, Logger: cfg.Logger,
	})
}

func setupPublisher(mgr manager.Manager, publisher *Publisher) error {
	namespaceOf := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.GetNamespace()}}}
	})
	everyNamespace := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		if err := mgr.GetClient().List(ctx, list); err != nil {
			publisher.Logger.Error("trust bundle changed, but the namespaces cannot be listed", "error", err)
			return nil
		}
		requests := make([]reconcile.Request, len(list.Items))
		for i := range list.Items {
			requests[i].Name = list.Items[i].Name
		}
		return requests
	})
	// A pod's later life changes nothing for its namespace.
	comesOrGoes := predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
	return builder.ControllerManagedBy(mgr).Named("trust_bundles").
		For(&corev1.Namespace{}, builder.OnlyMetadata).
		Watches(&corev1.ConfigMap{}, namespaceOf).
		WatchesMetadata(&corev1.Pod{}, namespaceOf, builder.WithPredicates(comesOrGoes)).
		WatchesRawSource(source.Channel(publisher.Trust.changed, everyNamespace)).
		Complete(publisher)
}

// objectCache makes a cache of one object and has mgr run it, before and
// independent of leader election.
func objectCache(mgr manager.Manager, o client.Object, namespace, name string) (cache.Cache, error) {
	by := cache.ByObject{Field: named(name)}
	if namespace != "" {
		by = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {FieldSelector: named(name)}}}
	}
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{o: by},
	})
	if err != nil {
		return nil, err
	}
	return c, mgr.Add(runCache{c})
}

// runCache is how a manager recognises a cache.
type runCache struct{ cache.Cache }

func (r runCache) GetCache() cache.Cache { return r.Cache }

func feed(ctx context.Context, c cache.Cache, o client.Object, h toolscache.ResourceEventHandler) error {
	informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the serving certificate: %w", err)
	}
	if _, err := informer.AddEventHandler(h); err != nil {
		return fmt.Errorf("watch the serving certificate: %w", err)
	}
	return nil
}
