// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
)

// issuer signs tokens as an API server does, and serves its keys.
type issuer struct {
	t       testing.TB
	name    string
	keys    map[string]*ecdsa.PrivateKey // by kid: those that are published
	fetches atomic.Int64
	err     error
}

func newIssuer(t testing.TB, kids ...string) *issuer {
	i := &issuer{t: t, name: "https://kubernetes.default.svc.cluster.local", keys: map[string]*ecdsa.PrivateKey{}}
	for _, k := range kids {
		i.keys[k] = newKey(t)
	}
	return i
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (i *issuer) TokenKeys(context.Context) (string, []byte, error) {
	i.fetches.Add(1)
	if i.err != nil {
		return "", nil, i.err
	}
	var set jose.JSONWebKeySet
	for kid, k := range i.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public(), KeyID: kid, Algorithm: "ES256", Use: "sig"})
	}
	raw, err := json.Marshal(set)
	return i.name, raw, err
}

type claims = map[string]any

func (i *issuer) claims(pod string) claims {
	now := time.Now()
	return claims{
		"iss": i.name, "aud": []string{"evenkeel"}, "sub": "system:serviceaccount:shop:default",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace": "shop", "pod": map[string]string{"name": pod, "uid": "uid-" + pod},
			"serviceaccount": map[string]string{"name": "default", "uid": "x"},
		},
	}
}

func (i *issuer) sign(kid string, key *ecdsa.PrivateKey, c claims) string {
	i.t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", kid))
	if err != nil {
		i.t.Fatal(err)
	}
	tok, err := jwt.Signed(s).Claims(c).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return tok
}

func (i *issuer) verifier(change func(*TokenConfig)) *TokenVerifier {
	i.t.Helper()
	cfg := TokenConfig{Logger: slog.New(slog.DiscardHandler), Keys: i, Audience: "evenkeel"}
	if change != nil {
		change(&cfg)
	}
	v, err := NewTokenVerifier(cfg)
	if err != nil {
		i.t.Fatal(err)
	}
	return v
}

func TestToken(t *testing.T) {
	i := newIssuer(t, "k1")
	v := i.verifier(nil)
	id, err := v.Authenticate(t.Context(), i.sign("k1", i.keys["k1"], i.claims("web-1")))
	if err != nil || id != (Identity{"shop", "web-1", "uid-web-1"}) {
		t.Fatalf("%+v, %v", id, err)
	}
	with := func(change func(claims)) claims {
		c := i.claims("web-1")
		change(c)
		return c
	}
	hour := func(n int) int64 { return time.Now().Add(time.Duration(n) * time.Hour).Unix() }
	for name, tt := range map[string]struct {
		token string
		part  string
	}{
		"no JWT":           {"hello", "not a signed JWT"},
		"too long":         {strings.Repeat("x", 20<<10), "20480 bytes"},
		"unsigned":         {"eyJhbGciOiJub25lIn0.eyJpc3MiOiJ4In0.", "not a signed JWT"},
		"another audience": {i.sign("k1", i.keys["k1"], with(func(c claims) { c["aud"] = "https://kubernetes.default.svc" })), "audience"},
		"no audience":      {i.sign("k1", i.keys["k1"], with(func(c claims) { delete(c, "aud") })), "audience"},
		"another issuer":   {i.sign("k1", i.keys["k1"], with(func(c claims) { c["iss"] = "https://elsewhere" })), `issuer "https://elsewhere"`},
		"expired":          {i.sign("k1", i.keys["k1"], with(func(c claims) { c["exp"] = hour(-1) })), "expired"},
		"not yet valid":    {i.sign("k1", i.keys["k1"], with(func(c claims) { c["nbf"] = hour(1) })), "not valid yet"},
		"without an end":   {i.sign("k1", i.keys["k1"], with(func(c claims) { delete(c, "exp") })), "never expires"},
		"of no pod": {i.sign("k1", i.keys["k1"], with(func(c claims) {
			c["kubernetes.io"] = map[string]any{"namespace": "shop"}
		})), "not bound to a pod"},
		"of no pod's UID": {i.sign("k1", i.keys["k1"], with(func(c claims) {
			c["kubernetes.io"] = map[string]any{"namespace": "shop", "pod": map[string]string{"name": "web-1"}}
		})), "not bound to a pod"},
		"another's key under our name": {i.sign("k1", newKey(t), i.claims("web-1")), "signature"},
		"unknown key":                  {i.sign("k9", newKey(t), i.claims("web-1")), `key "k9"`},
		"no key named":                 {i.sign("", i.keys["k1"], i.claims("web-1")), "none of the cluster's"},
	} {
		if id, err := v.Authenticate(t.Context(), tt.token); err == nil || !strings.Contains(err.Error(), tt.part) {
			t.Errorf("%s: %+v, %v; want an error that says %q", name, id, err, tt.part)
		}
	}
	if n := i.fetches.Load(); n != 1 {
		t.Errorf("the API server was asked %d times within MinInterval", n)
	}
}

