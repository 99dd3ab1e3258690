// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"evenkeel.dev/injector/pki"
)

// Bounds of how long the Keeper sleeps: a clock that jumps, or a decision that
// was wrong by a second, costs at most the upper and never a busy loop.
const (
	minSleep = 10 * time.Second
	maxSleep = 6 * time.Hour
)

// Keeper reconciles the root, the serving certificates and the webhook's
// caBundle. Its fields above the line are set once; those below belong to its
// Reconcile, which controller-runtime never runs twice at a time.
type Keeper struct {
	Config Config
	// Client reads Secrets and webhook configurations live, not from a cache.
	Client client.Client
	Trust  *Trust
	Events events.EventRecorder

	Metrics *Metrics

	// memory is the last authority that was stored. Nil: none yet.
	memory *pki.Authority
	// published is the bundle that Trust has, and since when.
	published      []byte
	publishedSince time.Time
}

var _ reconcile.Reconciler = (*Keeper)(nil)

// leaf is one serving certificate as found.
type leaf struct {
	Serving
	secret *corev1.Secret
	pair   *pki.Pair // nil: none that can be used
	why    string    // then: why
}

// Reconcile puts everything right and returns when it has to look again. The
// request does not matter: there is one state.
func (k *Keeper) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	now := k.Config.Now()
	owner, err := findOwner(ctx, k.Client, k.Config.Owner)
	if err != nil {
		return reconcile.Result{}, err
	}
	leaves, err := k.leaves(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	observed := pki.Observed{Now: now, PublishedSince: k.publishedSince}
	for _, l := range leaves {
		if l.pair != nil {
			observed.Leaves = append(observed.Leaves, l.pair.Cert)
		}
		if roots, err := pki.ParseCerts(l.secret.Data[pki.KeyRoots]); err == nil {
			observed.Roots = append(observed.Roots, roots...)
		}
	}

	// The order is that of trust: nobody may meet a certificate whose root was
	// not stored and published before.
	authority, err := k.authority(ctx, owner, observed)
	if err != nil {
		return reconcile.Result{}, err
	}
	bundle := authority.BundlePEM()
	if !bytes.Equal(bundle, k.published) {
		k.published, k.publishedSince = bundle, now
		observed.PublishedSince = now
	}
	k.Trust.Set(bundle, owner)
	if err := k.caBundle(ctx, bundle); err != nil {
		return reconcile.Result{}, err
	}
	observed.Leaves = nil
	var errs []error
	for _, l := range leaves {
		// One that cannot be written must not keep the other from being renewed.
		pair, err := k.serving(ctx, owner, l, authority, observed)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		observed.Leaves = append(observed.Leaves, pair.Cert)
		k.Metrics.expiry(l.Secret, pair.Cert.NotAfter)
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err
	}
	sleep := min(max(k.Config.Policy.Due(authority, observed).Sub(now), minSleep), maxSleep)
	return reconcile.Result{RequeueAfter: sleep}, nil
}

// authority reads the roots, decides about them and stores what changed.
func (k *Keeper) authority(ctx context.Context, owner *ownerRef, o pki.Observed) (*pki.Authority, error) {
	log := k.Config.Logger.With("secret", k.Config.Namespace+"/"+RootSecret)
	secret, err := k.secret(ctx, RootSecret)
	if err != nil {
		return nil, err
	}
	stored, problems := pki.Decode(secret.Data, o.Roots)
	for _, p := range problems {
		if errors.Is(p, pki.ErrNothingStored) && k.memory == nil {
			continue // the first start; Advance says what it made
		}
		log.Error("the root's Secret is damaged", "problem", p)
		k.event(secret, corev1.EventTypeWarning, "RootDamaged", fmt.Sprintf("Secret %s: %v", RootSecret, p))
	}
	if stored.Signing == nil && k.memory != nil {
		log.Warn("restoring the root that is in use from memory", "root", k.memory.Signing.Cert.Subject.CommonName)
		stored = k.memory
	}
	authority, changes, err := k.Config.Policy.Advance(stored, o)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		log.Info("roots changed", "change", c)
		k.event(secret, corev1.EventTypeNormal, "RootsChanged", c)
	}
	data, err := pki.Encode(authority)
	if err != nil {
		return nil, err
	}
	if err := k.store(ctx, owner, secret, data); err != nil {
		return nil, err
	}
	k.memory = authority
	k.Metrics.expiry("root", authority.Signing.Cert.NotAfter)
	k.Metrics.roots(len(authority.Bundle()))
	return authority, nil
}

