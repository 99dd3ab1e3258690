// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels that carry the hash at the end of a ReplicaSet's name.
const (
	labelTemplateHash = "pod-template-hash"          // apps/v1 Deployment
	labelRolloutHash  = "rollouts-pod-template-hash" // argoproj.io Rollout
)

// cronJobSuffix is the scheduled time in minutes that the CronJob controller
// appends to a Job's name: eight digits since 1989 and until 2160.
var cronJobSuffix = regexp.MustCompile(`-[0-9]{8}$`)

// workload names what the pod belongs to across rollouts, as "kind/name": the
// control plane remembers what its pods subscribe to, for pods yet to come. It
// is read off the owner reference, since looking the owner up would make each
// admission depend on another request to the API server.
func workload(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		if pod.Name != "" {
			return "pod/" + pod.Name
		}
		// generateName: siblings made by the same hand do the same work.
		return "pod/" + strings.TrimSuffix(pod.GenerateName, "-")
	}
	switch owner.Kind {
	case "ReplicaSet":
		for label, kind := range map[string]string{labelTemplateHash: "deployment", labelRolloutHash: "rollout"} {
			if hash := pod.Labels[label]; hash != "" {
				if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && name != "" {
					return kind + "/" + name
				}
			}
		}
	case "Job":
		if at := cronJobSuffix.FindStringIndex(owner.Name); at != nil && at[0] > 0 {
			return "cronjob/" + owner.Name[:at[0]]
		}
	}
	return strings.ToLower(owner.Kind) + "/" + owner.Name
}
