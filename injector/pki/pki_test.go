// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	epoch = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	names = []string{"evenkeel-xds.evenkeel-system.svc", "evenkeel-xds"}
)

const day = 24 * time.Hour

func policy(t testing.TB) Policy {
	t.Helper()
	p := Policy{}.WithDefaults()
	if err := p.Validate(); err != nil {
		t.Fatalf("the default policy does not validate: %v", err)
	}
	return p
}

func advance(t testing.TB, p Policy, a *Authority, o Observed) (*Authority, []string) {
	t.Helper()
	next, changes, err := p.Advance(a, o)
	if err != nil {
		t.Fatal(err)
	}
	if next.Signing == nil {
		t.Fatal("Advance returned an authority that cannot sign")
	}
	return next, changes
}

func issue(t testing.TB, p Policy, a *Authority, now time.Time) *Pair {
	t.Helper()
	leaf, err := p.Issue(a, names, now)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// handshake is what a client does: real TLS at time now, trusting exactly bundle.
func handshake(t testing.TB, bundle []byte, leaf *Pair, now time.Time) error {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(bundle) {
		t.Fatal("bundle holds no certificate")
	}
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv := tls.Server(s, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}},
			Time:         func() time.Time { return now },
		})
		if srv.Handshake() == nil {
			_, _ = io.Copy(io.Discard, srv)
		}
		s.Close()
	}()
	client := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: names[0], Time: func() time.Time { return now }})
	err := client.Handshake()
	c.Close()
	<-served
	return err
}

func TestFirstAuthority(t *testing.T) {
	p := policy(t)
	a, changes := advance(t, p, &Authority{}, Observed{Now: epoch})
	if len(changes) != 1 || !strings.Contains(changes[0], "root made") {
		t.Errorf("changes = %q, want one that says a root was made", changes)
	}
	leaf := issue(t, p, a, epoch)
	if err := handshake(t, a.BundlePEM(), leaf, epoch); err != nil {
		t.Errorf("a client that trusts the bundle refuses the first certificate: %v", err)
	}
	if r := p.ReissueReason(a, leaf, names, Observed{Now: epoch}); r != "" {
		t.Errorf("a new certificate is to be replaced at once: %s", r)
	}
	again, changes := advance(t, p, a, Observed{Now: epoch, Leaves: []*x509.Certificate{leaf.Cert}})
	if len(changes) != 0 || !again.Signing.Cert.Equal(a.Signing.Cert) {
		t.Errorf("nothing is due, yet Advance changed: %q", changes)
	}
}

// TestLifeOfACluster walks three years (roots of two) in steps of some hours with clients that
// are always most of a day behind with what they trust, and two servers that reload late.
// No handshake may ever fail.
func TestLifeOfACluster(t *testing.T) {
	p := Policy{RootLifetime: 730 * day, RootRenewBefore: 90 * day}.WithDefaults()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	const years = 3
	const step = 7 * time.Hour
	const refresh = 21 * time.Hour // how late clients and servers see a change
	type past struct {
		at     time.Time
		bundle []byte
		leaf   *Pair
	}
	var history []past
	old := func(now time.Time) past {
		for _, h := range slices.Backward(history) {
			if now.Sub(h.at) >= refresh {
				return h
			}
		}
		return history[0]
	}

	a := &Authority{}
	var leaf *Pair
	var leaves []*x509.Certificate
	roots, reissued, maxBundle := map[string]bool{}, 0, 0
	publishedSince := epoch
	var lastBundle []byte
	for now := epoch; now.Before(epoch.Add(years * 365 * day)); now = now.Add(step) {
		o := Observed{Now: now, Leaves: leaves, PublishedSince: publishedSince}
		a, _ = advance(t, p, a, o)
		if b := a.BundlePEM(); !bytes.Equal(b, lastBundle) {
			lastBundle, publishedSince = b, now
		}
		if leaf == nil || p.ReissueReason(a, leaf, names, o) != "" {
			leaf = issue(t, p, a, now)
			leaves = []*x509.Certificate{leaf.Cert}
			reissued++
		}
		roots[string(a.Signing.Cert.Raw)] = true
		maxBundle = max(maxBundle, len(a.Bundle()))
		history = append(history, past{now, a.BundlePEM(), leaf})
		if len(history) > 8 {
			history = history[1:]
		}
		// Chain checks stand for handshakes here, both ways stale.
		for what, pair := range map[string]struct {
			bundle []byte
			leaf   *Pair
		}{
			"client a refresh behind": {old(now).bundle, leaf},
			"server a refresh behind": {a.BundlePEM(), old(now).leaf},
		} {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(pair.bundle)
			if _, err := pair.leaf.Cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, DNSName: names[0]}); err != nil {
				t.Fatalf("%s, %s: %v", now, what, err)
			}
		}
		due := p.Due(a, Observed{Now: now, Leaves: leaves, PublishedSince: publishedSince})
		if due.After(now.Add(p.RootLifetime)) {
			t.Fatalf("%s: nothing due until %s", now, due)
		}
	}
	if len(roots) != 2 {
		t.Errorf("%d roots signed in 3 years, want 2 (2 years each, renewed 90 days before the end)", len(roots))
	}
	if maxBundle != 2 {
		t.Errorf("the largest bundle had %d roots, want 2: old and new valid for a while", maxBundle)
	}
	if len(a.Bundle()) != 1 {
		t.Errorf("the retired root is still trusted a year later: %d roots", len(a.Bundle()))
	}
	if want := years * 365 / 20; reissued < want-2 || reissued > want+3 {
		t.Errorf("certificates were issued %d times in 3 years, want about %d (two thirds of 30 days)", reissued, want)
	}
}

