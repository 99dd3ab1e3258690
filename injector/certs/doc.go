// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package certs keeps the certificates of a cluster right: what package
// injector/pki decides, it stores and publishes.
//
//	            ┌──────────────── Keeper (leader only) ─────────────────┐
//	Secret      │  decode → pki.Advance → store → publish → issue       │
//	evenkeel-ca ◄──────────────────────────┘        │         │         │
//	            └───────────────────────────────────┼─────────┼─────────┘
//	                     Trust (in memory)  ◄────────┤         ▼
//	                          │                      ▼      Secrets evenkeel-xds-tls,
//	                          ▼             caBundle of the  evenkeel-injector-tls
//	            Publisher (leader only)     webhook's conf.        │
//	                          │                                    ▼
//	                          ▼                              Store (every replica)
//	            ConfigMap evenkeel-ca in each namespace            │
//	            that needs it                                      ▼
//	                                                         the webhook's TLS
//
// An arrow is a write, or in memory a call. The API server's resource versions
// decide between two writers; nothing is written from a cache's view of a Secret.
//
// # Which namespaces have the ConfigMap
//
// Those labelled evenkeel.dev/inject: enabled, and those that have an injected
// pod: the label evenkeel.dev/injected, which the webhook sets, is watched. So a
// pod opted in by its own label has it before its kubelet mounts it, and pods
// that still run in a namespace whose label was taken away keep it until the last
// has gone.
//
// # What goes wrong, and what happens
//
//	Secret deleted or emptied    stored again as this process knows it; see pki for one that has forgotten
//	Secret unreadable            logged with the key, Event, replaced; what is in use stays trusted
//	ConfigMap edited or deleted  put right
//	ConfigMap is someone else's  left as it is: Event on it, evenkeel_trust_bundle_blocked; published once it is gone
//	caBundle emptied             put right
//	API server away              the last certificate serves on; the lease's next holder carries on
//	no leader                    nothing is renewed: alert on the expiry metric, which every replica has
//
// # Uninstalling
//
// Everything written here is owned (ownerReferences) by the chart's ClusterRole.
// When Helm removes that, the garbage collector removes the Secrets and the
// ConfigMaps of all namespaces. A cluster-scoped object may own namespaced ones.
//
// # Limitations
//
// A namespace that is labelled in the same instant as its first pod is made may
// mount the ConfigMap while it does not exist; the kubelet adds it at its next
// refresh (about a minute), and the sidecar relays without balancing until then.
package certs
