// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"evenkeel.dev/injector/pki"
)

func TestFirstStart(t *testing.T) {
	c := newCluster(t)
	c.reconcile(t)
	bundle := c.caBundle(t)
	for _, name := range []string{RootSecret, XDSSecret, InjectorSecret} {
		s := c.secret(t, name)
		if s.Type != corev1.SecretTypeTLS {
			t.Errorf("Secret %s has type %s", name, s.Type)
		}
		if len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != "role-1" || s.OwnerReferences[0].BlockOwnerDeletion != nil {
			t.Errorf("Secret %s is owned by %v: uninstalling leaves it behind", name, s.OwnerReferences)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	for name, hosts := range map[string][]string{
		XDSSecret:      {"evenkeel-xds", "evenkeel-xds.evenkeel-system", "evenkeel-xds.evenkeel-system.svc", "evenkeel-xds.evenkeel-system.svc.cluster.local"},
		InjectorSecret: {"evenkeel-injector.evenkeel-system.svc"},
	} {
		for _, host := range hosts {
			if _, err := c.leaf(t, name).Cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: c.clock.Now(), DNSName: host}); err != nil {
				t.Errorf("%s for %s: %v", name, host, err)
			}
		}
	}
	if b, _ := c.keeper.Trust.Get(); !bytes.Equal(b, bundle) {
		t.Error("pods are to trust something else than the webhook's configuration")
	}

	before := c.writes
	c.reconcile(t)
	c.lead(t)
	c.reconcile(t)
	if c.writes != before {
		t.Errorf("nothing had changed, yet %d writes", c.writes-before)
	}
}

// TestRotation runs the whole of it: months pass, every certificate is renewed
// in time, and a real HTTPS client that trusts the caBundle is always served, by
// a server that is never restarted.
func TestRotation(t *testing.T) {
	c := newCluster(t)
	c.cfg.Policy = pki.Policy{RootLifetime: 300 * day, RootRenewBefore: 100 * day}.WithDefaults()
	c.lead(t)
	c.reconcile(t)

	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(c.clock.Now, c.cfg.Logger, m)
	if err := store.Ready(nil); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("ready without a certificate: %v", err)
	}
	events := store.Handler()
	events.OnAdd(c.secret(t, InjectorSecret), true)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	server.TLS = &tls.Config{GetCertificate: store.GetCertificate}
	// httptest puts a certificate of its own first, unless GetConfigForClient says else.
	server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{GetCertificate: store.GetCertificate, MinVersion: tls.VersionTLS12}, nil
	}
	server.StartTLS()
	defer server.Close()
	call := func() (*x509.Certificate, error) {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(c.caBundle(t))
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "evenkeel-injector.evenkeel-system.svc", Time: c.clock.Now}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			return nil, err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return resp.TLS.PeerCertificates[0], nil
	}

	served, roots := map[string]bool{}, map[string]bool{}
	end := c.clock.Now().Add(400 * day)
	for c.clock.Now().Before(end) {
		cert, err := call()
		if err != nil {
			t.Fatalf("%s: %v", c.clock.Now(), err)
		}
		served[cert.SerialNumber.String()] = true
		roots[cert.Issuer.CommonName] = true
		if left := cert.NotAfter.Sub(c.clock.Now()); left < 7*day {
			t.Fatalf("%s: the certificate has %s left, want a third of its life less one step of 2 days", c.clock.Now(), left)
		}
		// As controller-runtime would, but in larger steps when nothing is due.
		c.clock.Advance(max(c.reconcile(t), 2*day))
		old := c.secret(t, InjectorSecret)
		c.reconcile(t)
		events.OnUpdate(old, c.secret(t, InjectorSecret))
	}
	if len(roots) != 2 {
		t.Errorf("%d roots served in 400 days, want 2", len(roots))
	}
	if n := len(served); n < 17 || n > 24 {
		t.Errorf("%d certificates served in 400 days, want about 20", n)
	}
	if err := store.Ready(nil); err != nil {
		t.Error(err)
	}
	c.clock.Advance(40 * day)
	if err := store.Ready(nil); err == nil {
		t.Error("ready with a certificate that has ended")
	}
}