func TestTokenKeysChange(t *testing.T) {
	i := newIssuer(t, "k1")
	v := i.verifier(func(c *TokenConfig) { c.MinInterval = time.Nanosecond })
	old := i.sign("k1", i.keys["k1"], i.claims("web-1"))
	if _, err := v.Authenticate(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	// A new key is found because it is not known.
	i.keys["k2"] = newKey(t)
	if _, err := v.Authenticate(t.Context(), i.sign("k2", i.keys["k2"], i.claims("web-1"))); err != nil {
		t.Errorf("new key: %v", err)
	}
	// The API server is away: what is known goes on, what is not stays refused.
	i.err = errors.New("connection refused")
	if _, err := v.Authenticate(t.Context(), old); err != nil {
		t.Errorf("old key, API server away: %v", err)
	}
	if _, err := v.Authenticate(t.Context(), i.sign("k3", newKey(t), i.claims("web-1"))); err == nil {
		t.Error("a token of an unknown key was accepted")
	}
	// A key that was withdrawn is refused once the keys were fetched again.
	i.err = nil
	delete(i.keys, "k1")
	_, _ = v.Authenticate(t.Context(), i.sign("k3", newKey(t), i.claims("web-1")))
	if _, err := v.Authenticate(t.Context(), old); err == nil {
		t.Error("a withdrawn key was accepted")
	}
}

// hangingKeys serves the issuer's keys once and then hangs, as an API server does that is overloaded.
type hangingKeys struct {
	*issuer
	hangs chan struct{} // one for each question that hangs
}

func (h hangingKeys) TokenKeys(ctx context.Context) (string, []byte, error) {
	if h.fetches.Load() == 0 {
		return h.issuer.TokenKeys(ctx)
	}
	h.hangs <- struct{}{}
	<-ctx.Done()
	return "", nil, ctx.Err()
}

// Sidecars whose key is known do not wait for a question that hangs.
func TestTokenKeysHang(t *testing.T) {
	i := newIssuer(t, "k1")
	h := hangingKeys{i, make(chan struct{}, 8)}
	const hang = time.Second
	v := i.verifier(func(c *TokenConfig) {
		c.Keys, c.Refresh, c.MinInterval, c.FetchTimeout = h, time.Nanosecond, time.Nanosecond, hang
	})
	if err := v.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := i.sign("k1", i.keys["k1"], i.claims("web-1"))
	asker := make(chan error, 1)
	go func() { _, err := v.Authenticate(t.Context(), known); asker <- err }()
	<-h.hangs
	begin := time.Now()
	for range 100 {
		if _, err := v.Authenticate(t.Context(), known); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d > hang*3/4 {
		t.Errorf("100 known tokens took %s while a question hung", d)
	}
	if err := <-asker; err != nil {
		t.Errorf("the one who asked: %v; the keys were good before", err)
	}
}

// Before the keys were had once, the sidecar is not to blame: it tries again.
func TestTokenKeysNeverHad(t *testing.T) {
	i := newIssuer(t, "k1")
	i.err = errors.New("connection refused")
	v := i.verifier(nil)
	if err := v.Warm(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Warm: %v", err)
	}
	_, err := v.Authenticate(t.Context(), i.sign("k1", i.keys["k1"], i.claims("web-1")))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v; want UNAVAILABLE with the reason", err)
	}
}

func TestStreamAuthentication(t *testing.T) {
	i := newIssuer(t, "k1")
	token := func(pod string) string { return i.sign("k1", i.keys["k1"], i.claims(pod)) }
	w := newWorld(t, func(c *Config) { c.Authenticator, c.PodWait = i.verifier(nil), 100*time.Millisecond })
	w.synced(service("pricing", "10.96.0.4"), pod("web-1", "uid-web-1"), pod("web-2", "other"))
	node := func(pod string) xds.Node { return xds.Node{Namespace: "shop", Pod: pod, UID: "uid-" + pod} }
	for name, tt := range map[string]struct {
		node  xds.Node
		token string
		parts []string
	}{
		"no token":                      {node("web-1"), "", []string{"Unauthenticated", "authorization", "Bearer"}},
		"nonsense":                      {node("web-1"), "nonsense", []string{"Unauthenticated", "not a signed JWT"}},
		"another pod's token":           {node("web-1"), token("web-3"), []string{"PermissionDenied", "shop/web-3", "shop/web-1"}},
		"another UID":                   {xds.Node{Namespace: "shop", Pod: "web-1", UID: "x"}, token("web-1"), []string{"PermissionDenied", "uid-web-1", "UID x"}},
		"a pod that does not exist":     {node("web-9"), token("web-9"), []string{"Unauthenticated", "shop/web-9", "does not exist"}},
		"a pod replaced by another":     {node("web-2"), token("web-2"), []string{"Unauthenticated", "uid-web-2", "does not exist"}},
		"another namespace in the node": {xds.Node{Namespace: "bank", Pod: "web-1", UID: "uid-web-1"}, token("web-1"), []string{"PermissionDenied", "bank/web-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, w.lis, tt.node, tt.token)
			c.subscribe(xds.DestinationType, pricingAddr)
			c.fails(tt.parts...)
		})
	}
	c := connect(t, w.lis, node("web-1"), token("web-1"))
	c.subscribe(xds.DestinationType, pricingAddr)
	c.until("it is answered", func() bool { return c.resources[pricingAddr] != nil })
	if log := w.log.String(); !strings.Contains(log, "refused a stream") || !strings.Contains(log, "does not exist") {
		t.Errorf("the log does not tell why:\n%s", log)
	}

	// The stream ends with its Pod, not with its token.
	w.apply(gone(pod("web-1", "")))
	c.fails("Unauthenticated", "is gone")
	w.srv.hub.mu.Lock()
	defer w.srv.hub.mu.Unlock()
	if n := len(w.srv.hub.pods); n > 1 { // the stream's own end may be under way
		t.Errorf("%d pods are still waited for", n)
	}
}

// The kubelet may start a sidecar before the watch has shown its Pod.
func TestStreamWaitsForItsPod(t *testing.T) {
	i := newIssuer(t, "k1")
	w := newWorld(t, func(c *Config) { c.Authenticator = i.verifier(nil) })
	local := service("pricing", "10.96.0.4")
	local.Service.LocalOnly = true
	w.synced(local, slice("pricing", 1, 2, 3, 4)) // 1 and 4 are on node1
	c := connect(t, w.lis, xds.Node{Namespace: "shop", Pod: "web-1", Node: "node2"}, i.sign("k1", i.keys["k1"], i.claims("web-1")))
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	eventually(t, "the stream waits", func() bool {
		w.srv.hub.mu.Lock()
		defer w.srv.hub.mu.Unlock()
		return len(w.srv.hub.pods) == 1
	})
	w.apply(pod("web-1", "uid-web-1"))
	c.wantEndpoints(pricing, ready(1, 4)...) // the API server's node counts, not the client's
}

// A watch that is far behind has the Pod as it was made, before it was scheduled.
func TestStreamOfAPodSeenBeforeItWasScheduled(t *testing.T) {
	i := newIssuer(t, "k1")
	w := newWorld(t, func(c *Config) { c.Authenticator = i.verifier(nil) })
	local := service("pricing", "10.96.0.4")
	local.Service.LocalOnly = true
	unscheduled := pod("web-1", "uid-web-1")
	unscheduled.Pod.Node = ""
	w.synced(local, slice("pricing", 1, 2, 3, 4), unscheduled)
	c := connect(t, w.lis, xds.Node{Namespace: "shop", Pod: "web-1", Node: "node2"}, i.sign("k1", i.keys["k1"], i.claims("web-1")))
	c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
	c.wantEndpoints(pricing, ready(2)...)
}
