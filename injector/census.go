// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"evenkeel.dev/xds"
)

const (
	// censusPeriod is also how late the metric may be.
	censusPeriod = time.Minute
	// censusPage bounds what one answer of the API server holds in memory.
	censusPage = 500
	// censusNames is how many pods a log line names.
	censusNames = 5
)

// Census counts the running pods that should have a sidecar and have none: they
// were made before their namespace was labelled, or while the webhook was away.
// Those that cannot have one are not among them. It runs in the leading injector.
//
// Namespaces come from the cache. Pods are asked for, namespace by namespace, and
// only those without a sidecar: in a labelled namespace that is next to nothing,
// whereas a cache of them would hold the pods of all the others too.
type Census struct {
	Namespaces client.Reader // the cache
	Live       client.Reader // the API server
	Cluster    *Cluster
	Metrics    *Metrics
	Logger     *slog.Logger

	// last is what the metric says. Start's alone.
	last map[string][]string
}

// NeedLeaderElection: the replicas' counts would be added up.
func (*Census) NeedLeaderElection() bool { return true }

// Start counts until ctx ends.
func (c *Census) Start(ctx context.Context) error {
	tick := time.NewTicker(censusPeriod)
	defer tick.Stop()
	for {
		c.take(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// take counts once. Where the API server did not answer, the last count stays.
func (c *Census) take(ctx context.Context) {
	found, err := c.count(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.Logger.Warn("pods without a sidecar cannot be counted; trying again", "error", err, "after", censusPeriod)
		}
		return
	}
	for _, namespace := range slices.Sorted(maps.Keys(found)) {
		if pods := found[namespace]; len(pods) > 0 && len(c.last[namespace]) == 0 {
			c.Logger.Warn("running pods have no sidecar, though they are labelled for one; restart what made them",
				"namespace", namespace, "count", len(pods), "pods", pods[:min(len(pods), censusNames)])
		}
		c.Metrics.uninjected.WithLabelValues(namespace).Set(float64(len(found[namespace])))
	}
	for namespace := range c.last {
		if _, still := found[namespace]; !still {
			c.Metrics.uninjected.DeleteLabelValues(namespace)
		}
	}
	c.last = found
}

// count returns the names of such pods for each namespace that is labelled or has
// any.
func (c *Census) count(ctx context.Context) (map[string][]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := c.Namespaces.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	namespaces, found := map[string]*Namespace{}, map[string][]string{}
	for i := range list.Items {
		m := &list.Items[i]
		namespaces[m.Name] = &Namespace{Name: m.Name, Labels: m.Labels, Annotations: m.Annotations}
	}
	labelled := func(ns *Namespace) bool { return ns.Labels[xds.InjectLabel] == xds.InjectLabelEnabled }
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		ns := namespaces[name]
		if !labelled(ns) || ns.Name == c.Cluster.OwnNamespace {
			continue
		}
		found[name] = nil
		errs = append(errs, c.each(ctx, labels.NewSelector(), func(pod *corev1.Pod) {
			if c.lacks(pod, ns) {
				found[name] = append(found[name], pod.Name)
			}
		}, client.InNamespace(name)))
	}
	// Pods that say yes for themselves.
	optedIn := labels.SelectorFromSet(labels.Set{xds.InjectLabel: xds.InjectLabelEnabled})
	errs = append(errs, c.each(ctx, optedIn, func(pod *corev1.Pod) {
		if ns := namespaces[pod.Namespace]; ns != nil && !labelled(ns) && c.lacks(pod, ns) {
			found[ns.Name] = append(found[ns.Name], pod.Name)
		}
	}))
	return found, errors.Join(errs...)
}

// each calls f for every running pod that matches and lacks our label.
func (c *Census) each(ctx context.Context, which labels.Selector, f func(*corev1.Pod), opts ...client.ListOption) error {
	without, err := labels.NewRequirement(InjectedLabel, selection.DoesNotExist, nil)
	if err != nil {
		panic(err) // the label is a constant and valid
	}
	opts = append(opts, client.MatchingLabelsSelector{Selector: which.Add(*without)},
		client.MatchingFields{"status.phase": string(corev1.PodRunning)}, client.Limit(censusPage))
	for next := ""; ; {
		pods := &corev1.PodList{}
		if err := c.Live.List(ctx, pods, append(slices.Clone(opts), client.Continue(next))...); err != nil {
			return fmt.Errorf("list pods without a sidecar: %w", err)
		}
		for i := range pods.Items {
			f(&pods.Items[i])
		}
		if next = pods.Continue; next == "" {
			return nil
		}
	}
}

// lacks: the pod is to have a sidecar, could have one, and will live on without.
func (c *Census) lacks(pod *corev1.Pod, ns *Namespace) bool {
	want, _ := wanted(pod, ns)
	return want && pod.DeletionTimestamp == nil && obstacle(pod, ns, c.Cluster) == nil
}
