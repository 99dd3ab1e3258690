// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"evenkeel.dev/xds/snapshot"
)

var cart1 = snapshot.ObjectKey{Namespace: "shop", Name: "cart-1"}

// eventWorld is a writer that does not pause long, with its log and metrics.
func eventWorld(t *testing.T, client *fake.Clientset) *kubeWorld {
	t.Helper()
	w := newKubeWorld(t, client)
	w.kube.events.pause = time.Millisecond
	return w
}

func (w *kubeWorld) listEvents() []corev1.Event {
	w.t.Helper()
	l, err := w.client.CoreV1().Events("shop").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items
}

func TestEvent(t *testing.T) {
	w := eventWorld(t, fake.NewClientset())
	w.kube.Event(cart1, "u1", "HoldTimeout", "early") // kept until Run
	w.run()
	for range 3 {
		w.kube.Event(cart1, "u1", "HoldTimeout", "ready hold ended after 15.0s without shop/web-1")
	}
	w.wantCounter("evenkeel_xds_events_total", "written", 4)
	all := w.listEvents()
	if len(all) != 2 {
		t.Fatalf("%d Events: %+v", len(all), all)
	}
	e := all[0]
	if e.Message == "early" {
		e = all[1]
	}
	got := fmt.Sprint(e.Type, e.Reason, e.Message, e.Count, e.ReportingController, e.Source.Component, e.InvolvedObject)
	want := fmt.Sprint("Warning", "HoldTimeout", "ready hold ended after 15.0s without shop/web-1", 3, "evenkeel-xds", "evenkeel-xds",
		corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart-1", UID: "u1"})
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An API server that does not answer costs Events, and nobody's time.
func TestEventNeverBlocks(t *testing.T) {
	client := fake.NewClientset()
	release := make(chan struct{})
	client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
		<-release
		return false, nil, nil
	})
	const room = 50
	w := eventWorld(t, client)
	w.kube.events.queue = make(chan podEvent, room)
	w.run()
	start := time.Now()
	for i := range 2*room + 1 {
		w.kube.Event(snapshot.ObjectKey{Namespace: "shop", Name: fmt.Sprint("p", i)}, "", "HoldTimeout", "x")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	close(release)
	w.until("what had room is written", func() bool {
		return w.counter("evenkeel_xds_events_total", "written")+w.counter("evenkeel_xds_events_total", "dropped") == 2*room+1
	})
	if n := w.counter("evenkeel_xds_events_total", "dropped"); n < room || n > room+1 {
		t.Errorf("%v dropped", n)
	}
	if n := strings.Count(w.log.String(), "further ones are dropped"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

func TestEventFailures(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no right"))
	for name, tt := range map[string]struct {
		err      error
		failures int32
		tries    int32
		result   string
	}{
		"forbidden: not tried again":         {forbidden, 99, 1, "failed"},
		"cannot be reached for a moment":     {errors.New("connection refused"), 2, 3, "written"},
		"cannot be reached: given up":        {errors.New("connection refused"), 99, eventTries, "failed"},
		"too many requests: tried again":     {apierrors.NewTooManyRequests("busy", 1), 1, 2, "written"},
		"internal error: tried again":        {apierrors.NewInternalError(errors.New("etcd")), 1, 2, "written"},
		"the namespace ends: not once again": {apierrors.NewConflict(schema.GroupResource{}, "", errors.New("ends")), 99, 1, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			var tries atomic.Int32
			client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
				if tries.Add(1) <= tt.failures {
					return true, nil, tt.err
				}
				return false, nil, nil
			})
			w := eventWorld(t, client)
			w.run()
			w.kube.Event(cart1, "u1", "HoldTimeout", "x")
			w.wantCounter("evenkeel_xds_events_total", tt.result, 1)
			if n := tries.Load(); n != tt.tries {
				t.Errorf("%d tries, want %d", n, tt.tries)
			}
			if tt.result == "failed" {
				w.wantLog("level=WARN", "an Event could not be written", "pod=shop/cart-1")
			}
		})
	}
}

// The Event that was to be counted up has expired: it is written anew.
func TestEventExpires(t *testing.T) {
	w := eventWorld(t, fake.NewClientset())
	w.run()
	w.kube.Event(cart1, "u1", "HoldTimeout", "x")
	w.wantCounter("evenkeel_xds_events_total", "written", 1)
	if err := w.client.CoreV1().Events("shop").Delete(t.Context(), w.listEvents()[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.kube.Event(cart1, "u1", "HoldTimeout", "x")
	w.wantCounter("evenkeel_xds_events_total", "written", 2)
	if all := w.listEvents(); len(all) != 1 || all[0].Count != 2 {
		t.Errorf("%+v", all)
	}
}

// One pod cannot fill the API server.
func TestEventSuppressed(t *testing.T) {
	w := eventWorld(t, fake.NewClientset())
	w.run()
	for i := range 40 {
		w.kube.Event(cart1, "u1", "HoldTimeout", fmt.Sprint("message ", i))
	}
	w.wantCounter("evenkeel_xds_events_total", "suppressed", 15) // 25 at once, then one each 5 minutes
	if n := len(w.listEvents()); n > 10 {
		t.Errorf("%d Events of one pod and reason", n)
	}
}

func TestEventMessageIsShortened(t *testing.T) {
	s := shorten(strings.Repeat("ä", maxMessage))
	if len(s) > maxMessage || !utf8.ValidString(s) || !strings.HasSuffix(s, "ä…") {
		t.Errorf("%d bytes, ends in %q", len(s), s[len(s)-8:])
	}
	if shorten("x") != "x" {
		t.Error("a short one is changed")
	}
}
