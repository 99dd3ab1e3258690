// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"evenkeel.dev/cmd/internal/run"
)

// waitRetry is the pause between attempts while the worker is not there yet.
const waitRetry = 25 * time.Millisecond

// waitMain is the postStart hook: the kubelet starts the next container when it
// returns. It fails for nothing but a wrong command line, because a failed hook
// would kill the sidecar and keep the pod from starting.
func waitMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseWait(args)
	if status, done := usageError(err, "wait", newWaitFlags(&waitConfig{}), stdout, stderr); done {
		return status
	}
	ctx, stop := run.Signals(ctx)
	defer stop()
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if err := waitServed(ctx, cfg.Debug); err != nil {
		fmt.Fprintf(stdout, "evenkeel: the app starts without the sidecar's word after %s: %s\n",
			time.Since(start).Round(time.Millisecond), err)
		return run.OK
	}
	fmt.Fprintf(stdout, "evenkeel: the sidecar serves after %s\n", time.Since(start).Round(time.Millisecond))
	return run.OK
}

// waitAnswer is what is left of the timeout for the sidecar's answer, so that
// the sidecar, which can say who is missing, ends the hold, and not we.
const waitAnswer = 100 * time.Millisecond

// waitServed asks until the start hold is over. The error is the latest reason
// why it was not, or what was missing when its bound ended it.
func waitServed(ctx context.Context, addr string) error {
	var dialer net.Dialer
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	last := fmt.Errorf("nothing listens on %s", addr)
	for {
		err := askServed(ctx, client, "http://"+addr+"/wait")
		if _, unanswered := errors.AsType[*unansweredError](err); err == nil || unanswered {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		t := time.NewTimer(waitRetry)
		select {
		case <-ctx.Done():
			t.Stop()
			return last
		case <-t.C:
		}
	}
}

// unansweredError says that the start hold ended by its bound.
type unansweredError struct{ text string }

func (e *unansweredError) Error() string { return e.text }

func askServed(ctx context.Context, client *http.Client, url string) error {
	if end, ok := ctx.Deadline(); ok {
		if left := time.Until(end) - waitAnswer; left > 0 {
			url += "?timeout=" + left.String()
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if err != nil {
		return err
	}
	switch res.StatusCode {
	case http.StatusOK:
		return nil
	case statusUnanswered:
		return &unansweredError{strings.TrimSpace(string(text))}
	default:
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
}
