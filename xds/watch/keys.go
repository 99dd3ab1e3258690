// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// TokenKeys asks the API server for what its service-account tokens are
// verified with: the issuer and the keys (a JWKS, as JSON). Every service
// account may (ClusterRole system:service-account-issuer-discovery).
func (k *Kube) TokenKeys(ctx context.Context) (issuer string, jwks []byte, err error) {
	rest := k.client.Discovery().RESTClient()
	if rest == nil {
		return "", nil, errors.New("this API client cannot fetch token keys")
	}
	doc, err := rest.Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("service-account issuer of the API server: %w", err)
	}
	var conf struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(doc, &conf); err != nil || conf.Issuer == "" {
		return "", nil, fmt.Errorf("service-account issuer of the API server: no issuer in its openid-configuration (%.200q)", doc)
	}
	// Not the document's jwks_uri: it may lead out of the cluster, and the same
	// keys are served here. As a JWK set (RFC 7517 §8.5.2): asked for plain JSON, the
	// API server answers 406.
	jwks, err = rest.Get().AbsPath("/openid/v1/jwks").SetHeader("Accept", "application/jwk-set+json, application/json").DoRaw(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("service-account keys of the API server: %w", err)
	}
	return conf.Issuer, jwks, nil
}
