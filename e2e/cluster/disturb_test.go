// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"evenkeel.dev/e2e/cluster"
)

const budget = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: echo}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: echo}}
`

// evict: a budget forbids it, then it happens; the watch tells the moments of both
// pods in their order.
func (h *harness) evict(t *testing.T) {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	w, err := h.c.Watch(ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	pods, err := h.c.WaitPods(ctx, "default", "app=echo", 2, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.KubectlInput(ctx, budget, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	h.eventually(t, "the budget is known", func() error {
		out, err := h.c.Kubectl(ctx, "get", "pdb", "echo", "-o", "jsonpath={.status.currentHealthy}")
		if err == nil && out != "2" {
			err = fmt.Errorf("%s healthy", out)
		}
		return err
	})
	if err := h.c.Evict(ctx, "default", pods[0].Name); !errors.Is(err, cluster.ErrDisruption) {
		t.Fatalf("eviction against a budget: %v, want ErrDisruption", err)
	}
	h.kubectl(t, "delete", "pdb", "echo")
	if err := h.c.Evict(ctx, "default", pods[0].Name); err != nil {
		t.Fatal(err)
	}
	var old, next cluster.Phases
	h.eventually(t, "the watch has seen one pod go and another become ready", func() error {
		old, next = cluster.Phases{}, cluster.Phases{}
		for _, p := range w.Pods() {
			if p.UID == pods[0].UID {
				old = p
			} else if !p.Created.IsZero() {
				next = p
			}
		}
		if old.Gone.IsZero() || next.Ready.IsZero() {
			return fmt.Errorf("old %+v, next %+v", old, next)
		}
		return nil
	})
	inOrder(t, "the evicted pod: deletion, exit, gone", old.Deleting, old.Containers["echo"].Exited, old.Gone)
	if !old.Ready.IsZero() || !old.Created.IsZero() {
		t.Errorf("what had happened before the watch has times: %+v", old)
	}
	ct := next.Containers["echo"]
	inOrder(t, "the next pod: created, started, ready", next.Created, ct.Started, ct.Ready)
	inOrder(t, "the next pod: container and pod ready", ct.Ready, next.Ready)
	events, err := h.c.Events(ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range events {
		found = found || e.Kind == "Pod" && e.Name == next.Name && e.Reason == "Started" && e.Type == "Normal"
	}
	if !found {
		t.Errorf("no Event of %s says Started, among %d", next.Name, len(events))
	}
	cancel()
	if err := w.Wait(); err != nil {
		t.Error(err)
	}
}

func inOrder(t *testing.T, what string, times ...time.Time) {
	t.Helper()
	for i, at := range times {
		if at.IsZero() || i > 0 && at.Before(times[i-1]) {
			t.Errorf("%s: %v, want times in this order", what, times)
			return
		}
	}
}

// cutOff: what a rule drops does not get out of the pod, the rest does.
func (h *harness) cutOff(t *testing.T) {
	pod, err := h.c.Pod(h.ctx, "default", "client")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + pod.IP.String() + ":8080"
	if err := h.c.CutOff(h.ctx, "default", "client", "tcp dport 50051"); err != nil {
		t.Fatal(err)
	}
	if got := h.run(t, base+"/run?n=2&concurrency=2&deadline_ms=500"); got.Failed != 2 {
		t.Errorf("cut off: %+v, want 2 failed", got)
	}
	if err := h.c.CutOff(h.ctx, "default", "client"); err != nil {
		t.Fatal(err)
	}
	if got := h.run(t, base+"/run?n=2"); got.Succeeded != 2 {
		t.Errorf("no longer cut off: %+v, want 2 successes", got)
	}
	if err := h.c.CutOff(h.ctx, "default", "client", "tcp sport nonsense"); err == nil {
		t.Error("a rule that nft does not know was accepted")
	}
}
