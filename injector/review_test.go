// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"evenkeel.dev/xds"
)

// recorder keeps Events as "Kind/name reason: note".
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := regarding.(*corev1.ObjectReference)
	r.events = append(r.events, fmt.Sprintf("%s/%s %s: %s", ref.Kind, ref.Name, reason, fmt.Sprintf(note, args...)))
}

// failing is an API server that does not answer.
type failing struct{ client.Reader }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("connection refused")
}

// harness is a webhook over real HTTPS.
type harness struct {
	handler *Handler
	url     string
	client  *http.Client
	events  *recorder
	metrics *prometheus.Registry
}

func newHarness(t *testing.T, objects ...client.Object) *harness {
	t.Helper()
	reader := fake.NewClientBuilder().WithObjects(objects...).Build()
	h := &harness{events: &recorder{}, metrics: prometheus.NewPedanticRegistry()}
	metrics, err := NewMetrics(h.metrics)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	h.handler = &Handler{
		Config: testConfig(t), Cluster: testCluster(), Namespaces: reader, Live: reader,
		Events: Events{Recorder: h.events}, Metrics: metrics, Logger: log,
	}
	server := httptest.NewTLSServer(Review(&admission.Webhook{Handler: h.handler}, metrics, log))
	t.Cleanup(server.Close)
	h.url, h.client = server.URL, server.Client()
	return h
}

func (h *harness) post(t *testing.T, contentType, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := h.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// review sends testdata/review.json, which is as an API server 1.36 writes it,
// changed by edit.
func (h *harness) review(t *testing.T, edit func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionResponse {
	t.Helper()
	code, body := h.post(t, "application/json", reviewBody(t, edit))
	if code != http.StatusOK {
		t.Fatalf("HTTP %d: %s", code, body)
	}
	out := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal([]byte(body), out); err != nil {
		t.Fatal(err)
	}
	if out.APIVersion != "admission.k8s.io/v1" || out.Kind != "AdmissionReview" {
		t.Errorf("answer is a %s %s", out.APIVersion, out.Kind)
	}
	return out.Response
}

func reviewBody(t *testing.T, edit func(*admissionv1.AdmissionRequest)) string {
	t.Helper()
	b, err := os.ReadFile("testdata/review.json")
	if err != nil {
		t.Fatal(err)
	}
	in := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(b, in); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(in.Request)
	}
	if b, err = json.Marshal(in); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// samples lists a counter's, each as "label,label=value".
func (h *harness) samples(t *testing.T, name string) []string {
	t.Helper()
	families, err := h.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var samples []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			samples = append(samples, fmt.Sprintf("%s=%v", strings.Join(values, ","), m.GetCounter().GetValue()))
		}
	}
	return samples
}

func editPod(t *testing.T, edit func(*corev1.Pod)) func(*admissionv1.AdmissionRequest) {
	return func(r *admissionv1.AdmissionRequest) {
		pod := &corev1.Pod{}
		if err := json.Unmarshal(r.Object.Raw, pod); err != nil {
			t.Fatal(err)
		}
		edit(pod)
		raw, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		r.Object.Raw = raw
	}
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func enabled() map[string]string { return map[string]string{xds.InjectLabel: xds.InjectLabelEnabled} }

func TestReviewInjects(t *testing.T) {
	h := newHarness(t, namespace("shop", enabled()))
	resp := h.review(t, nil)
	if !resp.Allowed || resp.UID != "705ab4f5-6393-11e8-b7cc-42010a800002" || len(resp.Warnings) != 0 {
		t.Fatalf("response = %+v", resp)
	}
	if resp.PatchType == nil || *resp.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatal("patch is no JSON patch")
	}
	in := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal([]byte(reviewBody(t, nil)), in); err != nil {
		t.Fatal(err)
	}
	before := &corev1.Pod{}
	if err := json.Unmarshal(in.Request.Object.Raw, before); err != nil {
		t.Fatal(err)
	}
	got := applyPatch(t, in.Request.Object.Raw, resp.Patch)
	secret := got.Spec.Containers[0].Lifecycle.PreStop.HTTPGet.HTTPHeaders[0].Value
	if len(secret) != 32 || secret == newSecret() {
		t.Errorf("secret %q is easy to guess", secret)
	}
	want := Mutate(before, &Namespace{Name: "shop", Labels: enabled()}, testCluster(), testConfig(t), secret).Pod
	if !reflect.DeepEqual(rawPod(t, got), rawPod(t, want)) {
		t.Errorf("the patched pod is not what Mutate makes:\ngot  %v\nwant %v", rawPod(t, got), rawPod(t, want))
	}
	if !strings.Contains(strings.Join(got.Spec.InitContainers[1].Args, " "), "--workload=deployment/cart") {
		t.Errorf("args = %q", got.Spec.InitContainers[1].Args)
	}

	// The API server calls again after another webhook: nothing is left to do.
	again := h.review(t, editPod(t, func(p *corev1.Pod) { *p = *got }))
	if !again.Allowed || len(again.Patch) != 0 {
		t.Errorf("second call: %+v", again)
	}
	if got, want := h.samples(t, "evenkeel_injector_pods_total"), []string{"injected,=1", "skipped,AlreadyInjected=1"}; !slices.Equal(got, want) {
		t.Errorf("evenkeel_injector_pods_total = %q, want %q", got, want)
	}
}

