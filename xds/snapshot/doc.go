// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package snapshot turns Services, EndpointSlices, Pods, Nodes and routes into the
// resources that sidecars are sent, and into what is known of a Pod as a server. It is pure: no goroutines, no clock, no
// sockets, no Kubernetes types.
//
//	Change ──Apply──▶ Store ──Drain──▶ topics that changed
//	                    │
//	SetDraining ────────┤
//	                    ├─Destination(name) ─▶ *Resource, the topics it depends on
//	                    ├─Collection(service) ─▶ sets of endpoint *Resources
//	                    └─Membership(pod) ─▶ the services that a Pod is in, and how
//
// An arrow is a function call. The Store keeps the inputs and their indexes and
// nothing that was derived from them but a cache of host names; what is asked
// for is computed when it is asked for. So any order of changes that ends in
// the same inputs ends in the same resources (a property test holds this), and
// what nobody subscribes to costs nothing.
//
// # What is incremental
//
// A change names the topics it touches, at most a few services and addresses.
// A collection is built anew from the slices of its one service, but each
// endpoint that stayed the same keeps its *Resource, a collection that stayed
// the same keeps its *Collection, and a node's view that stayed the same keeps
// its *Set. Pointer equality is therefore "nothing to send", and the difference
// of two sets is a walk over pointers: one endpoint's change costs its own bytes.
//
// # Versions
//
// A resource's version is a hash of its bytes, not a counter: two replicas give
// the same version to the same content, and a sidecar that reconnects to the
// other one is sent only what differs.
//
// # Endpoint states
//
// The EndpointSlice says what is ready, the Pod what is about to be. A Pod leaves
// when it is being deleted, or while SetDraining is on for it: its preStop hook was
// called, which a restart or the node's shutdown does without a deletion.
//
//	slice                             pod                          state
//	ready, not terminating            does not leave               HEALTHY   (ready)
//	not ready                         ready, does not leave        HEALTHY   (ready)
//	not ready                         all containers but our       UNHEALTHY (warming)
//	                                  sidecar are ready
//	not ready                         anything else                not sent
//	terminating, serving or ready     any                          DRAINING
//	ready or serving                  leaves                       DRAINING
//	not ready, not terminating        ready, leaves                DRAINING
//	not ready                         not ready, leaves            not sent
//	terminating, neither              any                          not sent
//	any                               gone (seen and deleted)      not sent
//
// A ready Pod that its slice lists is ready, whatever the slice says yet: the
// slice is the endpoint controller's copy of the Pod's condition, and in a busy
// cluster that copy takes seconds.
//
// A Pod that was never seen does not count against its endpoint: the two
// watches run at their own pace and the slice may be ahead.
//
// An endpoint of a slice made by hand may name its Pod without the UID: then it is
// the Pod that has the name now.
//
// # Membership
//
// A Pod is in a Service whose selector selects it or whose slices list it, whatever
// it is on its way to; there its state is the one in the table. Selectors are found
// by one of their pairs among the Pod's own labels, so that neither side is walked.
// A Service that an Ingress or a route of the Gateway API names is external, as one
// of type LoadBalancer or NodePort is.
//
// # Host names
//
// Names mean what cluster DNS would make of them with the client's search list
// ("<namespace>.svc.<domain> svc.<domain> <domain>"), in that order.
//
// # Limitations
//
// NodePorts, load-balancer and external IPs are not destinations: a connection
// to them is relayed to where the app meant. A Pod on the host's network is not
// found by its address, which is the node's. Only the first address of a slice's
// endpoint is used, as kube-proxy does. The ports of a headless Service that names
// none are not in a Pod's Membership: they are whatever clients dial. Search lists changed by a Pod's
// dnsConfig are not known.
package snapshot