// leaves reads the serving certificates.
func (k *Keeper) leaves(ctx context.Context) ([]leaf, error) {
	var leaves []leaf
	for _, s := range k.Config.Serving {
		secret, err := k.secret(ctx, s.Secret)
		if err != nil {
			return nil, err
		}
		l := leaf{Serving: s, secret: secret}
		switch pair, err := pki.ParsePair(secret.Data[pki.KeyCert], secret.Data[pki.KeyKey]); {
		case err == nil:
			l.pair = pair
		case secret.ResourceVersion == "":
			l.why = "there is none"
		default:
			l.why = err.Error()
		}
		leaves = append(leaves, l)
	}
	return leaves, nil
}

// serving keeps one serving certificate and returns the one in use.
func (k *Keeper) serving(ctx context.Context, owner *ownerRef, l leaf, a *pki.Authority, o pki.Observed) (*pki.Pair, error) {
	names := l.names(k.Config.Namespace, k.Config.ClusterDomain)
	pair, why := l.pair, l.why
	if pair != nil {
		why = k.Config.Policy.ReissueReason(a, pair, names, o)
	}
	if why != "" {
		var err error
		if pair, err = k.Config.Policy.Issue(a, names, o.Now); err != nil {
			return nil, err
		}
		k.Config.Logger.Info("serving certificate issued", "secret", k.Config.Namespace+"/"+l.Secret, "because", why,
			"validUntil", pair.Cert.NotAfter, "root", pair.Cert.Issuer.CommonName)
	}
	data, err := pki.EncodeLeaf(a, pair)
	if err != nil {
		return nil, err
	}
	if why == "" {
		// Only the roots beside it may differ: a pair that is good stays as it is
		// stored, whatever form its owner wrote it in.
		data[pki.KeyCert], data[pki.KeyKey] = l.secret.Data[pki.KeyCert], l.secret.Data[pki.KeyKey]
	}
	return pair, k.store(ctx, owner, l.secret, data)
}

// caBundle writes the bundle into the webhook's configuration.
func (k *Keeper) caBundle(ctx context.Context, bundle []byte) error {
	conf := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Config.Webhook}, conf); err != nil {
		if client.IgnoreNotFound(err) == nil {
			// Someone took it away to stop injection, which is theirs to do. The
			// certificates of the control plane go on being renewed.
			k.Config.Logger.Warn("MutatingWebhookConfiguration not found: no pod is injected", "name", k.Config.Webhook)
			return nil
		}
		return fmt.Errorf("read MutatingWebhookConfiguration %s: %w", k.Config.Webhook, err)
	}
	same := true
	for i := range conf.Webhooks {
		if cc := &conf.Webhooks[i].ClientConfig; !bytes.Equal(cc.CABundle, bundle) {
			cc.CABundle, same = slices.Clone(bundle), false
		}
	}
	if same {
		return nil
	}
	if err := k.Client.Update(ctx, conf); err != nil {
		return fmt.Errorf("write caBundle of MutatingWebhookConfiguration %s: %w", k.Config.Webhook, err)
	}
	k.Config.Logger.Info("webhook's caBundle written", "name", k.Config.Webhook)
	return nil
}

func (k *Keeper) event(secret *corev1.Secret, kind, reason, note string) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID}
	k.Events.Eventf(ref, nil, kind, reason, "Reconcile", "%s", note)
}
