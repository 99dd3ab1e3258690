// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// Events writes Kubernetes Events about pods that are being admitted.
type Events struct {
	// Recorder delivers in the background and aggregates what repeats.
	Recorder events.EventRecorder
}

// Warn writes w. The pod has no UID yet and may come to nothing, so the Event is
// about what made it (the ReplicaSet, the Job), where `kubectl describe` of the
// thing that the user knows shows it.
func (e Events) Warn(pod *corev1.Pod, w Warning) {
	e.Recorder.Eventf(subject(pod), nil, corev1.EventTypeWarning, string(w.Reason), "Inject", "%s", w.Message)
}

func subject(pod *corev1.Pod) *corev1.ObjectReference {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return &corev1.ObjectReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Namespace: pod.Namespace,
		}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: podName(pod), Namespace: pod.Namespace}
}