func TestPromotionWaitsForPublication(t *testing.T) {
	p := policy(t)
	a, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	near := a.Signing.Cert.NotAfter.Add(-p.RootRenewBefore)
	a, _ = advance(t, p, a, Observed{Now: near, PublishedSince: epoch})
	if a.Next == nil {
		t.Fatal("a year before the end there is no successor")
	}
	first := a.Signing.Cert
	for _, tc := range []struct {
		name     string
		at       time.Time
		since    time.Time
		promoted bool
	}{
		{"not published for a day", near.Add(p.PublishFor - time.Second), near, false},
		{"nobody has published since", near.Add(30 * day), time.Time{}, false},
		{"the publisher has just come back", near.Add(30 * day), near.Add(30*day - time.Minute), false},
		{"published for a day", near.Add(p.PublishFor), near, true},
	} {
		got, _ := advance(t, p, a, Observed{Now: tc.at, PublishedSince: tc.since})
		if promoted := !got.Signing.Cert.Equal(first); promoted != tc.promoted {
			t.Errorf("%s: promoted = %v, want %v", tc.name, promoted, tc.promoted)
		}
	}
}

func TestDamagedStore(t *testing.T) {
	p := policy(t)
	a, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	leaf := issue(t, p, a, epoch)
	good, err := Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	otherData, err := Encode(other)
	if err != nil {
		t.Fatal(err)
	}
	now := epoch.Add(3 * day)
	observed := Observed{Now: now, Leaves: []*x509.Certificate{leaf.Cert}, Roots: a.Bundle()}

	for _, tc := range []struct {
		name     string
		damage   func(d map[string][]byte)
		sameRoot bool
		problem  string
	}{
		{"intact", func(map[string][]byte) {}, true, ""},
		{"all gone", func(d map[string][]byte) { clear(d) }, false, "nothing stored"},
		{"key gone", func(d map[string][]byte) { delete(d, KeyKey) }, false, "tls.key: private key: empty"},
		{"key is garbage", func(d map[string][]byte) { d[KeyKey] = []byte("hello") }, false, "tls.key: private key: no PEM block"},
		{"key of another root", func(d map[string][]byte) { d[KeyKey] = otherData[KeyKey] }, false, "not the certificate's"},
		{"certificate gone", func(d map[string][]byte) { delete(d, KeyCert) }, true, "tls.crt, tls.key: certificate: empty"},
		{"certificate cut", func(d map[string][]byte) { d[KeyCert] = d[KeyCert][:200] }, true, "no PEM block"},
		{"certificate and bundle gone", func(d map[string][]byte) { delete(d, KeyCert); delete(d, KeyBundle) }, true, "certificate: empty"},
		{"bundle is garbage", func(d map[string][]byte) { d[KeyBundle] = []byte("-----BEGIN") }, true, "ca-bundle.crt"},
		{"bundle gone", func(d map[string][]byte) { delete(d, KeyBundle) }, true, ""},
		{"replaced by another whole root", func(d map[string][]byte) { clear(d); d[KeyCert], d[KeyKey] = otherData[KeyCert], otherData[KeyKey] }, false, ""},
		{"a serving certificate in its place", func(d map[string][]byte) {
			d[KeyCert], d[KeyKey], _ = EncodePair(leaf)
		}, false, "not a CA"},
		{"half a successor", func(d map[string][]byte) { d[KeyNextCert] = []byte("x") }, true, "next.crt"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := map[string][]byte{}
			for k, v := range good {
				data[k] = bytes.Clone(v)
			}
			tc.damage(data)
			got, problems := Decode(data, a.Bundle())
			if text := errors.Join(problems...); tc.problem == "" && text != nil || tc.problem != "" && (text == nil || !strings.Contains(text.Error(), tc.problem)) {
				t.Errorf("problems = %v, want one with %q", text, tc.problem)
			}
			healed, _ := advance(t, p, got, observed)
			if same := healed.Signing.Cert.Equal(a.Signing.Cert); same != tc.sameRoot {
				t.Errorf("the same root signs = %v, want %v", same, tc.sameRoot)
			}
			// The rule that matters: what is in use stays trusted, whatever happened.
			if err := handshake(t, healed.BundlePEM(), leaf, now); err != nil {
				t.Errorf("the certificate in use is trusted no more: %v", err)
			}
			// Clients that have not heard yet must go on meeting the old certificate.
			if r := p.ReissueReason(healed, leaf, names, observed); r != "" {
				t.Errorf("the certificate in use is replaced at once (%s): clients do not know the new root yet", r)
			}
			if !tc.sameRoot {
				if r := p.ReissueReason(healed, leaf, names, Observed{Now: now.Add(p.PublishFor), PublishedSince: now}); r != "another root signs now" {
					t.Errorf("a day later the certificate is not moved to the new root: %q", r)
				}
			}
			encoded, err := Encode(healed)
			if err != nil {
				t.Fatal(err)
			}
			back, problems := Decode(encoded, nil)
			if len(problems) != 0 || !back.Signing.Cert.Equal(healed.Signing.Cert) || len(back.Bundle()) != len(healed.Bundle()) {
				t.Errorf("encode and decode differ: %v", problems)
			}
		})
	}
}

