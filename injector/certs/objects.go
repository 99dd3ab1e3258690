// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labels of what is written here; see ours for the second use of managedBy.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "evenkeel-injector"
	labelPartOf    = "app.kubernetes.io/part-of"
	partOf         = "evenkeel"
)

// ownerRef is the owner of what is written; nil: none.
type ownerRef = metav1.OwnerReference

// findOwner reads the ClusterRole that owns everything.
func findOwner(ctx context.Context, c client.Client, name string) (*ownerRef, error) {
	if name == "" {
		return nil, nil
	}
	role := &metav1.PartialObjectMetadata{}
	role.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
	switch err := c.Get(ctx, client.ObjectKey{Name: name}, role); {
	case apierrors.IsNotFound(err):
		// Being uninstalled. What is written now would be an orphan: an owner that
		// does not exist has it collected, none would leave it behind.
		return nil, fmt.Errorf("ClusterRole %s, the owner of the certificates, does not exist: the chart is being uninstalled, or was renamed", name)
	case err != nil:
		return nil, fmt.Errorf("read ClusterRole %s, the owner of the certificates: %w", name, err)
	}
	return &ownerRef{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: name, UID: role.UID}, nil
}

// ours tells what was written here from what someone else gave the name. Either
// mark is enough: people edit labels, and the owner is another one after the chart
// was installed anew.
func ours(o client.Object, owner *ownerRef) bool {
	return o.GetLabels()[labelManagedBy] == managedBy || owner != nil && slices.ContainsFunc(o.GetOwnerReferences(), func(r ownerRef) bool {
		return r.Kind == owner.Kind && r.Name == owner.Name
	})
}

// own puts our labels and the owner on an object and reports whether it changed.
func own(o client.Object, owner *ownerRef) bool {
	labels := maps.Clone(o.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelManagedBy], labels[labelPartOf] = managedBy, partOf
	changed := !maps.Equal(labels, o.GetLabels())
	o.SetLabels(labels)
	if owner == nil {
		return changed
	}
	// An earlier installation's ClusterRole had another UID; kept, it would have
	// the object collected.
	before := o.GetOwnerReferences()
	refs := slices.DeleteFunc(slices.Clone(before), func(r ownerRef) bool {
		return r.Kind == owner.Kind && r.Name == owner.Name && r.UID != owner.UID
	})
	if !slices.ContainsFunc(refs, func(r ownerRef) bool { return r.UID == owner.UID }) {
		refs = append(refs, *owner)
	}
	o.SetOwnerReferences(refs)
	return changed || !slices.EqualFunc(before, refs, func(a, b ownerRef) bool { return a.UID == b.UID })
}

// secret reads one; an empty one without a resource version: it does not exist.
func (k *Keeper) secret(ctx context.Context, name string) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: k.Config.Namespace, Name: name}
	switch err := k.Client.Get(ctx, key, s); {
	case apierrors.IsNotFound(err):
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name}, Type: corev1.SecretTypeTLS}, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", key, err)
	}
	return s, nil
}

// store writes data if it differs from what secret holds. Two writers are told
// apart by the resource version that secret was read with.
func (k *Keeper) store(ctx context.Context, owner *ownerRef, secret *corev1.Secret, data map[string][]byte) error {
	owned := own(secret, owner)
	if secret.ResourceVersion != "" && !owned && maps.EqualFunc(secret.Data, data, slices.Equal) {
		return nil
	}
	secret.Data = data
	write := k.Client.Update
	if secret.ResourceVersion == "" {
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return k.Client.Create(ctx, o)
		}
	}
	if err := write(ctx, secret); err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}
