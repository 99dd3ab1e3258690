// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

// The sidecar's environment, which the injector writes into the pod.
const (
	EnvHoldSecret = "EVENKEEL_HOLD_SECRET" // what the preStop hook must show
	EnvHooks      = "EVENKEEL_HOOKS"       // JSON: container → Hook
	EnvPodIP      = "POD_IP"
)

// Hook is the preStop hook that a container had before ours took its place, in so
// far as the sidecar performs it: one of the two.
type Hook struct {
	HTTPGet      *HTTPGet `json:"httpGet,omitempty"`
	SleepSeconds int64    `json:"sleepSeconds,omitempty"`
}

// HTTPGet is Kubernetes' HTTPGetAction, with the port's name resolved.
type HTTPGet struct {
	Scheme  string       `json:"scheme,omitempty"` // HTTP (or empty), HTTPS
	Host    string       `json:"host,omitempty"`   // empty: the pod's IP
	Port    int          `json:"port"`
	Path    string       `json:"path,omitempty"`
	Headers []HTTPHeader `json:"headers,omitempty"`
}

// HTTPHeader is one header of an HTTPGet.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