func TestReviewWarns(t *testing.T) {
	h := newHarness(t, namespace("shop", enabled()))
	mistakes := editPod(t, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"config.evenkeel.dev/log-level": "loud", "config.evenkeel.dev/log-levell": strings.Repeat("é", 300)}
		p.Annotations["config.evenkeel.dev/outbound-ports"] = strings.Repeat("é", 300)
	})
	resp := h.review(t, mistakes)
	if !resp.Allowed || len(resp.Patch) == 0 || len(resp.Warnings) != 3 {
		t.Fatalf("allowed %v, patch of %d bytes, warnings %q", resp.Allowed, len(resp.Patch), resp.Warnings)
	}
	for _, w := range resp.Warnings {
		if len(w) > maxWarning {
			t.Errorf("warning of %d bytes, the API server cuts at %d", len(w), maxWarning)
		}
	}
	if len(h.events.events) != 1 || !strings.HasPrefix(h.events.events[0], "ReplicaSet/cart-7d9f5c4b68 InvalidAnnotation: pod annotation config.evenkeel.dev/log-level") {
		t.Errorf("events = %q, want one about the ReplicaSet", h.events.events)
	}
	want := []string{"log-level,InvalidAnnotation=1", "outbound-ports,InvalidAnnotation=1", "unknown,InvalidAnnotation=1"}
	if got := h.samples(t, "evenkeel_injector_warnings_total"); !slices.Equal(got, want) {
		t.Errorf("evenkeel_injector_warnings_total = %q, want %q", got, want)
	}

	h.events.events = nil
	dry := h.review(t, func(r *admissionv1.AdmissionRequest) { mistakes(r); yes := true; r.DryRun = &yes })
	if len(dry.Warnings) != 3 || len(h.events.events) != 0 {
		t.Errorf("a dry run has %d warnings and wrote %q", len(dry.Warnings), h.events.events)
	}
}

// TestReviewUnreadableNamespace: the API server only calls for labelled ones.
func TestReviewUnreadableNamespace(t *testing.T) {
	t.Run("cache is behind", func(t *testing.T) {
		h := newHarness(t, namespace("shop", nil))
		h.handler.Live = fake.NewClientBuilder().WithObjects(namespace("shop", enabled())).Build()
		if resp := h.review(t, nil); len(resp.Patch) == 0 || len(resp.Warnings) != 0 {
			t.Errorf("not injected, warnings %q", resp.Warnings)
		}
	})
	t.Run("API server away", func(t *testing.T) {
		h := newHarness(t)
		h.handler.Live = failing{}
		resp := h.review(t, nil)
		if len(resp.Patch) == 0 || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "cannot be read") {
			t.Errorf("patch of %d bytes, warnings %q", len(resp.Patch), resp.Warnings)
		}
	})
}

