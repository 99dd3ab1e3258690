// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

// job is a Job of one pod that sends RPCs and exits.
func job(name string, args ...string) string {
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %s}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: %s}}
    spec:
      restartPolicy: Never
      containers:
      - name: app
        image: %s
        imagePullPolicy: Never
        args: ["job", "%s"]
---`, name, name, goImage, strings.Join(args, `", "`))
}

// waitJob waits until a Job is complete.
func (g *stage) waitJob(t *testing.T, name string) {
	t.Helper()
	eventually(t, 2*time.Minute, "the pod of job "+name+" has succeeded", func() error {
		pods, err := g.r.c.Pods(t.Context(), g.namespace, "app="+name)
		if err == nil && (len(pods) != 1 || pods[0].Phase != "Succeeded") {
			err = fmt.Errorf("%+v", pods)
		}
		return err
	})
	g.r.kubectl(t, "-n", g.namespace, "wait", "--for=condition=complete", "--timeout=30s", "job/"+name)
}

// testJob: a Job whose pod has a sidecar completes.
func testJob(t *testing.T, r *rollouts) {
	g := r.stage(t, "job", withEvenkeel)
	g.serve(t, server("Go", 2))
	begin := time.Now()
	g.apply(t, job("once", "--target=server:50051", "--n=200", noRetry))
	g.waitJob(t, "once")
	took := time.Since(begin)
	spec := r.kubectl(t, "-n", g.namespace, "get", "pod", "-l", "app=once", "-o", "jsonpath={.items[0].spec.initContainers[*].name} {.items[0].status.phase}")
	if !strings.Contains(spec, "evenkeel-sidecar") || !strings.HasSuffix(spec, "Succeeded") {
		t.Errorf("the Job's pod: %q, want one with a sidecar that has succeeded", spec)
	}
	result(t, "a Job of 200 RPCs was complete %.1f s after it was made", took.Seconds())
}

// deadEndpoint is a Service whose one endpoint is an address on node1 that no pod has: it
// neither accepts nor refuses.
const deadEndpoint = `
apiVersion: v1
kind: Service
metadata: {name: dead}
spec: {ports: [{name: grpc, port: 50051}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dead-1, labels: {kubernetes.io/service-name: dead}}
addressType: IPv4
ports: [{name: grpc, port: 50051, protocol: TCP}]
endpoints: [{addresses: [10.244.1.253], conditions: {ready: true}}]
---`

// testCronJob: the pods of a CronJob start within a second of what they need without
// Evenkeel and what the kubelet takes to see that an init container has ended, also when a learned upstream is dead. A CronJob runs at most each minute:
// so the Jobs are made here, named as its controller names them, which is what tells
// that they belong together.
func testCronJob(t *testing.T, r *rollouts) {
	const runs = 6
	stages := []*stage{r.stage(t, "cron-plain", withoutEvenkeel), r.stage(t, "cron", withEvenkeel)}
	for _, g := range stages {
		g.serve(t, server("Go", 2))
		g.apply(t, deadEndpoint)
	}
	took := make([][]time.Duration, len(stages))
	var unseen []time.Duration
	for i := range runs + 1 {
		one := fmt.Sprintf("tick-%08d", 29_400_000+i)
		// Side by side, so that the machine is as busy for one as for the other. Each
		// first tries the dead upstream and then goes on.
		for _, g := range stages {
			g.apply(t, job(one, "--target=server:50051", "--n=20", noRetry, "--also=dead:50051"))
		}
		for j, g := range stages {
			g.waitJob(t, one)
			p := g.podOf(t, one)
			if i > 0 { // the first run teaches
				took[j] = append(took[j], p.Containers["app"].Started.Sub(p.Created))
				if init, ok := p.Containers["evenkeel-init"]; ok {
					unseen = append(unseen, p.Containers["evenkeel-sidecar"].Started.Sub(init.Exited))
				}
			}
		}
	}
	plain, with := median(took[0]), median(took[1])
	// The kubelet looks for init containers that have ended once a second (the relist of
	// its pod lifecycle event generator): nothing of ours runs in that time, and nothing of
	// ours could shorten it.
	relist := median(unseen)
	if added := with - plain - relist; added > time.Second {
		t.Errorf("an app starts %s after its pod is made, without Evenkeel %s, of which the kubelet does not see for %s that the init step has ended: want at most 1 s more (%v, %v, %v)",
			with, plain, relist, took[1], took[0], unseen)
	}
	result(t, "apps of a CronJob's pods, one learned upstream of two dead, start %s after the pod is made, without Evenkeel %s (medians of %d): %s more, of which %s the kubelet does not see that the init step has ended",
		with, plain, runs, with-plain, relist)
}

// podOf is the one pod of a Job.
func (g *stage) podOf(t *testing.T, job string) cluster.Phases {
	t.Helper()
	var found cluster.Phases
	eventually(t, 10*time.Second, "the watch knows the pod of "+job, func() error {
		for _, p := range g.watch.Pods() {
			if strings.HasPrefix(p.Name, job+"-") && !p.Containers["app"].Started.IsZero() {
				found = p
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
	return found
}