func TestStoreKeepsTheLastGoodOne(t *testing.T) {
	c := newCluster(t)
	c.reconcile(t)
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(c.clock.Now, c.cfg.Logger, m)
	events := store.Handler()
	good := c.secret(t, InjectorSecret)
	events.OnAdd(good, true)
	want, err := store.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	broken := good.DeepCopy()
	broken.Data[pki.KeyKey] = []byte("x")
	events.OnUpdate(good, broken)
	events.OnDelete(broken)
	if got, err := store.GetCertificate(nil); err != nil || got != want {
		t.Errorf("after damage: %v, %v", got, err)
	}
}

func TestPutRight(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, c *cluster)
		// forget: another process leads from now on.
		forget   bool
		sameRoot bool
		event    string
	}{
		{name: "Secrets deleted", sameRoot: true, event: "RootDamaged: Secret evenkeel-ca: nothing stored", damage: func(t *testing.T, c *cluster) {
			for _, n := range []string{RootSecret, XDSSecret, InjectorSecret} {
				remove(t, c, c.secret(t, n))
			}
		}},
		{name: "root deleted, another leads", forget: true, event: "RootsChanged: root made", damage: func(t *testing.T, c *cluster) {
			remove(t, c, c.secret(t, RootSecret))
		}},
		{name: "root emptied", sameRoot: true, event: "RootDamaged", damage: func(t *testing.T, c *cluster) {
			edit(t, c, RootSecret, func(s *corev1.Secret) { s.Data = nil })
		}},
		{name: "root's key damaged", sameRoot: true, event: "RootDamaged: Secret evenkeel-ca: tls.crt, tls.key: private key", damage: func(t *testing.T, c *cluster) {
			edit(t, c, RootSecret, func(s *corev1.Secret) { s.Data[pki.KeyKey] = []byte("x") })
		}},
		{name: "root's key damaged, another leads", forget: true, event: "RootDamaged", damage: func(t *testing.T, c *cluster) {
			edit(t, c, RootSecret, func(s *corev1.Secret) { s.Data[pki.KeyKey] = []byte("x") })
		}},
		{name: "root's certificate lost, another leads", forget: true, sameRoot: true, event: "RootDamaged", damage: func(t *testing.T, c *cluster) {
			edit(t, c, RootSecret, func(s *corev1.Secret) { delete(s.Data, pki.KeyCert); delete(s.Data, pki.KeyBundle) })
		}},
		{name: "caBundle emptied", sameRoot: true, damage: func(t *testing.T, c *cluster) {
			w := &admissionregistrationv1.MutatingWebhookConfiguration{}
			c.get(t, "", "evenkeel-injector", w)
			w.Webhooks[0].ClientConfig.CABundle = nil
			if err := c.client.Update(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "roots beside a serving certificate lost", sameRoot: true, damage: func(t *testing.T, c *cluster) {
			edit(t, c, XDSSecret, func(s *corev1.Secret) { delete(s.Data, pki.KeyRoots) })
		}},
		{name: "owner reference lost", sameRoot: true, damage: func(t *testing.T, c *cluster) {
			edit(t, c, XDSSecret, func(s *corev1.Secret) { s.OwnerReferences = nil })
		}},
		{name: "owner made anew", sameRoot: true, damage: func(t *testing.T, c *cluster) {
			role := &rbacv1.ClusterRole{}
			c.get(t, "", "evenkeel-injector", role)
			remove(t, c, role)
			role.UID, role.ResourceVersion = "role-2", ""
			if err := c.client.Create(t.Context(), role); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			c.reconcile(t)
			root := c.leaf(t, RootSecret).Cert
			inUse := c.leaf(t, XDSSecret).Cert
			c.clock.Advance(2 * day)
			tc.damage(t, c)
			if tc.forget {
				c.lead(t)
			}
			c.notes.list = nil
			c.reconcile(t)

			if same := c.leaf(t, RootSecret).Cert.Equal(root); same != tc.sameRoot {
				t.Errorf("the same root signs = %v, want %v", same, tc.sameRoot)
			}
			bundle := c.caBundle(t)
			if b, _ := c.keeper.Trust.Get(); !bytes.Equal(b, bundle) || !bytes.Equal(c.secret(t, XDSSecret).Data[pki.KeyRoots], bundle) {
				t.Error("not everybody trusts the same")
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(bundle)
			for what, cert := range map[string]*x509.Certificate{"the certificate that was in use": inUse, "the stored one": c.leaf(t, XDSSecret).Cert} {
				if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: c.clock.Now()}); err != nil {
					t.Errorf("%s is not trusted: %v", what, err)
				}
			}
			if text := strings.Join(c.notes.list, "\n"); !strings.Contains(text, tc.event) || tc.event == "" && text != "" {
				t.Errorf("events %q, want %q", text, tc.event)
			}
			role := &rbacv1.ClusterRole{}
			c.get(t, "", "evenkeel-injector", role)
			for _, n := range []string{RootSecret, XDSSecret, InjectorSecret} {
				if refs := c.secret(t, n).OwnerReferences; len(refs) != 1 || refs[0].UID != role.UID {
					t.Errorf("Secret %s is owned by %v", n, refs)
				}
			}
			writes := c.writes
			c.reconcile(t)
			if c.writes != writes {
				t.Error("it is put right again and again")
			}
		})
	}
}

