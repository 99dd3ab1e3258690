// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"testing"
	"time"
)

// testHooks: a preStop hook that the pod's author wrote still runs, after the hold
// and before SIGTERM.
func testHooks(t *testing.T, r *rollouts) {
	const (
		floor = 2 * time.Second
		sleep = 3 * time.Second
	)
	g := r.stage(t, "hooks", withEvenkeel)
	url := r.url(g.namespace)
	for _, tt := range []struct {
		name, image, hook string
		args              []string
		reports           bool
		least             time.Duration // from the deletion to SIGTERM
	}{
		// No shell in this image, and nothing that can be relied on but the program.
		{name: "exec-distroless", hook: fmt.Sprintf(`exec: {command: ["/testapp", "report", "--to=%s?what=hook&pod=exec-distroless"]}`, url), reports: true},
		{
			name: "exec-shell", image: pythonImage, reports: true,
			hook: fmt.Sprintf(`exec: {command: ["/bin/sh", "-c", "python3 -c \"import urllib.request as u; u.urlopen('%s?what=hook&pod=exec-shell')\""]}`, url),
		},
		{name: "httpget", args: []string{"--name=httpget", "--report=" + url}, hook: `httpGet: {port: 8080, path: /hook}`, reports: true},
		{name: "sleep", hook: fmt.Sprintf(`sleep: {seconds: %d}`, int(sleep.Seconds())), least: sleep},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := server("Go", 1)
			w.name, w.image, w.lifecycle = tt.name, tt.image, "preStop: {"+tt.hook+"}"
			w.annotations = fmt.Sprintf("config.evenkeel.dev/drain-min: %s", floor)
			if tt.image != "" {
				w.args = []string{"server", "--listen=:6001"}
			}
			w.args = append(w.args, tt.args...)
			pod := g.serve(t, w)[0]
			g.r.kubectl(t, "-n", g.namespace, "delete", "deploy", tt.name, "--wait=false")
			p := g.waitExit(t, pod)
			term := p.Containers["app"].Exited
			hook := r.when(g.namespace, tt.name, "hook")
			if tt.reports {
				if hook.IsZero() {
					t.Fatal("the hook did not run")
				}
				if after := hook.Sub(p.Deleting); after < floor-100*time.Millisecond {
					t.Errorf("the hook ran %s after the deletion, within the hold of %s", after, floor)
				}
				if hook.After(term) {
					t.Errorf("the hook ran %s after the app had ended", hook.Sub(term))
				}
				result(t, "the hook ran %s and the app ended %s after the deletion, with a hold of %s",
					hook.Sub(p.Deleting).Round(10*time.Millisecond), term.Sub(p.Deleting).Round(10*time.Millisecond), floor)
				return
			}
			if after := term.Sub(p.Deleting); after < floor+tt.least-100*time.Millisecond {
				t.Errorf("the app ended %s after the deletion, want the hold of %s and the hook's %s", after, floor, tt.least)
			}
			result(t, "the app ended %s after the deletion, with a hold of %s and a hook that sleeps %s", term.Sub(p.Deleting).Round(10*time.Millisecond), floor, sleep)
		})
	}
}

// testOutboundUntilExit: an app that still calls others while it shuts down can.
func testOutboundUntilExit(t *testing.T, r *rollouts) {
	g := r.stage(t, "outbound", withEvenkeel)
	g.serve(t, server("Go", 2))
	for _, language := range []string{"go", "python"} {
		w := workload{name: "busy-" + language, grace: 30, args: []string{
			"client", "--target=server:50051", noRetry, deadline, "--rate=50", "--linger=4s", "--report=" + r.url(g.namespace),
		}}
		if language == "python" {
			w.image = pythonImage
		}
		g.apply(t, w.String())
	}
	for _, language := range []string{"go", "python"} {
		pod := r.client(t, g.namespace, "busy-"+language).pod
		time.Sleep(time.Second)
		r.kubectl(t, "-n", g.namespace, "delete", "deploy", "busy-"+language, "--wait=false")
		p := g.waitExit(t, pod)
		if after := p.Containers["app"].Exited.Sub(p.Deleting); after < 4*time.Second {
			t.Errorf("%s: the app ended %s after the deletion, before its 4 s", language, after)
		}
	}
	o := sum(r.ended(g.namespace))
	if n := len(r.ended(g.namespace)); n != 2 || o.Failed != 0 || o.Succeeded < 2*5*50*8/10 {
		t.Errorf("%d of 2 apps told; %d of %d RPCs failed:\n%s", n, o.Failed, o.Started, g.explain(o.failures))
	}
	result(t, "apps that call for 4 s more after SIGTERM: %d of %d RPCs failed", o.Failed, o.Started)
}
