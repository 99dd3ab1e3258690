// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// KeySource fetches the cluster's issuer and the keys (JWKS) of its
// service-account tokens.
type KeySource interface {
	TokenKeys(ctx context.Context) (issuer string, jwks []byte, err error)
}

// TokenConfig configures a TokenVerifier.
type TokenConfig struct {
	// Logger and Keys are required.
	Logger *slog.Logger
	Keys   KeySource
	// Audience that a token must be for. Required.
	Audience string
	// Refresh is how old the keys may get. Default: 10 minutes.
	Refresh time.Duration
	// MinInterval bounds how often the API server is asked, also for tokens
	// signed by an unknown key. Default: 5 s.
	MinInterval time.Duration
	// FetchTimeout bounds one question. Default: 5 s.
	FetchTimeout time.Duration
}

// TokenVerifier verifies projected service-account tokens locally. Thousands of
// sidecars that come back at once must not queue behind TokenReview.
type TokenVerifier struct {
	cfg TokenConfig

	// asking is held while the API server is asked: one asks, and those who need
	// the answer wait for it. Who has a known key never waits behind another.
	asking sync.Mutex

	mu      sync.Mutex // guards what follows; not held while asking
	issuer  string
	keys    jose.JSONWebKeySet
	fetched time.Time // the last success
	tried   time.Time
	err     error // of the last try
}

// NewTokenVerifier returns a verifier; it fetches the keys when first needed.
func NewTokenVerifier(cfg TokenConfig) (*TokenVerifier, error) {
	if cfg.Logger == nil || cfg.Keys == nil || cfg.Audience == "" {
		return nil, errors.New("token verifier: Logger, Keys and Audience are required")
	}
	setDefault(&cfg.Refresh, 10*time.Minute)
	setDefault(&cfg.MinInterval, 5*time.Second)
	setDefault(&cfg.FetchTimeout, 5*time.Second)
	return &TokenVerifier{cfg: cfg}, nil
}

// algorithms are those that the API server can sign with
// (https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/,
// --service-account-signing-key-file: RSA or ECDSA; external signers: the same).
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// kubeClaims are the private claims of a bound token.
type kubeClaims struct {
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// leeway is the clock difference between nodes and control plane that is let pass.
const leeway = 30 * time.Second

// maxToken is far above any service-account token (about 1 KiB).
const maxToken = 16 << 10

// Authenticate verifies the signature, issuer, audience, times and that the
// token is bound to a Pod. Whether that Pod exists is the stream's question.
func (v *TokenVerifier) Authenticate(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxToken {
		return Identity{}, fmt.Errorf("%d bytes are not a service-account token", len(token))
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Identity{}, fmt.Errorf("not a signed JWT: %s", err.Error())
	}
	if len(parsed.Headers) != 1 {
		return Identity{}, errors.New("want a JWT with one signature")
	}
	key, issuer, err := v.key(ctx, parsed.Headers[0].KeyID)
	if err != nil {
		return Identity{}, err
	}
	var std jwt.Claims
	var kube kubeClaims
	if err := parsed.Claims(key, &std, &kube); err != nil {
		return Identity{}, fmt.Errorf("signature: %s", err.Error())
	}
	if std.Expiry == nil {
		return Identity{}, errors.New("it never expires; want a projected token")
	}
	err = std.ValidateWithLeeway(jwt.Expected{Issuer: issuer, AnyAudience: jwt.Audience{v.cfg.Audience}, Time: time.Now()}, leeway)
	if err != nil {
		return Identity{}, fmt.Errorf("%s (issuer %q, audience %q, expires %s; want issuer %q, audience %q)",
			err.Error(), std.Issuer, []string(std.Audience), std.Expiry.Time().UTC().Format(time.RFC3339), issuer, v.cfg.Audience)
	}
	k := kube.Kubernetes
	if k.Namespace == "" || k.Pod.Name == "" || k.Pod.UID == "" {
		return Identity{}, errors.New("it is not bound to a pod; want a projected volume's token")
	}
	return Identity{Namespace: k.Namespace, Pod: k.Pod.Name, UID: k.Pod.UID}, nil
}

// key returns the key of that id, asking the API server for newer keys when it
// is not known or the keys are old.
func (v *TokenVerifier) key(ctx context.Context, kid string) (*jose.JSONWebKey, string, error) {
	found, issuer, due := v.look(kid)
	switch {
	case found != nil && !due:
		return found, issuer, nil
	case found != nil:
		// One of those who come asks. The others go on with what was good until now:
		// an API server that hangs must not hold up thousands of sidecars.
		if !v.asking.TryLock() {
			return found, issuer, nil
		}
	default:
		v.asking.Lock()
	}
	defer v.asking.Unlock()
	if _, _, due = v.look(kid); due { // nobody asked meanwhile
		v.fetch(ctx)
	}
	found, issuer, _ = v.look(kid)
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case found != nil:
		return found, issuer, nil // also when the newest question failed: the keys were good before
	case v.fetched.IsZero():
		return nil, "", status.Errorf(codes.Unavailable, "evenkeel: tokens cannot be verified yet: %v", v.err)
	}
	return nil, "", fmt.Errorf("signed with key %.100q, which is none of the cluster's", kid)
}

// look returns what is known of a key, and whether the API server is to be asked.
func (v *TokenVerifier) look(kid string) (found *jose.JSONWebKey, issuer string, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	found = v.find(kid)
	old := v.fetched.IsZero() || now.Sub(v.fetched) > v.cfg.Refresh
	due = (found == nil || old) && (v.tried.IsZero() || now.Sub(v.tried) >= v.cfg.MinInterval)
	return found, v.issuer, due
}

// find needs mu. What it returns is never written: keys are replaced as a whole.
func (v *TokenVerifier) find(kid string) *jose.JSONWebKey {
	i := slices.IndexFunc(v.keys.Keys, func(k jose.JSONWebKey) bool { return k.KeyID == kid && k.IsPublic() })
	if kid == "" || i < 0 {
		return nil
	}
	return &v.keys.Keys[i]
}

// fetch leaves the old keys in force when it fails; asking is held. One caller's
// cancelled RPC must not fail the others who wait, so only the timeout bounds it.
func (v *TokenVerifier) fetch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.cfg.FetchTimeout)
	defer cancel()
	issuer, raw, err := v.cfg.Keys.TokenKeys(ctx)
	var keys jose.JSONWebKeySet
	if err == nil {
		if err = json.Unmarshal(raw, &keys); err == nil && len(keys.Keys) == 0 {
			err = errors.New("no keys in the JWKS")
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tried, v.err = time.Now(), err
	if err != nil {
		v.cfg.Logger.Warn("cannot fetch the keys of service-account tokens", "error", err, "have", len(v.keys.Keys))
		return
	}
	v.issuer, v.keys, v.fetched = issuer, keys, time.Now()
}

// Warm fetches the keys if there are none, so that the first sidecar need not wait.
func (v *TokenVerifier) Warm(ctx context.Context) error {
	v.asking.Lock()
	defer v.asking.Unlock()
	if v.had() {
		return nil
	}
	v.fetch(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// had reports whether there ever were keys.
func (v *TokenVerifier) had() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.fetched.IsZero()
}
