// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"evenkeel.dev/xds/snapshot"
)

// ErrNoCluster is returned when there is no API server to ask.
var ErrNoCluster = errors.New("no cluster")

// KubeConfig configures the source that watches an API server.
type KubeConfig struct {
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. Nil: they are kept but not registered.
	Registerer prometheus.Registerer
	// Kubeconfig is a file. Empty: the service account of the pod it runs in.
	Kubeconfig string
}

// Kube is the source that watches an API server.
type Kube struct {
	log     *slog.Logger
	client  kubernetes.Interface
	metrics *metrics
	dynamic dynamic.Interface // for kinds that client-go does not know
	queue   *queue
	events  *eventWriter
	pulses  map[string]*pulse // by resource; the map is not written

	mu      sync.Mutex
	invalid map[ref]struct{} // objects with problems
}

// Connect reads the credentials; it does not wait for the API server.
func Connect(cfg KubeConfig) (*Kube, error) {
	rc, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	// Pods are many: protobuf costs a fraction of JSON in memory and time.
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rc.UserAgent = "evenkeel-xds"
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	dyn, err := dynamic.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return newKube(cfg, client, dyn)
}

func newKube(cfg KubeConfig, client kubernetes.Interface, dyn dynamic.Interface) (*Kube, error) {
	if cfg.Logger == nil {
		return nil, errors.New("watch: Logger: required")
	}
	k := &Kube{
		log:     cfg.Logger,
		client:  client,
		dynamic: dyn,
		metrics: newMetrics(),
		queue:   newQueue(),
		events:  newEventWriter(cfg.Logger, client),
		invalid: map[ref]struct{}{},
		pulses:  map[string]*pulse{"services": {}, "endpointslices": {}, "nodes": {}, "pods": {}},
	}
	for name, p := range k.pulses {
		k.metrics.failing.set(name, func() float64 {
			d, _ := p.failing(time.Now())
			return d.Seconds()
		})
	}
	if err := k.metrics.register(cfg.Registerer, k.events.total, k.metrics.failing); err != nil {
		return nil, fmt.Errorf("watch: metrics: %w", err)
	}
	return k, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("%w: kubeconfig %s: %s", ErrNoCluster, kubeconfig, err.Error())
		}
		return rc, nil
	}
	rc, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, fmt.Errorf("%w: this is not a pod of a Kubernetes cluster", ErrNoCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: in-cluster credentials: %s", ErrNoCluster, err.Error())
	}
	return rc, nil
}

// item is what the informers keep of an object: its version and the snapshot's own
// input, which the snapshot shares. A Pod of 10 KiB becomes a few hundred bytes.
type item struct {
	version  string
	change   snapshot.Change
	problems problems
}

// GetObjectMeta is part of metav1.ObjectMetaAccessor. It is made when it is asked
// for: an ObjectMeta takes as much memory as all the rest.
func (it *item) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: it.change.Key.Namespace, Name: it.change.Key.Name, ResourceVersion: it.version}
}

// trim is the informers' transform: it runs before an object is stored. It may
// be called again with what it returned.
func trim(obj any) (any, error) {
	if _, ok := obj.(*item); ok {
		return obj, nil
	}
	m, ok := obj.(metav1.Object)
	if !ok {
		return obj, nil // a tombstone, whose object went through here before
	}
	c, ps := convert(obj)
	c.Key.Namespace, c.Key.Name = names.of(m.GetNamespace()), m.GetName() // whatever could be converted
	return &item{version: m.GetResourceVersion(), change: c, problems: ps}, nil
}

