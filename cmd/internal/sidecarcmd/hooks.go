// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/xds"
)

// hook is one that the sidecar performs (one that runs a command is run by
// cmd/hold in its container).
type hook xds.Hook

type httpGet xds.HTTPGet

// parseHooks reads EVENKEEL_HOOKS: container → hook.
func parseHooks(text string) (map[string]hook, error) {
	if text == "" {
		return nil, nil
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	var hooks map[string]hook
	if err := dec.Decode(&hooks); err != nil {
		return nil, fmt.Errorf("%s: %w", xds.EnvHooks, err)
	}
	return hooks, nil
}

func (h hook) validate(podIP string) error {
	var errs []error
	switch {
	case h.HTTPGet == nil && h.SleepSeconds == 0:
		return errors.New("neither httpGet nor sleepSeconds")
	case h.HTTPGet != nil && h.SleepSeconds != 0:
		errs = append(errs, errors.New("both httpGet and sleepSeconds"))
	}
	if h.SleepSeconds < 0 {
		errs = append(errs, fmt.Errorf("sleepSeconds %d is below zero", h.SleepSeconds))
	}
	if g := h.HTTPGet; g != nil {
		if g.Port < 1 || g.Port > 65535 {
			errs = append(errs, fmt.Errorf("httpGet.port %d is not a port", g.Port))
		}
		if g.Host == "" && podIP == "" {
			errs = append(errs, fmt.Errorf("httpGet has no host and %s is empty", xds.EnvPodIP))
		}
		if s := strings.ToUpper(g.Scheme); s != "" && s != "HTTP" && s != "HTTPS" {
			errs = append(errs, fmt.Errorf("httpGet.scheme %q is neither HTTP nor HTTPS", g.Scheme))
		}
	}
	return errors.Join(errs...)
}

// perform does what the kubelet would have done. The text says how it went.
func (h hook) perform(ctx context.Context, podIP string) (string, error) {
	if h.HTTPGet != nil {
		return (*httpGet)(h.HTTPGet).perform(ctx, podIP)
	}
	d := time.Duration(h.SleepSeconds) * time.Second
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return "slept " + d.String(), nil
	case <-ctx.Done():
		return "", fmt.Errorf("sleep of %s was cut: %w", d, ctx.Err())
	}
}

func (g *httpGet) perform(ctx context.Context, podIP string) (string, error) {
	req, err := g.request(ctx, podIP)
	if err != nil {
		return "", err
	}
	var dialer net.Dialer
	transport := &http.Transport{
		DialContext:       dialer.DialContext,
		DisableKeepAlives: true,
		// As the kubelet: the certificate of an app is for its clients, not for its IP.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: sameHost}
	res, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("preStop hook: %w", err)
	}
	defer res.Body.Close()
	const keep = 1 << 10
	body, err := io.ReadAll(io.LimitReader(res.Body, keep))
	said := strings.TrimSpace(string(bytes.ToValidUTF8(body, []byte("?"))))
	switch {
	case err != nil:
		return "", fmt.Errorf("preStop hook: %s %s: %w", req.Method, req.URL, err)
	case res.StatusCode >= http.StatusBadRequest:
		return "", fmt.Errorf("preStop hook: %s %s: %s: %s", req.Method, req.URL, res.Status, said)
	}
	return fmt.Sprintf("%s %s: %s", req.Method, req.URL, res.Status), nil
}

func (g *httpGet) request(ctx context.Context, podIP string) (*http.Request, error) {
	host := g.Host
	if host == "" {
		// Not loopback: an app may listen on the pod's address alone, and the
		// kubelet dials that.
		host = podIP
	}
	u, err := url.Parse(g.Path) // it may have a query
	if err != nil {
		u = &url.URL{Path: g.Path} // as the kubelet does
	}
	u.Scheme = "http"
	if strings.EqualFold(g.Scheme, "HTTPS") {
		u.Scheme = "https"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(g.Port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("preStop hook: %w", err)
	}
	req.Header.Set("Accept", "*/*")
	req.Header.Set("User-Agent", "evenkeel-sidecar/"+run.VersionString())
	for _, h := range g.Headers {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	return req, nil
}

// sameHost follows redirects as the kubelet does: within the host.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
		return http.ErrUseLastResponse
	}
	return nil
}
