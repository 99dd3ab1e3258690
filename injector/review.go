// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package injector

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// maxReview bounds a request's body. A pod is at most 3 MiB (the API server's
// limit of a request), and the review holds it once: CREATE has no old object.
const maxReview = 7 << 20

// Review serves AdmissionReview requests through hook.
//
// controller-runtime's own ServeHTTP answers a request that it cannot read with
// HTTP 200 and "allowed: false", which refuses the pod whatever the webhook's
// failure policy. Here such a request is an HTTP error: then failurePolicy
// Ignore holds, the pod passes, and the API server's log and metrics show it.
func Review(hook *admission.Webhook, metrics *Metrics, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := review(hook, w, r)
		if err != nil {
			code := http.StatusInternalServerError
			if peer, ok := errors.AsType[*requestError](err); ok {
				code = peer.code
			}
			metrics.refused(code)
			logger.Error("admission request failed, the API server's failure policy decides", "code", code, "error", err, "remote", r.RemoteAddr)
			http.Error(w, err.Error(), code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write(resp); err != nil {
			logger.Warn("admission response not delivered", "error", err)
		}
	})
}

// requestError is the peer's mistake, with the HTTP status that tells it so.
type requestError struct {
	code int
	text string
}

func (e *requestError) Error() string { return e.text }

func bad(code int, format string, args ...any) error {
	return &requestError{code, fmt.Sprintf(format, args...)}
}

func review(hook *admission.Webhook, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, bad(http.StatusMethodNotAllowed, "method %s, want POST", r.Method)
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, bad(http.StatusUnsupportedMediaType, "Content-Type %q, want application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, bad(http.StatusRequestEntityTooLarge, "body is larger than %d bytes", large.Limit)
		}
		return nil, bad(http.StatusBadRequest, "body cannot be read: %v", err)
	}
	in := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, in); err != nil {
		return nil, bad(http.StatusBadRequest, "body is no AdmissionReview: %v", err)
	}
	if in.APIVersion != admissionv1.SchemeGroupVersion.String() || in.Kind != "AdmissionReview" {
		return nil, bad(http.StatusBadRequest, "apiVersion %q, kind %q: want %s AdmissionReview", in.APIVersion, in.Kind, admissionv1.SchemeGroupVersion)
	}
	if in.Request == nil {
		return nil, bad(http.StatusBadRequest, "request: missing")
	}
	if in.Request.UID == "" {
		return nil, bad(http.StatusBadRequest, "request.uid: empty")
	}
	resp := hook.Handle(r.Context(), admission.Request{AdmissionRequest: *in.Request})
	if !resp.Allowed {
		code, text := int32(http.StatusInternalServerError), "no reason given"
		if resp.Result != nil {
			code, text = resp.Result.Code, resp.Result.Message
		}
		return nil, bad(int(code), "%s", text)
	}
	out := &admissionv1.AdmissionReview{Response: &resp.AdmissionResponse}
	out.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode response: %w", err)
	}
	return b, nil
}
