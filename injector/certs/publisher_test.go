// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"evenkeel.dev/xds"
)

func ns(name, inject string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if inject != "" {
		n.Labels = map[string]string{xds.InjectLabel: inject}
	}
	return n
}

func TestPublisher(t *testing.T) {
	injectedPod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "single", Name: "a", Labels: map[string]string{injectedLabel: "true"}}}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: TrustConfigMap}, Data: map[string]string{"mine": "1"}}
	c := newCluster(t, ns("shop", "enabled"), ns("plain", ""), ns("no", "disabled"), ns("single", ""), ns("foreign", ""), ns(system, "enabled"),
		injectedPod, foreign)
	bundle := func(namespace string) string {
		cm := &corev1.ConfigMap{}
		if !c.get(t, namespace, TrustConfigMap, cm) {
			return "none"
		}
		if namespace != "foreign" && (len(cm.OwnerReferences) != 1 || cm.OwnerReferences[0].UID != "role-1") {
			t.Errorf("%s: ConfigMap is owned by %v: uninstalling leaves it behind", namespace, cm.OwnerReferences)
		}
		return cm.Data[TrustKey]
	}
	all := []string{"shop", "plain", "no", "single", "foreign", system, "gone"}
	for _, n := range all {
		c.publish(t, n)
		if got := bundle(n); got != "none" && n != "foreign" {
			t.Errorf("%s: published before there is a root", n)
		}
	}
	c.reconcile(t)
	want := string(c.caBundle(t))
	if len(c.keeper.Trust.changed) != 1 {
		t.Error("the publisher was not told")
	}
	for _, n := range all {
		c.publish(t, n)
	}
	for n, has := range map[string]bool{"shop": true, "plain": false, "no": false, "single": true, system: false, "gone": false} {
		if got := bundle(n); has != (got == want) || !has && got != "none" {
			t.Errorf("%s: bundle %.20q, want one: %v", n, got, has)
		}
	}
	if bundle("foreign") != "" {
		t.Error("someone else's ConfigMap was touched although nothing needs ours")
	}

	// Edited, then deleted.
	cm := &corev1.ConfigMap{}
	c.get(t, "shop", TrustConfigMap, cm)
	cm.Data = map[string]string{TrustKey: "x", "other": "y"}
	if err := c.client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	c.publish(t, "shop")
	if bundle("shop") != want {
		t.Error("an edit was not put right")
	}
	c.get(t, "shop", TrustConfigMap, cm)
	remove(t, c, cm)
	c.publish(t, "shop")
	if bundle("shop") != want {
		t.Error("a deletion was not put right")
	}

	// The label goes, the last injected pod goes.
	relabel := ns("shop", "")
	if err := c.client.Update(t.Context(), relabel); err != nil {
		t.Fatal(err)
	}
	c.publish(t, "shop")
	remove(t, c, injectedPod)
	c.publish(t, "single")
	for _, n := range []string{"shop", "single"} {
		if bundle(n) != "none" {
			t.Errorf("%s: nothing needs the bundle, and it is still there", n)
		}
	}
	writes := c.writes
	for _, n := range all {
		c.publish(t, n)
	}
	if c.writes != writes {
		t.Error("it writes although nothing changed")
	}
}

func TestPublisherFollowsRotation(t *testing.T) {
	c := newCluster(t, ns("shop", "enabled"))
	c.reconcile(t)
	c.publish(t, "shop")
	root := c.leaf(t, RootSecret).Cert
	c.clock.Advance(root.NotAfter.Sub(c.clock.Now()) - c.cfg.Policy.RootRenewBefore)
	c.reconcile(t)
	<-c.keeper.Trust.changed
	c.publish(t, "shop")
	cm := &corev1.ConfigMap{}
	c.get(t, "shop", TrustConfigMap, cm)
	if cm.Data[TrustKey] != string(c.caBundle(t)) || len(c.secret(t, RootSecret).Data["next.crt"]) == 0 {
		t.Error("pods have not got the root that will sign")
	}
	if !c.leaf(t, RootSecret).Cert.Equal(root) {
		t.Error("the new root signs before pods have it")
	}
}

// TestPublisherLeavesForeignConfigMaps: one that someone else gave the name stays
// as it is, and people hear of it.
func TestPublisherLeavesForeignConfigMaps(t *testing.T) {
	theirs := func(namespace string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: TrustConfigMap, UID: types.UID(namespace), Labels: map[string]string{labelManagedBy: "Helm"}},
			Data:       map[string]string{TrustKey: "mine"},
		}
	}
	// Ours with its labels edited away; its owner tells.
	bare := theirs("bare")
	bare.Labels, bare.OwnerReferences = nil, []metav1.OwnerReference{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "evenkeel-injector", UID: "role-0"}}
	c := newCluster(t, ns("shop", "enabled"), ns("plain", ""), ns("bare", "enabled"), theirs("shop"), theirs("plain"), bare)
	c.reconcile(t)
	blocked := func(want int) {
		t.Helper()
		families, err := c.gauges.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range families {
			if f.GetName() == "evenkeel_trust_bundle_blocked" {
				n = len(f.GetMetric())
			}
		}
		if n != want {
			t.Errorf("%d namespaces are told to be blocked, want %d", n, want)
		}
	}
	for range 2 { // told once
		for _, n := range []string{"shop", "plain", "bare"} {
			c.publish(t, n)
		}
	}
	cm := &corev1.ConfigMap{}
	for _, n := range []string{"shop", "plain"} {
		if c.get(t, n, TrustConfigMap, cm); cm.Data[TrustKey] != "mine" || cm.Labels[labelManagedBy] != "Helm" || len(cm.OwnerReferences) != 0 {
			t.Errorf("someone else's ConfigMap in %s was touched: %v", n, cm)
		}
	}
	if c.get(t, "bare", TrustConfigMap, cm); cm.Data[TrustKey] != string(c.caBundle(t)) || cm.Labels[labelManagedBy] != managedBy {
		t.Errorf("our own without labels was not put right: %v", cm)
	}
	blocked(1) // nothing needs one in plain
	var told []string
	for _, n := range c.notes.list {
		if strings.HasPrefix(n, "NameTaken: ConfigMap shop/evenkeel-ca is not Evenkeel's") {
			told = append(told, n)
		}
	}
	if len(told) != 1 {
		t.Errorf("Events %q, want one about shop", c.notes.list)
	}

	remove(t, c, theirs("shop"))
	c.publish(t, "shop")
	if c.get(t, "shop", TrustConfigMap, cm); cm.Data[TrustKey] != string(c.caBundle(t)) {
		t.Error("the name is free, and there is no bundle")
	}
	blocked(0)

	// Theirs again, in place of ours: the namespace may go too.
	remove(t, c, cm)
	if err := c.client.Create(t.Context(), theirs("shop")); err != nil {
		t.Fatal(err)
	}
	c.publish(t, "shop")
	blocked(1)
	remove(t, c, ns("shop", "enabled"))
	c.publish(t, "shop")
	blocked(0)
}
