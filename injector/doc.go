// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package injector is the mutating webhook: a labelled Pod in, the Pod with
// Evenkeel's init step and sidecar out.
//
//	API server ──► Review ──► Handler ──► Mutate ──► graft ──► JSON patch
//	              review.go  handler.go  mutate.go  handler.go
//	                             │           ├── decide.go       labels; what cannot have a sidecar
//	                             │           ├── dns.go          whether it will find the control plane
//	                             │           ├── annotations.go  config.evenkeel.dev/… over Config
//	                             │           ├── containers.go   evenkeel-init, evenkeel-sidecar, volumes
//	                             │           ├── hold.go         preStop hooks, the grace period
//	                             │           └── workload.go     what the pod belongs to
//	                             └── events.go, metrics.go       what people and alerts hear of it
//
// Beside it, census.go counts the running pods that should have a sidecar and
// have none. An arrow is a call. Mutate and all below it are pure: they are tested by golden
// pods (testdata; go test ./injector -update). The certificates that Review is
// served with are kept by package injector/certs.
//
// # State
//
// There is none but the configuration, which is read once, and the cache of the
// namespaces' metadata, which client-go owns. Any replica answers any review; the
// leader counts.
//
// # What goes wrong, and what happens
//
// The rule: nobody's pod stays away because of Evenkeel.
//
//	annotation unknown or malformed       its value is not used; warning to the client, Event, metric
//	pod that cannot have a sidecar        admitted as it is; likewise (hostNetwork, Windows, user namespace,
//	                                      Pod Security, a name or a port of ours taken)
//	pod that has one already              admitted as it is, silently
//	preStop hook of an unknown kind       it stays, that container's SIGTERM is not held back; likewise
//	namespace cannot be read              injected with the defaults: the API server called, so it is labelled
//	request malformed, too large, no Pod  HTTP error that names the field; failurePolicy Ignore admits the pod
//	panic                                 HTTP 500, likewise
//	injector away                         failurePolicy Ignore admits the pods without a sidecar; they are
//	                                      counted (evenkeel_injector_uninjected_pods), as are those that
//	                                      were made before the label
//	API server does not answer            the count stays as it was; tried again each minute
//	image cannot be pulled                the pod waits, as for any image: pull policy and secrets are configurable
//
// # Limitations
//
// A pod is changed when it is made and never again: labelling a namespace needs
// a restart of its pods, and so does a new version. The init step needs uid 0
// with CAP_BPF and CAP_NET_ADMIN, which Pod Security "baseline" forbids; a default
// level that is set for the whole cluster in the API server's configuration, not
// by a namespace's label, cannot be seen from here and would refuse such pods.
// Likewise a LimitRange whose maximum or ratio the sidecar's resources exceed:
// the annotations config.evenkeel.dev/sidecar-{cpu,memory}[-limit] fit them in.
// A container that another webhook adds after this one is not held back at its end.
// The hold's secret is in the pod's spec: who may read the pod may drain it. A
// probe's own terminationGracePeriodSeconds is not raised: where a failed liveness
// probe ends a container, the hold (at most 5 s) is part of it.
// Where the pod mounts the API server's token, Kubernetes mounts it into our
// containers too; they do not use it.
package injector
