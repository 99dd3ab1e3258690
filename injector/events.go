// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// Events writes Kubernetes Events about pods that are being admitted.
type Events struct {
	// Recorder delivers in the background and aggregates what repeats.
	Recorder events.EventRecorder
}

// maxNote: "The [note] should be [...] at most 1kB", events.k8s.io/v1 Event.
const maxNote = 1024

// Warn writes one Event for each reason among warnings: two with the same reason
// would be taken as one that repeats, and only the first one's text kept. The pod
// has no UID yet and may come to nothing, so the Event is about what made it (the
// ReplicaSet, the Job), where `kubectl describe` of the thing that the user knows
// shows it.
func (e Events) Warn(pod *corev1.Pod, warnings []Warning) {
	about := subject(pod)
	for i, w := range warnings {
		same := func(o Warning) bool { return o.Reason == w.Reason }
		if slices.ContainsFunc(warnings[:i], same) {
			continue
		}
		var note []string
		for _, o := range warnings[i:] {
			if same(o) {
				note = append(note, o.Message)
			}
		}
		e.Recorder.Eventf(about, nil, corev1.EventTypeWarning, string(w.Reason), "Inject", "%s", truncate(strings.Join(note, "; "), maxNote))
	}
}

func subject(pod *corev1.Pod) *corev1.ObjectReference {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return &corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Namespace: pod.Namespace,
		}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: podName(pod), Namespace: pod.Namespace}
}
