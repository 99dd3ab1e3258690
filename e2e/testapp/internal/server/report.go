// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// reportTimeout bounds one report: a hook's time belongs to the pod.
const reportTimeout = 3 * time.Second

// report tells Config.Report what happened.
func (s *server) report(ctx context.Context, what string) error {
	if s.cfg.Report == "" {
		return nil
	}
	u, err := url.Parse(s.cfg.Report)
	if err != nil {
		return err
	}
	q := u.Query()
	q.Set("what", what)
	q.Set("pod", s.cfg.Name)
	u.RawQuery = q.Encode()
	return Report(ctx, u.String())
}

// Report asks a URL for nothing but to be told.
func Report(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("report: %s: %s", to, res.Status)
	}
	return nil
}