// Run watches until ctx is done. It returns when all it started has stopped.
func (k *Kube) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// client-go logs through the context.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(k.log.Handler()))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { k.events.run(ctx) })

	// Pods that have ended hold nothing; for the watch they are deleted.
	const running = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	core := k.client.CoreV1()
	watched := map[string]cache.SharedIndexInformer{
		"services":       newInformer(k.client, core.Services(metav1.NamespaceAll), &corev1.Service{}, "", k.pulses["services"]),
		"endpointslices": newInformer(k.client, k.client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), &discoveryv1.EndpointSlice{}, "", k.pulses["endpointslices"]),
		"nodes":          newInformer(k.client, core.Nodes(), &corev1.Node{}, "", k.pulses["nodes"]),
		"pods":           newInformer(k.client, core.Pods(metav1.NamespaceAll), &corev1.Pod{}, running, k.pulses["pods"]),
	}
	synced := map[string]cache.InformerSynced{}
	for name, inf := range watched {
		if err := inf.SetTransform(trim); err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
		if err := inf.SetWatchErrorHandlerWithContext(k.watchError(name)); err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
		reg, err := inf.AddEventHandler(k.handler())
		if err != nil {
			return fmt.Errorf("watch %s: %w", name, err)
		}
		synced[name] = reg.HasSynced // the handler has seen the whole first list
	}
	for _, inf := range watched {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	wg.Go(func() { k.watchRoutes(ctx) })

	if err := k.waitSynced(ctx, synced); err != nil {
		return nil // ctx is done
	}
	wg.Go(func() { k.measureAge(ctx, watched) })
	k.queue.deliver(ctx, sink)
	return nil
}

// waitSynced says from time to time what it still waits for: without the right
// to list one of the resources it would wait for ever.
func (k *Kube) waitSynced(ctx context.Context, synced map[string]cache.InformerSynced) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	nextLog := 5 * time.Second
	for {
		var missing []string
		for name, ok := range synced {
			if !ok() {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			k.log.Info("all resources are synced", "took", time.Since(start))
			return nil
		}
		if waited := time.Since(start); waited > nextLog {
			k.log.Warn("still waiting for the first list from the API server; see the errors above", "resources", missing, "waited", waited)
			nextLog = 2 * waited
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handler is the one handler of all resources. It never blocks.
func (k *Kube) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    k.changed,
		UpdateFunc: func(_, obj any) { k.changed(obj) },
		DeleteFunc: k.deleted,
	}
}

func (k *Kube) changed(obj any) {
	it, ok := obj.(*item)
	if !ok {
		k.log.Error("the informer delivered an object that was not trimmed; ignored", "type", fmt.Sprintf("%T", obj))
		return
	}
	k.report(it)
	k.queue.put(it.change, time.Now())
}

func (k *Kube) deleted(obj any) {
	// The watch was interrupted and the object had gone meanwhile.
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	it, ok := obj.(*item)
	if !ok {
		k.log.Error("the informer delivered a deletion without its object; ignored", "type", fmt.Sprintf("%T", obj))
		return
	}
	k.report(&item{change: it.change})
	k.queue.put(snapshot.Change{Kind: it.change.Kind, Key: it.change.Key}, time.Now())
}

// report logs the problems of an object each time that it changes.
func (k *Kube) report(it *item) {
	r := ref{it.change.Kind, it.change.Key}
	k.mu.Lock()
	if len(it.problems) == 0 {
		delete(k.invalid, r)
	} else {
		k.invalid[r] = struct{}{}
	}
	k.metrics.invalid.Set(float64(len(k.invalid)))
	k.mu.Unlock()
	for _, p := range it.problems {
		k.log.Warn("an object has a field that cannot be used", "kind", r.kind.String(), "object", r.key.String(), "field", p.field, "problem", p.text)
	}
}

func (k *Kube) watchError(name string) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() != nil {
			return
		}
		k.metrics.errors.WithLabelValues(name).Inc()
		k.log.Warn("watch interrupted; it is taken up again", "resource", name, "error", err)
	}
}

// measureAge is the self-check: a watch that is alive moves its resource
// version on, if only by the API server's bookmark once a minute. A watch that
// looks open but brings nothing more shows as an age that grows.
func (k *Kube) measureAge(ctx context.Context, watched map[string]cache.SharedIndexInformer) {
	type progress struct {
		version string
		at      atomic.Int64
	}
	seen := map[string]*progress{}
	for name, inf := range watched {
		p := &progress{version: inf.LastSyncResourceVersion()}
		p.at.Store(time.Now().UnixNano())
		seen[name] = p
		k.metrics.age.set(name, func() float64 { return time.Since(time.Unix(0, p.at.Load())).Seconds() })
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for name, inf := range watched {
			if v, p := inf.LastSyncResourceVersion(), seen[name]; v != p.version {
				p.version = v
				p.at.Store(time.Now().UnixNano())
			}
		}
	}
}
