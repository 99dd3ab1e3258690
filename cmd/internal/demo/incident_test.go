// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// newDemo makes a Demo of a short plan. It needs root, for its network namespace and cgroups.
func newTestDemo(t *testing.T) *Demo {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespace, cgroup, eBPF")
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("log:\n%s", text)
		}
	})
	plan := DefaultPlan()
	plan.Before, plan.After = time.Second, 3*time.Second
	return &Demo{
		Plan:   plan,
		Stdout: t.Output(),
		Stderr: t.Output(),
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Log:    log,
	}
}

// Without Evenkeel the incidents must show themselves, or the demo proves nothing.
func TestWithoutEvenkeel(t *testing.T) {
	d := newTestDemo(t)
	if err := prepareNetwork(addresses(d.Plan)...); err != nil {
		t.Fatal(err)
	}
	got, err := d.play(t.Context(), without)
	if err != nil {
		t.Fatal(err)
	}
	if got.Failed == 0 {
		t.Error("no RPC failed in a rolling restart of servers that exit at once on SIGTERM")
	}
	t.Logf("%d RPCs failed, the first: %s", got.Failed, got.firstError)
	if got.FairShare != nil {
		t.Errorf("late servers had a fair share after %s", formatFairShare(got.FairShare))
	}
	for i, n := range got.RPCs {
		if late := i >= d.Plan.Early; late && n != 0 {
			t.Errorf("late server %d got %d RPCs, want none: its clients are pinned elsewhere", i, n)
		}
	}
	// How many are enough to judge is the demo's affair; here a busy machine and the race detector may make them few.
	if got.rate < minRate/10 {
		t.Errorf("only %s", formatRate(got.rate))
	}
}
