// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package server streams the snapshot to sidecars over delta ADS, and takes their
// reports over Track.
//
//	watch ──Apply──▶ hub ──put──▶ mailbox ──take──▶ stream ──Send──▶ sidecar
//	                  ▲                               │
//	                  └──────── subscribe ────────────┘
//
// An arrow is a call that does not block, but for Send, which blocks its own
// stream alone. The hub knows who subscribes to what, computes each subscribed
// resource once per change, and marks the newest value in the mailboxes of its
// subscribers. A mailbox holds at most one value for each subscription, so a
// stream that is behind skips what was outdated before it got to it; nothing
// queues up, and nothing waits for it.
//
// # Sent once, encoded once
//
// Thousands of sidecars have the same endpoints and are to have the same next.
// The way from one set of endpoints to the next (a transition) is encoded once,
// with its nonce, and the same bytes are handed to every connection. What only
// one stream needs, such as the answer to versions it brought along, is put
// together from resources that are encoded once.
//
// # States of a stream
//
//	authenticate → first request → synced → Pod seen → serve → end
//
// The goroutine of the RPC owns the stream in every state; a second one hands it
// the requests. A stream that serves is always in one of: waiting for something,
// sending, or full (MaxUnacked responses without their ACK: it only receives).
//
// # Track
//
//	sidecar ──Report──▶ receive ──TrackReport──▶ Tracker (package rollout)
//	   ▲                                           │ ▲
//	   └──────SendMsg── run ◀──take── statusBox ◀──┘ └──Membership, SetDraining── hub
//
// The Rollout service is served beside ADS, with the same admission, on streams of
// its own: a sidecar has one to every replica. The goroutine of the RPC sends the
// newest PodStatus, a second one receives, so that a sidecar which does not read
// is still heard. After each Apply the Tracker is told, without the hub's lock; it
// then asks for what it needs under that lock, pod by pod.
//
// A sidecar that says nothing keeps its stream: whether it is waited for depends on
// its lease, never on the connection.
//
// # Authentication
//
// A token is verified when a stream is opened, and binds the stream to its Pod.
// It is not asked for again when it expires: the API server's word on the Pod is
// newer than any token, so a stream ends when its Pod is gone, and a sidecar
// whose Pod lives is never cut off by the clock. A stolen token is worth what it
// is elsewhere: until it expires, and only while its Pod exists.
//
// # Failures
//
//	a sidecar does not read or ACK   after StallTimeout its connection is closed;
//	                                 nobody else waits
//	a sidecar does not read its      the same: its connection to this replica is
//	statuses                         closed; until then its reports count
//	a malformed Report               INVALID_ARGUMENT, naming the field
//	a sidecar refuses a response     counted and logged with its own words; it is
//	(NACK)                           sent the resource again when that changes
//	a malformed name                 answered in removed_resources, logged
//	an unknown type                  INVALID_ARGUMENT, naming those that exist
//	no or a bad token                UNAUTHENTICATED, with what is wrong with it
//	another pod's token              PERMISSION_DENIED, naming both
//	no token keys yet                UNAVAILABLE
//	the Pod is gone                  UNAUTHENTICATED
//	shutdown                         UNAVAILABLE: connect to another replica
//
// # Limitations
//
// Wildcard subscriptions and single endpoints are refused: a sidecar asks for
// what it uses. Only tokens of the API server's first --service-account-issuer
// are accepted. Envoy and proxyless gRPC clients are not served.
package server