// TestWriteOrder: a serving certificate must not be met before its root is
// trusted, and a failure in one place must not stop the other certificates.
func TestWriteOrder(t *testing.T) {
	c := newCluster(t)
	fail := errors.New("conflict")
	c.refuse = func(o client.Object) error {
		if _, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
			return fail
		}
		return nil
	}
	if _, err := c.keeper.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, fail) {
		t.Fatalf("error = %v", err)
	}
	if c.get(t, system, InjectorSecret, &corev1.Secret{}) {
		t.Error("a serving certificate was stored although the caBundle could not be")
	}

	c.refuse = func(o client.Object) error {
		if o.GetName() == XDSSecret {
			return fail
		}
		return nil
	}
	if _, err := c.keeper.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, fail) {
		t.Fatalf("error = %v", err)
	}
	c.leaf(t, InjectorSecret)

	c.refuse = nil
	c.reconcile(t)
	c.leaf(t, XDSSecret)
}

func TestUninstalling(t *testing.T) {
	c := newCluster(t)
	c.reconcile(t)
	role := &rbacv1.ClusterRole{}
	c.get(t, "", "evenkeel-injector", role)
	remove(t, c, role)
	remove(t, c, c.secret(t, RootSecret)) // as the garbage collector does
	if _, err := c.keeper.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "uninstalled") {
		t.Errorf("error = %v", err)
	}
	if c.get(t, system, RootSecret, &corev1.Secret{}) {
		t.Error("an orphan was made while the chart is being uninstalled")
	}
}

func TestWebhookConfigurationAway(t *testing.T) {
	c := newCluster(t)
	w := &admissionregistrationv1.MutatingWebhookConfiguration{}
	c.get(t, "", "evenkeel-injector", w)
	remove(t, c, w)
	c.reconcile(t)
	c.leaf(t, XDSSecret) // the control plane has its certificate all the same
}

func remove(t *testing.T, c *cluster, o client.Object) {
	t.Helper()
	if err := c.client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, c *cluster, secret string, change func(*corev1.Secret)) {
	t.Helper()
	s := c.secret(t, secret)
	change(s)
	if err := c.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}
