// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"evenkeel.dev/xds"
)

// maxWarning: "Individual warning messages larger than 256 characters [...] are
// truncated": https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
const maxWarning = 256

// Handler answers admission requests for pods. Every field must be set.
type Handler struct {
	Config  *Config
	Cluster *Cluster
	// Namespaces is the cache of namespaces' metadata, Live the API server: the
	// cache may not have heard of a namespace that was made or labelled just now.
	Namespaces, Live client.Reader
	Events           Events
	Metrics          *Metrics
	Logger           *slog.Logger
}

var _ admission.Handler = (*Handler)(nil)

// Handle implements admission.Handler. A response that is not allowed means that
// the request made no sense; review.go turns it into an HTTP error, so that the
// API server's failure policy (Ignore) lets the pod pass.
func (h *Handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	if err := checkRequest(&req); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("request.object: not a v1 Pod: %w", err))
	}
	// In the request, a pod from a template has neither yet.
	if pod.Namespace == "" {
		pod.Namespace = req.Namespace
	}
	log := h.Logger.With("namespace", pod.Namespace, "pod", podName(pod), "uid", req.UID)

	ns, nsWarnings := h.namespace(ctx, pod, log)
	result := Mutate(pod, ns, h.Cluster, h.Config, newSecret())
	result.Warnings = append(nsWarnings, result.Warnings...)

	resp := admission.Allowed(string(result.Reason))
	if result.Outcome == Injected {
		patched, err := graft(req.Object.Raw, pod, result.Pod)
		if err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
		resp = admission.PatchResponseFromRaw(req.Object.Raw, patched)
	}
	for _, w := range result.Warnings {
		resp.Warnings = append(resp.Warnings, truncate(w.Message, maxWarning))
	}
	h.report(&req, pod, result, log)
	return resp
}

func (h *Handler) report(req *admission.Request, pod *corev1.Pod, result Result, log *slog.Logger) {
	dryRun := req.DryRun != nil && *req.DryRun
	h.Metrics.admitted(result)
	for _, w := range result.Warnings {
		log.Warn("pod admitted with a warning", "reason", w.Reason, "warning", w.Message)
	}
	// sideEffects: NoneOnDryRun is what the webhook's configuration promises.
	if !dryRun {
		h.Events.Warn(pod, result.Warnings)
	}
	log.Debug("pod admitted", "outcome", result.Outcome, "reason", result.Reason, "dryRun", dryRun)
}

// namespace reads the pod's namespace. The API server only calls for pods whose
// own label or whose namespace's label says enabled; so a pod without the label
// in a namespace that seems to have none either means that we know too little.
func (h *Handler) namespace(ctx context.Context, pod *corev1.Pod, log *slog.Logger) (*Namespace, []Warning) {
	read := func(from client.Reader) (*Namespace, error) {
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if err := from.Get(ctx, client.ObjectKey{Name: pod.Namespace}, m); err != nil {
			return nil, err
		}
		return &Namespace{Name: pod.Namespace, Labels: m.Labels, Annotations: m.Annotations}, nil
	}
	ns, err := read(h.Namespaces)
	if err == nil && (pod.Labels[xds.InjectLabel] != "" || ns.Labels[xds.InjectLabel] != "") {
		return ns, nil
	}
	live, liveErr := read(h.Live)
	if liveErr == nil {
		return live, nil
	}
	log.Error("namespace cannot be read; taken as labelled, since the API server called", "error", errors.Join(err, liveErr))
	return &Namespace{Name: pod.Namespace, Labels: map[string]string{xds.InjectLabel: xds.InjectLabelEnabled}},
		[]Warning{warnf(ReasonNamespaceLost, "", "evenkeel: namespace %s cannot be read (%v); its annotations are not applied", pod.Namespace, liveErr)}
}

// checkRequest names what is wrong with a request that is not for us.
func checkRequest(req *admission.Request) error {
	var errs []error
	if k := req.Kind; k.Group != "" || k.Version != "v1" || k.Kind != "Pod" {
		errs = append(errs, fmt.Errorf("request.kind: got %s, want /v1, Kind=Pod: the MutatingWebhookConfiguration must send pods only", k.String()))
	}
	if req.Operation != "CREATE" {
		errs = append(errs, fmt.Errorf("request.operation: got %q, want CREATE: a pod's containers cannot be changed later", req.Operation))
	}
	if req.SubResource != "" {
		errs = append(errs, fmt.Errorf("request.subResource: got %q, want none", req.SubResource))
	}
	if len(req.Object.Raw) == 0 || string(req.Object.Raw) == "null" {
		errs = append(errs, errors.New("request.object: empty, want the pod"))
	}
	if req.Namespace == "" {
		errs = append(errs, errors.New("request.namespace: empty, want the pod's"))
	}
	return errors.Join(errs...)
}

// graft applies what Mutate did to the typed pod to the bytes that came. The
// difference between the bytes and the typed result would do more: it would
// remove every field that the API server knows and this program's types do not
// yet, and shift those inside list elements that move.
func graft(raw []byte, before, after *corev1.Pod) ([]byte, error) {
	b, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode pod: %w", err)
	}
	a, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode patched pod: %w", err)
	}
	change, err := strategicpatch.CreateTwoWayMergePatch(b, a, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compute the patch: %w", err)
	}
	patched, err := strategicpatch.StrategicMergePatch(raw, change, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("request.object: cannot be patched: %w", err)
	}
	return patched, nil
}

// newSecret is 128 random bits, in hexadecimal.
func newSecret() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // "Read [...] never returns an error": crypto/rand
	return hex.EncodeToString(b[:])
}

func podName(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}

func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const more = "..."
	cut := n - len(more)
	for cut > 0 && s[cut]&0xc0 == 0x80 { // not inside a rune
		cut--
	}
	return s[:cut] + more
}
