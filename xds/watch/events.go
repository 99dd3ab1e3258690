// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"evenkeel.dev/xds/snapshot"
)

const (
	eventComponent = "evenkeel-xds"
	maxEvents      = 1000 // that wait for the API server
	maxMessage     = 1024 // bytes, what the API allows the note of an Event
	eventTries     = 4
	eventTimeout   = 10 * time.Second // of one request
	eventPause     = time.Second      // before the second try; doubled each time
)

// Event writes a Warning Event on a Pod. It never waits: Events are written one by
// one while Run runs, repeats are counted up in the Event that is there, and what
// the API server is too slow for is dropped and counted in
// evenkeel_xds_events_total{result="dropped"}.
func (k *Kube) Event(pod snapshot.ObjectKey, uid, reason, message string) {
	k.events.put(podEvent{pod, uid, reason, message, time.Now()})
}

type podEvent struct {
	pod                  snapshot.ObjectKey
	uid, reason, message string
	at                   time.Time
}

// eventWriter is one queue and the goroutine that empties it.
type eventWriter struct {
	log    *slog.Logger
	client kubernetes.Interface
	queue  chan podEvent
	host   string // of this replica
	pause  time.Duration

	total    *prometheus.CounterVec
	dropping atomic.Bool // since the last success; said once
	failing  bool        // likewise; the writer's own
}

func newEventWriter(log *slog.Logger, client kubernetes.Interface) *eventWriter {
	host, err := os.Hostname()
	if err != nil {
		host = eventComponent // only told to people
	}
	return &eventWriter{
		log: log, client: client, host: host, queue: make(chan podEvent, maxEvents), pause: eventPause,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "evenkeel_xds_events_total",
			Help: "Events of pods: written, suppressed (too many of one pod), dropped (the queue was full), failed (the API server took none).",
		}, []string{"result"}),
	}
}

func (w *eventWriter) put(e podEvent) {
	select {
	case w.queue <- e:
		return
	default:
	}
	w.total.WithLabelValues("dropped").Inc()
	if !w.dropping.Swap(true) {
		w.log.Warn("Events wait for the API server; further ones are dropped until one is written", "waiting", cap(w.queue))
	}
}

// run writes until ctx is done.
func (w *eventWriter) run(ctx context.Context) {
	correlator := record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{})
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			w.write(ctx, correlator, &e)
		}
	}
}

func (w *eventWriter) write(ctx context.Context, correlator *record.EventCorrelator, e *podEvent) {
	result, err := correlator.EventCorrelate(w.object(e))
	if err != nil || result.Skip {
		w.total.WithLabelValues("suppressed").Inc()
		return
	}
	pause := w.pause
	for try := 1; ; try++ {
		written, err := w.request(ctx, result)
		if err == nil {
			correlator.UpdateState(written)
			w.total.WithLabelValues("written").Inc()
			w.dropping.Store(false)
			w.failing = false
			return
		}
		if final(err) || try == eventTries || ctx.Err() != nil {
			w.total.WithLabelValues("failed").Inc()
			if !w.failing && ctx.Err() == nil {
				w.failing = true
				w.log.Warn("an Event could not be written; further failures are only counted until one is", "pod", e.pod.String(), "reason", e.reason, "error", err)
			}
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
			pause *= 2
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// request creates the Event, or counts up the one that is there.
func (w *eventWriter) request(ctx context.Context, r *record.EventCorrelateResult) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	events := w.client.CoreV1().Events(r.Event.Namespace)
	if r.Event.Count > 1 {
		written, err := events.Patch(ctx, r.Event.Name, types.StrategicMergePatchType, r.Patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		}
		// It has expired.
	}
	r.Event.ResourceVersion = ""
	return events.Create(ctx, r.Event, metav1.CreateOptions{})
}

// final tells errors that another try does not change: the API server has answered
// that it does not want this Event.
func final(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && !apierrors.IsTooManyRequests(err)
}

func (w *eventWriter) object(e *podEvent) *corev1.Event {
	at := metav1.Time{Time: e.at}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", e.pod.Name, e.at.UnixNano()), Namespace: e.pod.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: e.pod.Namespace, Name: e.pod.Name, UID: types.UID(e.uid),
		},
		Type: corev1.EventTypeWarning, Reason: e.reason, Message: shorten(e.message),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source:              corev1.EventSource{Component: eventComponent},
		ReportingController: eventComponent, ReportingInstance: w.host,
	}
}

// shorten cuts a message to what an Event may hold.
func shorten(s string) string {
	const more = "…"
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len(more)], "") + more
}
