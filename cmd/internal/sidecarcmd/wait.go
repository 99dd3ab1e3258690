// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
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

// waitServed asks until the sidecar serves. The error is the latest reason why
// it did not.
func waitServed(ctx context.Context, addr string) error {
	var dialer net.Dialer
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	client := &http.Client{Transport: transport}
	last := fmt.Errorf("nothing listens on %s", addr)
	for {
		err := askServed(ctx, client, "http://"+addr+"/wait")
		if err == nil {
			return nil
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

func askServed(ctx context.Context, client *http.Client, url string) error {
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
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return nil
}
