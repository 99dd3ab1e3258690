// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"evenkeel.dev/xds"
)

// maxAcks bounds the answers that wait for a control plane which sends and does
// not read. Beyond it the stream is given up.
const maxAcks = 1024

// types are the resource types, in the order in which they are asked for.
var types = [...]string{xds.DestinationType, xds.EndpointType}

// outbox collects what is to be said on the stream and turns it into requests
// when the sender is free, so that a hundred subscriptions made meanwhile are
// one request.
type outbox struct {
	node  *corev3.Node // in the first request of a stream
	first []*discoveryv3.DeltaDiscoveryRequest
	acks  []*discoveryv3.DeltaDiscoveryRequest
	// changes per type: name → subscribe (true) or unsubscribe; the last word counts.
	changes map[string]map[string]bool
}

// reset starts a new stream: everything is subscribed again, with the versions
// that are held, so that only what changed meanwhile is sent.
func (o *outbox) reset(node *corev3.Node, held map[string]*subscription) {
	o.node, o.acks, o.changes, o.first = node, nil, nil, nil
	for _, typ := range types {
		s := held[typ]
		// Delta ADS: a first request without names is a wildcard subscription
		// (the whole cluster), which nobody wants.
		if s == nil || len(s.names) == 0 {
			continue
		}
		slices.Sort(s.names)
		o.first = append(o.first, &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl:                 typ,
			ResourceNamesSubscribe:  slices.Compact(s.names),
			InitialResourceVersions: s.versions,
		})
	}
}

// subscription is what a stream has to be told about one type.
type subscription struct {
	names    []string
	versions map[string]string
}

func (o *outbox) change(typ, name string, subscribe bool) {
	if o.changes == nil {
		o.changes = map[string]map[string]bool{}
	}
	if o.changes[typ] == nil {
		o.changes[typ] = map[string]bool{}
	}
	o.changes[typ][name] = subscribe
}

// forget takes back a change that was not sent yet.
func (o *outbox) forget(typ, name string) { delete(o.changes[typ], name) }

// ack answers a response; reject is empty for a good one.
func (o *outbox) ack(typ, nonce, reject string) (ok bool) {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: nonce}
	if reject != "" {
		req.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: reject}
	}
	o.acks = append(o.acks, req)
	return len(o.acks) <= maxAcks
}

// next takes the next request, or returns nil when there is nothing to say.
func (o *outbox) next() *discoveryv3.DeltaDiscoveryRequest {
	req := o.take()
	if req != nil && o.node != nil {
		req.Node, o.node = o.node, nil
	}
	return req
}

func (o *outbox) take() *discoveryv3.DeltaDiscoveryRequest {
	if len(o.first) > 0 {
		req := o.first[0]
		o.first = o.first[1:]
		return req
	}
	if len(o.acks) > 0 {
		req := o.acks[0]
		o.acks = o.acks[1:]
		return req
	}
	for _, typ := range types {
		if len(o.changes[typ]) == 0 {
			continue
		}
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}
		for _, name := range slices.Sorted(maps.Keys(o.changes[typ])) {
			if o.changes[typ][name] {
				req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, name)
			} else {
				req.ResourceNamesUnsubscribe = append(req.ResourceNamesUnsubscribe, name)
			}
		}
		delete(o.changes, typ)
		return req
	}
	return nil
}

// nodeMessage tells the control plane who we are.
func nodeMessage(n Node) *corev3.Node {
	fields := map[string]*structpb.Value{}
	for k, v := range map[string]string{
		xds.NodeNamespace: n.Namespace, xds.NodePod: n.Pod, xds.NodeUID: n.UID,
		xds.NodeWorkload: n.Workload, xds.NodeNode: n.NodeName, xds.NodeZone: n.Zone,
	} {
		if v != "" {
			fields[k] = structpb.NewStringValue(v)
		}
	}
	return &corev3.Node{
		Id:            n.Namespace + "/" + n.Pod,
		Metadata:      &structpb.Struct{Fields: fields},
		UserAgentName: "evenkeel-sidecar",
	}
}
