// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
)

// FuzzApply feeds any bytes as a response. Whatever comes, the sink's promises
// hold (bench checks them), what was good stays routable, and the NACK can be
// sent.
func FuzzApply(f *testing.F) {
	for _, res := range []*discoveryv3.DeltaDiscoveryResponse{
		dests(serviceDest("address/10.96.3.4:50051", web)),
		response(xds.DestinationType, nil, "address/10.96.3.4:50051", "name/shop/web:50051"),
		ends(ready(pricing, "10.244.1.9:50051"), memberOf(pricing, "10.244.1.7:50051", corev3.HealthStatus_DRAINING), marker(pricing)),
		response(xds.EndpointType, nil, xds.EndpointCollection(pricing), xds.EndpointName(pricing, addr("10.244.1.8:50051"))),
	} {
		b, err := proto.Marshal(res)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var res discoveryv3.DeltaDiscoveryResponse
		if proto.Unmarshal(data, &res) != nil {
			return
		}
		b := served(t)
		b.ask(webName)
		if err := b.apply(&res); err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("the NACK is not UTF-8: %q", err)
		}
		if d, ok := b.table.Lookup(clusterIP); !ok || d.Kind == router.Unknown {
			t.Errorf("the ClusterIP of a live connection leads to %v", d)
		}
		for _, svc := range b.services {
			for _, e := range svc.Endpoints() {
				if a := e.Addr(); !a.IsValid() || a.Port() == 0 || a.Addr().Is4In6() || a.Addr().IsUnspecified() {
					t.Errorf("endpoint %s", a)
				}
			}
		}
		b.out.reset(nil, b.state.held())
		for req := b.out.next(); req != nil; req = b.out.next() {
			if _, err := proto.Marshal(req); err != nil {
				t.Errorf("a request cannot be sent: %v", err)
			}
		}
	})
}
