// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Result is what became of a pod.
type Result struct {
	// Pod is the pod to run: another one than was given only when Injected.
	Pod *corev1.Pod
	// Outcome says whether it has a sidecar now, Reason why not.
	Outcome Outcome
	Reason  Reason
	// Warnings are for the people who made the pod.
	Warnings []Warning
}

// Mutate returns pod with the init step and the sidecar, or pod as it is and the
// reason. It is pure: the same input gives the same output, input is not changed.
// It has no error: a pod that cannot be injected runs as without a mesh.
//
// secret is what the pod's preStop hooks will show to its sidecar: hard to guess,
// and of this pod alone.
func Mutate(pod *corev1.Pod, ns *Namespace, cluster *Cluster, base *Config, secret string) Result {
	want, warnings := wanted(pod, ns)
	if !want {
		return Result{Pod: pod, Outcome: Skipped, Reason: ReasonDisabled, Warnings: warnings}
	}
	if w := obstacle(pod, ns, cluster); w != nil {
		if !quiet(w.Reason) {
			warnings = append(warnings, *w)
		}
		return Result{Pod: pod, Outcome: Skipped, Reason: w.Reason, Warnings: warnings}
	}
	cfg, problems := configure(base, ns.Annotations, pod.Annotations)
	warnings = append(warnings, problems...)
	if w := dnsWarning(&pod.Spec, cluster, cfg.XDSAddress); w != nil {
		warnings = append(warnings, *w)
	}

	out := pod.DeepCopy()
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[InjectedLabel] = "true"
	spec := &out.Spec
	resources := sidecarResources(&pod.Spec, cfg.Resources)
	raisePodResources(spec, resources)
	held, problems := addHolds(spec, cfg, secret)
	warnings = append(warnings, problems...)
	// First of all, so that the user's own init containers may call too.
	spec.InitContainers = append([]corev1.Container{
		initContainer(cfg, *resources.DeepCopy(), &held),
		sidecarContainer(cfg, resources, workload(pod), &held),
	}, spec.InitContainers...)
	spec.Volumes = append(spec.Volumes, volumes(cfg, &held)...)
	for _, name := range cfg.ImagePullSecrets {
		ref := corev1.LocalObjectReference{Name: name}
		if !slices.Contains(spec.ImagePullSecrets, ref) {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, ref)
		}
	}
	return Result{Pod: out, Outcome: Injected, Warnings: warnings}
}

// The sidecar writes nothing but its log, which counts as ephemeral storage.
const (
	ephemeralRequest = "16Mi"
	ephemeralLimit   = "256Mi"
)

// sidecarResources fits the sidecar into the pod without changing what the pod
// is: its quality of service stays, and a quota that its containers satisfy is
// satisfied by the sidecar too.
func sidecarResources(spec *corev1.PodSpec, r Resources) corev1.ResourceRequirements {
	rr := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: r.CPURequest, corev1.ResourceMemory: r.MemoryRequest},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: r.MemoryLimit},
	}
	if spec.Resources != nil && len(spec.Resources.Limits) > 0 {
		// The pod's own limit holds and is what a quota counts; a container's may
		// not be above it.
		return rr
	}
	containers := slices.Concat(spec.InitContainers, spec.Containers)
	// Quotas on ephemeral storage likewise refuse pods with a container that names none.
	if every(containers, func(c *corev1.Container) bool { return !c.Resources.Requests.StorageEphemeral().IsZero() }) {
		rr.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse(ephemeralRequest)
	}
	if every(containers, func(c *corev1.Container) bool { return !c.Resources.Limits.StorageEphemeral().IsZero() }) {
		rr.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse(ephemeralRequest)
		rr.Limits[corev1.ResourceEphemeralStorage] = resource.MustParse(ephemeralLimit)
	}
	switch {
	case every(containers, guaranteed):
		rr.Requests[corev1.ResourceMemory] = r.MemoryLimit
		rr.Limits[corev1.ResourceCPU] = r.CPURequest
	case every(containers, func(c *corev1.Container) bool { return !c.Resources.Limits.Cpu().IsZero() }):
		rr.Limits[corev1.ResourceCPU] = r.CPULimit
	}
	return rr
}

// guaranteed: "every Container in the Pod must have a memory limit and a memory
// request [and they] must [be] equal", likewise CPU:
// https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/#guaranteed
func guaranteed(c *corev1.Container) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, ok := c.Resources.Limits[name]
		if !ok || limit.IsZero() {
			return false
		}
		// The API server has set a missing request to the limit by now; a pod that
		// comes another way means the same.
		if request, ok := c.Resources.Requests[name]; ok && !request.Equal(limit) {
			return false
		}
	}
	return true
}

// raisePodResources makes room for the sidecar in resources set for the pod as a
// whole. Without it the API server may refuse the pod, whose containers may not
// ask for more than the pod does.
func raisePodResources(spec *corev1.PodSpec, add corev1.ResourceRequirements) {
	if spec.Resources == nil {
		return
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, requested := spec.Resources.Requests[name]
		limit, limited := spec.Resources.Limits[name]
		more := add.Requests[name]
		if l, ok := add.Limits[name]; ok && limited {
			more = l // also in the request, if they were equal: the pod stays Guaranteed
		}
		same := requested && limited && request.Equal(limit)
		if limited {
			limit.Add(more)
			spec.Resources.Limits[name] = limit
		}
		if requested {
			if !same {
				more = add.Requests[name]
			}
			request.Add(more)
			spec.Resources.Requests[name] = request
		}
	}
}

func every(containers []corev1.Container, ok func(*corev1.Container) bool) bool {
	for i := range containers {
		if !ok(&containers[i]) {
			return false
		}
	}
	return len(containers) > 0
}
