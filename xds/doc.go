// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package xds is the contract between the control plane and the sidecars.
//
// It holds names only and imports nothing but the standard library, so that
// both sides may compile against it: the sidecar links no Kubernetes package,
// the control plane links nothing of the data plane.
//
// # The wire
//
// One delta ADS v3 stream (envoy.service.discovery.v3.AggregatedDiscoveryService,
// method DeltaAggregatedResources) with two resource types:
//
//	DestinationType  what an address or a host name means to this client
//	                   address/10.96.3.4:50051
//	                   name/shop/pricing.shop:50051
//	EndpointType     one endpoint of one service, a resource of its own
//	                   endpoints/shop/pricing:50051/*                    the collection, to subscribe to
//	                   endpoints/shop/pricing:50051/10.244.1.7:50051     a member, as it is sent
//
// A destination that the control plane does not know is answered in
// removed_resources. The subscription stays: it is answered again when the
// destination becomes known, changes or goes away.
//
// The members of a collection come in any number of responses. The last of the
// first whole list holds one more resource, named like the collection itself
// and without an address: from then on the client has the whole set, also when
// the set is empty. A member that is gone is named in removed_resources; a
// collection whose service is gone is named there itself, and takes its members
// with it.
//
// # Limitations
//
// Names are canonical: one meaning has one spelling (lower case, no trailing
// dot, IPv4 never written as IPv4-mapped IPv6, no zones, ports without leading
// zeros). A parser refuses any other spelling and says which one it wants.
package xds