func TestReviewBadRequests(t *testing.T) {
	h := newHarness(t, namespace("shop", enabled()))
	edited := func(edit func(r *admissionv1.AdmissionRequest)) string { return reviewBody(t, edit) }
	for _, tc := range []struct {
		name, contentType, body string
		code                    int
		want                    string
	}{
		{"empty", "application/json", "", 400, "no AdmissionReview"},
		{"no JSON", "application/json", "hello", 400, "no AdmissionReview"},
		{"cut", "application/json", edited(nil)[:300], 400, "no AdmissionReview"},
		{"field of another type", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":7}}`, 400, "request.uid"},
		{"another object", "application/json", `{"apiVersion":"v1","kind":"Pod"}`, 400, `kind "Pod"`},
		{"another version", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`, 400, "admission.k8s.io/v1beta1"},
		{"no request", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, "request: missing"},
		{"no uid", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, 400, "request.uid"},
		{"content type", "text/plain", edited(nil), 415, "text/plain"},
		{"huge", "application/json", strings.Repeat(" ", maxReview+1), 413, "larger than"},
		{"not a pod", "application/json", edited(func(r *admissionv1.AdmissionRequest) {
			r.Kind = metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
		}), 400, "request.kind: got apps/v1, Kind=Deployment"},
		{"update", "application/json", edited(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), 400, "request.operation"},
		{"subresource", "application/json", edited(func(r *admissionv1.AdmissionRequest) { r.SubResource = "exec" }), 400, "request.subResource"},
		{"no object", "application/json", edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }), 400, "request.object"},
		{"no namespace", "application/json", edited(func(r *admissionv1.AdmissionRequest) { r.Namespace = "" }), 400, "request.namespace"},
		{"object of another shape", "application/json", edited(func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = []byte(`{"spec":{"containers":{"name":"x"}}}`)
		}), 400, "spec.containers"},
		{"object is a list", "application/json", edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`[1]`) }), 400, "request.object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := h.post(t, tc.contentType, tc.body)
			if code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("HTTP %d %q, want %d with %q", code, body, tc.code, tc.want)
			}
		})
	}
	// It still works.
	if resp := h.review(t, nil); len(resp.Patch) == 0 {
		t.Error("not injected after bad requests")
	}
	if got, want := h.samples(t, "evenkeel_injector_request_errors_total"), []string{"400=15", "413=1", "415=1"}; !slices.Equal(got, want) {
		t.Errorf("evenkeel_injector_request_errors_total = %q, want %q", got, want)
	}
}

func TestReviewMethod(t *testing.T) {
	h := newHarness(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %s, Allow %q", resp.Status, resp.Header.Get("Allow"))
	}
}

func TestReviewPanic(t *testing.T) {
	h := newHarness(t, namespace("shop", enabled()))
	h.handler.Config = nil // a bug of ours, for the test's sake
	code, body := h.post(t, "application/json", reviewBody(t, nil))
	if code != http.StatusInternalServerError || !strings.Contains(body, "panic") {
		t.Errorf("HTTP %d %q, want 500 that says so: the pod must pass by the failure policy", code, body)
	}
}

func FuzzReview(f *testing.F) {
	b, err := os.ReadFile("testdata/review.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"spec":null}}}`))
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	reader := fake.NewClientBuilder().WithObjects(namespace("shop", enabled())).Build()
	log := slog.New(slog.DiscardHandler)
	hook := Review(&admission.Webhook{Handler: &Handler{
		Config: testConfig(f), Cluster: testCluster(), Namespaces: reader, Live: reader,
		Events: Events{Recorder: &recorder{}}, Metrics: metrics, Logger: log,
	}}, metrics, log)
	f.Fuzz(func(t *testing.T, body []byte) {
		req := httptest.NewRequest(http.MethodPost, "/inject", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, req)
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("HTTP 500 for %q: %s", body, w.Body)
		}
		if w.Code != http.StatusOK {
			return
		}
		out := &admissionv1.AdmissionReview{}
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil || out.Response == nil || !out.Response.Allowed {
			t.Fatalf("HTTP 200, but %v, %s", err, w.Body)
		}
	})
}