func TestExpiredRoot(t *testing.T) {
	p := policy(t)
	a, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	now := a.Signing.Cert.NotAfter.Add(day)
	healed, changes := advance(t, p, a, Observed{Now: now})
	if healed.Signing.Cert.Equal(a.Signing.Cert) || len(healed.Bundle()) != 1 {
		t.Errorf("an ended root is still used or trusted: %q", changes)
	}
	if err := handshake(t, healed.BundlePEM(), issue(t, p, healed, now), now); err != nil {
		t.Error(err)
	}
}

func TestDamageDoesNotGrowTheBundle(t *testing.T) {
	p := policy(t)
	a := &Authority{}
	for i := range 30 {
		a, _ = advance(t, p, &Authority{Retired: a.Bundle()}, Observed{Now: epoch.Add(time.Duration(i) * time.Minute)})
	}
	if n := len(a.Bundle()); n != maxRetired+1 {
		t.Errorf("after 30 losses the bundle has %d roots, want %d", n, maxRetired+1)
	}
}

func TestReissueReason(t *testing.T) {
	p := policy(t)
	a, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	stranger, _ := advance(t, p, &Authority{}, Observed{Now: epoch})
	leaf := issue(t, p, a, epoch)
	for _, tc := range []struct {
		name  string
		leaf  *Pair
		names []string
		at    time.Time
		want  string
	}{
		{"day 19", leaf, names, epoch.Add(19 * day), ""},
		{"day 20", leaf, names, epoch.Add(20 * day), "two thirds"},
		{"day 30", leaf, names, epoch.Add(30 * day), "has ended"},
		{"long before", leaf, names, epoch.Add(-2 * day), "not valid yet"},
		{"names in another order", leaf, []string{names[1], names[0]}, epoch, ""},
		{"a name more", leaf, append([]string{"x.svc"}, names...), epoch, "its names are"},
		{"a stranger's", issue(t, p, stranger, epoch), names, epoch, "no trusted root"},
	} {
		got := p.ReissueReason(a, tc.leaf, tc.names, Observed{Now: tc.at})
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestPolicyValidate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		p     Policy
		field string
	}{
		{"negative", Policy{LeafLifetime: -1}, "LeafLifetime"},
		{"renewed too late", Policy{RootRenewBefore: 20 * day}, "RootRenewBefore"},
		{"renewed at once", Policy{RootLifetime: 300 * day}, "RootLifetime"},
	} {
		if err := tc.p.WithDefaults().Validate(); err == nil || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: %v, want an error that names %s", tc.name, err, tc.field)
		}
	}
}

func FuzzDecode(f *testing.F) {
	p := policy(f)
	a, _ := advance(f, p, &Authority{}, Observed{Now: epoch})
	good, err := Encode(a)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[KeyCert], good[KeyKey], good[KeyBundle], []byte(nil))
	f.Add([]byte("x"), good[KeyKey], good[KeyBundle], good[KeyCert])
	f.Fuzz(func(t *testing.T, cert, key, bundle, next []byte) {
		got, _ := Decode(map[string][]byte{KeyCert: cert, KeyKey: key, KeyBundle: bundle, KeyNextCert: next, KeyNextKey: key}, nil)
		healed, _ := advance(t, p, got, Observed{Now: epoch})
		// Whatever was stored, the result can sign, and clients accept what it signs.
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(healed.BundlePEM())
		leaf, err := p.Issue(healed, names, epoch)
		if err != nil {
			return // a foreign root may bring a key type or constraints that refuse
		}
		_ = leaf
		if len(healed.Bundle()) == 0 {
			t.Fatal("empty bundle")
		}
	})
}
