// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"evenkeel.dev/xds"
)

// injectedLabel is on every injected pod (injector.InjectedLabel).
const injectedLabel = "evenkeel.dev/injected"

// Publisher reconciles the ConfigMap of one namespace, the request's name.
type Publisher struct {
	// Client reads namespaces, ConfigMaps of the one name and injected pods from
	// its cache.
	Client client.Client
	Trust  *Trust
	// OwnNamespace has no injected pods.
	OwnNamespace string
	Metrics      *Metrics
	Events       events.EventRecorder
	Logger       *slog.Logger

	// blocked holds the namespaces where someone else's ConfigMap has the name, and
	// its UID. Only Reconcile, which its controller never calls twice at a time,
	// uses it.
	blocked map[string]types.UID
}

var _ reconcile.Reconciler = (*Publisher)(nil)

// Reconcile makes, corrects or removes the ConfigMap.
func (p *Publisher) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	bundle, owner := p.Trust.Get()
	if bundle == nil {
		return reconcile.Result{}, nil // Trust tells when there is one
	}
	wanted, err := p.wanted(ctx, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	cm := &corev1.ConfigMap{}
	err = p.Client.Get(ctx, client.ObjectKey{Namespace: req.Name, Name: TrustConfigMap}, cm)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read ConfigMap %s/%s: %w", req.Name, TrustConfigMap, err)
	}
	foreign := exists && !ours(cm, owner)
	p.block(req.Name, cm, wanted && foreign)
	switch {
	case foreign:
		// Whatever it is for, overwriting or deleting it would break someone's app.
	case wanted && !exists:
		return reconcile.Result{}, p.create(ctx, req.Name, bundle, owner)
	case wanted:
		return reconcile.Result{}, p.correct(ctx, cm, bundle, owner)
	case exists:
		return reconcile.Result{}, p.remove(ctx, cm)
	}
	return reconcile.Result{}, nil
}

// block tells that a namespace cannot have the bundle because of someone else's
// ConfigMap, once for each such object, or that it can again.
func (p *Publisher) block(namespace string, cm *corev1.ConfigMap, blocked bool) {
	uid, was := p.blocked[namespace]
	switch {
	case !blocked && !was:
	case !blocked:
		delete(p.blocked, namespace)
		p.Metrics.unblocked(namespace)
	case !was || uid != cm.UID:
		if p.blocked == nil {
			p.blocked = map[string]types.UID{}
		}
		p.blocked[namespace] = cm.UID
		p.Metrics.blocked(namespace)
		const what = "ConfigMap %s/%s is not Evenkeel's (no label %s: %s), and stays as it is: the namespace's sidecars have no roots to know the control plane by, and balance nothing until it is deleted or has another name"
		p.Logger.Error("trust bundle not published: someone else's ConfigMap has its name; delete it or give it another",
			"namespace", namespace, "configMap", cm.Name, "missingLabel", labelManagedBy+"="+managedBy)
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: cm.Name, UID: cm.UID}
		p.Events.Eventf(ref, nil, corev1.EventTypeWarning, "NameTaken", "Publish", what, namespace, cm.Name, labelManagedBy, managedBy)
	}
}

// wanted: see the package's documentation.
func (p *Publisher) wanted(ctx context.Context, namespace string) (bool, error) {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	switch err := p.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	if namespace == p.OwnNamespace || ns.DeletionTimestamp != nil {
		return false, nil
	}
	if ns.Labels[xds.InjectLabel] == xds.InjectLabelEnabled {
		return true, nil
	}
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := p.Client.List(ctx, pods, client.InNamespace(namespace), client.HasLabels{injectedLabel}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list injected pods of namespace %s: %w", namespace, err)
	}
	return len(pods.Items) > 0, nil
}

func (p *Publisher) create(ctx context.Context, namespace string, bundle []byte, owner *ownerRef) error {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: TrustConfigMap},
		Data:       map[string]string{TrustKey: string(bundle)},
	}
	own(cm, owner)
	if err := p.Client.Create(ctx, cm); err != nil {
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return fmt.Errorf("create ConfigMap %s/%s: %w", namespace, TrustConfigMap, err)
	}
	p.Logger.Info("trust bundle published", "namespace", namespace)
	return nil
}

func (p *Publisher) correct(ctx context.Context, cm *corev1.ConfigMap, bundle []byte, owner *ownerRef) error {
	owned := own(cm, owner)
	if cm.Data[TrustKey] == string(bundle) && !owned {
		return nil
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[TrustKey] = string(bundle)
	if err := p.Client.Update(ctx, cm); err != nil {
		return fmt.Errorf("update ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	p.Logger.Info("trust bundle put right", "namespace", cm.Namespace)
	return nil
}

func (p *Publisher) remove(ctx context.Context, cm *corev1.ConfigMap) error {
	// Not if it changed since: then someone may want it after all.
	same := client.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion}
	if err := p.Client.Delete(ctx, cm, same); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	p.Logger.Info("trust bundle removed: nothing in the namespace needs it", "namespace", cm.Namespace)
	return nil
}
