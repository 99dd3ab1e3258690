// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	kwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestPulse(t *testing.T) {
	refused := errors.New("refused")
	type step struct {
		at   time.Duration
		what string
		want time.Duration // of failing
	}
	for name, steps := range map[string][]step{
		"never asked":          {{time.Hour, "", 0}},
		"open and idle":        {{0, "open", 0}, {time.Hour, "", 0}},
		"fails from the start": {{time.Second, "fail", 0}, {41 * time.Second, "fail", 40 * time.Second}},
		"taken up again": {
			{0, "open", 0},
			{time.Minute, "close", 0},
			{time.Minute, "fail", 0},
			{70 * time.Second, "fail", 10 * time.Second},
			{80 * time.Second, "open", 20 * time.Second},
			{84 * time.Second, "", 24 * time.Second},
			{85 * time.Second, "", 0},
			{90 * time.Second, "close", 0},
			{91 * time.Second, "fail", 0},
			{95 * time.Second, "", 4 * time.Second},
		},
		"no answer": {
			{0, "open", 0},
			{time.Minute, "close", 0},
			{time.Minute, "ask", 0},
			{100 * time.Second, "", 40 * time.Second},
			{110 * time.Second, "open", 0},
			{111 * time.Second, "", 0},
		},
		"no answer, then an error": {
			{0, "ask", 0},
			{40 * time.Second, "fail", 40 * time.Second},
			{41 * time.Second, "ask", 41 * time.Second},
			{42 * time.Second, "list", 42 * time.Second},
			{43 * time.Second, "open", 43 * time.Second},
			{48 * time.Second, "", 0},
		},
		"a long list is an answer in the end": {{0, "ask", 0}, {time.Minute, "", time.Minute}, {time.Minute, "list", 0}, {61 * time.Second, "", 0}},
		"ends as it does every few minutes":   {{0, "open", 0}, {time.Minute, "close", 0}, {time.Minute, "open", 0}, {2 * time.Minute, "", 0}},
		"opens and breaks at once, again and again": {
			{0, "fail", 0},
			{10 * time.Second, "open", 10 * time.Second},
			{11 * time.Second, "close", 11 * time.Second},
			{12 * time.Second, "fail", 12 * time.Second},
			{30 * time.Second, "open", 30 * time.Second},
			{31 * time.Second, "close", 31 * time.Second},
			{40 * time.Second, "", 40 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t0 := time.Unix(1000, 0)
			var p pulse
			failed := false
			for _, st := range steps {
				now := t0.Add(st.at)
				switch st.what {
				case "ask":
					p.ask(now)
				case "list":
					p.answered()
				case "open":
					p.open(now)
				case "close":
					p.close(now)
				case "fail":
					p.fail(refused, now)
					failed = true
				}
				got, err := p.failing(now)
				want := errNoAnswer
				if failed {
					want = refused
				}
				if got != st.want || got > 0 && !errors.Is(err, want) {
					t.Errorf("at %s %s: failing for %s (%v), want %s", st.at, st.what, got, err, st.want)
				}
			}
		})
	}
}

// Health names the resource, how long, and why; the gauge shows it, too.
func TestHealth(t *testing.T) {
	client := fake.NewClientset(kubeService("a", "10.96.0.1"))
	var away atomic.Bool
	client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		if away.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	client.PrependWatchReactor("pods", func(k8stesting.Action) (bool, kwatch.Interface, error) {
		if away.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	away.Store(true)
	w := newKubeWorld(t, client)
	if err := w.kube.Health(); err != nil {
		t.Errorf("before Run: %v", err)
	}
	w.run()
	w.until("only pods fail", func() bool {
		for name, p := range w.kube.pulses {
			switch _, err := p.failing(time.Now()); {
			case name == "pods" && (err == nil || errors.Is(err, errNoAnswer)), name != "pods" && err != nil:
				return false
			}
		}
		return true
	})
	if err := w.kube.Health(); err != nil {
		t.Errorf("at once: %v", err)
	}
	err := w.kube.health(time.Now().Add(40 * time.Second))
	if err == nil || !strings.Contains(err.Error(), "pods cannot be watched for 40s") || !strings.HasSuffix(err.Error(), "connection refused") || strings.Contains(err.Error(), "services") {
		t.Errorf("later: %v", err)
	}
	if families, err := w.metrics.Gather(); err != nil {
		t.Error(err)
	} else {
		shown := map[string]bool{}
		for _, f := range families {
			if f.GetName() == "evenkeel_xds_watch_failing_seconds" {
				for _, m := range f.GetMetric() {
					shown[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() > 0
				}
			}
		}
		if len(shown) != 4 || !shown["pods"] || shown["services"] {
			t.Errorf("the gauge shows %v", shown)
		}
	}
	away.Store(false)
	w.until("a watch is open", func() bool {
		d, _ := w.kube.pulses["pods"].failing(time.Now().Add(steady))
		return d == 0
	})
	if err := w.kube.health(time.Now().Add(time.Hour)); err != nil {
		t.Errorf("an hour later, nothing has happened: %v", err)
	}
}
