// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package xdscmd is the control plane's command, callable from cmd/xds and from
// `evenkeel sandbox`.
//
//	source (API server or files) ──changes──▶ server ──delta ADS──▶ sidecars
//	                                            │
//	                                            └─subscriptions, reports──▶ rollout ──statuses──▶ sidecars
//
// The admin port is there first, so that probes can tell what is missing. The
// ADS port is there once the source is synced and, with TLS, the certificate
// has been read: who can connect is answered.
//
// # Admin port
//
//	/healthz               200 while the process runs
//	/readyz                200 once it serves; else 503 and what it waits for
//	/metrics               Prometheus
//	/debug/subscriptions   JSON: services and how many sidecars subscribe;
//	                       ?service=shop/pricing:50051 names them
//	/debug/rollout         JSON: who has answered for the pods of ?namespace=shop,
//	                       of one workload with &workload=deployment/pricing
//
// # Failures
//
//	API server away        streams go on with what was seen last; watches are taken
//	                       up again; evenkeel_xds_watch_age_seconds grows
//	certificate unreadable before the first: waits, not ready; later: the old one goes on
//	token keys unreachable streams are refused as UNAVAILABLE until they are had once
//	malformed file         its last good content goes on, the log names file, line, field
//
// # Limitations
//
// With --files there is no API server to verify tokens with, so it serves on a
// unix socket only.
package xdscmd
