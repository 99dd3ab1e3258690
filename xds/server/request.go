// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"maps"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"evenkeel.dev/xds"
)

// maxLogged bounds what a misbehaving client can write to the log on one
// stream; the metrics go on counting.
const maxLogged = 20

// handle takes in one request. Requests may carry an ACK or NACK and changes of
// the subscription at the same time.
func (st *stream) handle(req *discoverypb.DeltaDiscoveryRequest) error {
	typeURL := req.GetTypeUrl()
	if typeURL != xds.DestinationType && typeURL != xds.EndpointType {
		return status.Errorf(codes.InvalidArgument,
			"evenkeel: unknown resource type %.200q; this control plane has %s and %s", typeURL, xds.DestinationType, xds.EndpointType)
	}
	st.acknowledge(req)

	var have map[string]string
	if st.types[typeURL] == nil {
		st.types[typeURL] = &typeState{owesAnswer: true}
		// "initial_resource_versions … The resource versions are populated only on
		// the first request of the stream" (of a type, on an aggregated one):
		// https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol
		have = req.GetInitialResourceVersions()
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		st.unsubscribe(subscription{typeURL, name})
	}
	var malformed []string
	byCollection := groupByCollection(typeURL, have)
	for _, name := range req.GetResourceNamesSubscribe() {
		e, err := parse(typeURL, name)
		if err != nil {
			malformed = append(malformed, name)
			st.malformed(err)
			continue
		}
		if st.subs[e.key] == nil && len(st.subs) >= st.srv.cfg.MaxSubscriptions {
			return status.Errorf(codes.ResourceExhausted, "evenkeel: %d subscriptions on one stream; unsubscribe from what is idle", len(st.subs))
		}
		st.subscribe(e, have, byCollection)
	}
	if len(malformed) > 0 {
		slices.Sort(malformed)
		// Answered like what is not known: one bad name must not cost the others.
		for _, f := range encode(&st.srv.frames.nonces, typeURL, st.srv.cfg.MaxResponseBytes, nil, slices.Compact(malformed)) {
			if err := st.send(f); err != nil {
				return st.sendError(err)
			}
		}
	}
	return nil
}

func parse(typeURL, name string) (*entry, error) {
	e := &entry{key: subscription{typeURL, name}}
	if typeURL == xds.DestinationType {
		d, err := xds.ParseDestinationName(name)
		e.dest = d
		return e, err
	}
	r, err := xds.ParseEndpointResource(name)
	if err != nil {
		return nil, err
	}
	if !r.Collection() {
		return nil, errNotCollection{name, xds.EndpointCollection(r.Service.String())}
	}
	e.svc = r.Service
	return e, nil
}

type errNotCollection struct{ name, want string }

func (e errNotCollection) Error() string {
	return "one endpoint cannot be subscribed to: " + e.name + "; subscribe to " + e.want
}

// subscribe also answers anew for a name that the client already has a
// subscription for: "the server must respond with all resources listed in the
// resource_names_subscribe field, even if it believes the client has the most
// recent version of them" (xDS protocol, "Subscribing to Resources"), unless
// the client itself says what it has.
func (st *stream) subscribe(e *entry, have map[string]string, byCollection map[string]map[string]string) {
	su := &sub{}
	if e.key.typeURL == xds.DestinationType {
		if v, ok := have[e.key.name]; ok {
			su.told, su.version = true, v
		}
	} else {
		su.have = byCollection[e.key.name]
	}
	isNew := st.subs[e.key] == nil
	st.subs[e.key] = su
	delete(st.work, e.key)
	if isNew {
		st.srv.metrics.subscriptions.WithLabelValues(typeLabel(e.key.typeURL)).Inc()
		if o := st.srv.cfg.Observer; o != nil && e.key.typeURL == xds.EndpointType {
			o.Subscribed(st.seq, e.svc)
		}
	}
	st.srv.hub.subscribe(st.mb, e)
}

func (st *stream) unsubscribe(k subscription) {
	if st.subs[k] == nil {
		return
	}
	delete(st.subs, k)
	st.srv.hub.unsubscribe(st.mb, k)
	st.mb.drop(k)
	delete(st.work, k)
	st.srv.metrics.subscriptions.WithLabelValues(typeLabel(k.typeURL)).Dec()
	if o := st.srv.cfg.Observer; o != nil && k.typeURL == xds.EndpointType {
		if r, err := xds.ParseEndpointResource(k.name); err == nil {
			o.Unsubscribed(st.seq, r.Service)
		}
	}
}

// groupByCollection sorts the versions of members under their collections.
func groupByCollection(typeURL string, have map[string]string) map[string]map[string]string {
	if typeURL != xds.EndpointType || len(have) == 0 {
		return nil
	}
	groups := map[string]map[string]string{}
	for name, version := range have {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			continue // not a name of ours: it cannot be a member of anything
		}
		c := name[:i] + "/*"
		if groups[c] == nil {
			groups[c] = map[string]string{}
		}
		groups[c][name] = version
	}
	return groups
}

// acknowledge notes the answer to a response. A NACK changes nothing in what is
// sent: the client has taken what was good, and is sent the rest when it changes.
func (st *stream) acknowledge(req *discoverypb.DeltaDiscoveryRequest) {
	nonce := req.GetResponseNonce()
	if nonce == "" {
		return
	}
	if e := req.GetErrorDetail(); e != nil {
		st.srv.metrics.nacks.WithLabelValues(typeLabel(req.GetTypeUrl())).Inc()
		if st.mayLog() {
			st.log.Error("sidecar refused a response (NACK); it goes on with what it took before",
				"type", req.GetTypeUrl(), "nonce", nonce, "error", e.GetMessage(), "code", e.GetCode())
		}
	}
	i := slices.IndexFunc(st.unacked, func(u unacked) bool { return u.nonce == nonce && u.typeURL == req.GetTypeUrl() })
	if i < 0 {
		return // of an earlier stream, or answered twice
	}
	st.unacked = slices.Delete(st.unacked, i, i+1)
	if len(st.unacked) == 0 {
		st.stall.end()
	} else {
		st.stall.begin()
	}
}

func (st *stream) malformed(err error) {
	st.srv.metrics.malformed.Inc()
	if st.mayLog() {
		st.log.Warn("sidecar subscribed to a malformed name; answered as removed", "error", err)
	}
}

func (st *stream) mayLog() bool {
	st.logged++
	return st.logged <= maxLogged
}

// collect moves the mailbox into work.
func (st *stream) collect() {
	p := st.mb.take()
	for k, v := range p {
		if st.subs[k] == nil {
			delete(p, k) // unsubscribed after it was put
			continue
		}
		if old, ok := st.work[k]; ok && !old.since.IsZero() && (v.since.IsZero() || old.since.Before(v.since)) {
			v.since = old.since
			p[k] = v
		}
	}
	maps.Copy(st.work, p)
}
