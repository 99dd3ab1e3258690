// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// apiClient is just enough of a client to poll the API server cheaply; tests
// that want more use Kubeconfig with a client of their choice.
type apiClient struct {
	base string
	http *http.Client
}

func newAPIClient(cfg Config, hostPort uint16) (*apiClient, error) {
	dir := filepath.Join(cfg.runDir(), "pki")
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &apiClient{
		base: fmt.Sprintf("https://127.0.0.1:%d", hostPort),
		http: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
				ForceAttemptHTTP2: true,
			},
		},
	}, nil
}

func (a *apiClient) close() {
	if a != nil {
		a.http.CloseIdleConnections()
	}
}

// errNotFound is the API server's 404.
var errNotFound = errors.New("not found")

// get reads path and decodes its JSON into out, if that is not nil.
func (a *apiClient) get(ctx context.Context, path string, out any) error {
	code, b, err := a.do(ctx, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	switch {
	case code == http.StatusNotFound:
		return fmt.Errorf("GET %s: %w", path, errNotFound)
	case code != http.StatusOK:
		return fmt.Errorf("GET %s: %d: %s", path, code, b)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// do sends a request with a JSON body, or none, and returns the answer's status
// and body.
func (a *apiClient) do(ctx context.Context, method, path, body string) (code int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, bytes.TrimSpace(b), err
}

// condition is part of many objects' status.
type condition struct{ Type, Status, Reason, Message string }

func conditionTrue(cs []condition, kind string) bool {
	for _, c := range cs {
		if c.Type == kind {
			return c.Status == "True"
		}
	}
	return false
}
