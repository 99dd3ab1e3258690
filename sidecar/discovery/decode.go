// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"errors"
	"fmt"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"evenkeel.dev/sidecar/balancer"
	"evenkeel.dev/sidecar/router"
	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// malformed is an error about one field of one resource. It becomes a line of
// the NACK, so that the operator of the control plane finds the fault.
func malformed(resource, field string, err error) error {
	return fmt.Errorf("%s: %s: %w", clip(resource), field, err)
}

// clip keeps a hostile name from filling the NACK and the log.
func clip(s string) string {
	const keep = 200
	if len(s) > keep {
		return fmt.Sprintf("%q…", s[:keep])
	}
	return fmt.Sprintf("%q", s)
}

// body unpacks the Any of a resource and checks its type.
func body(res *discoveryv3.Resource, want string, into proto.Message) error {
	packed := res.GetResource()
	switch {
	case packed == nil:
		return malformed(res.GetName(), "resource", errors.New("is missing"))
	case packed.GetTypeUrl() != want:
		return malformed(res.GetName(), "resource.type_url", fmt.Errorf("is %s, not %q", clip(packed.GetTypeUrl()), want))
	}
	if err := proto.Unmarshal(packed.GetValue(), into); err != nil {
		return malformed(res.GetName(), "resource.value", err)
	}
	return nil
}

// answer is a decoded Destination.
type answer struct {
	dst    router.Destination
	policy balancer.Policy
	// note is set for what is odd and harmless.
	note error
}

func decodeDestination(res *discoveryv3.Resource) (answer, error) {
	var msg api.Destination
	if err := body(res, xds.DestinationType, &msg); err != nil {
		return answer{}, err
	}
	bad := func(field string, err error) (answer, error) {
		return answer{}, malformed(res.GetName(), field, err)
	}
	switch msg.GetKind() {
	case api.Destination_SERVICE:
		svc, err := xds.ParseService(msg.GetService())
		if err != nil {
			return bad("service", err)
		}
		a := answer{dst: router.Destination{Kind: router.Service, Service: svc.String(), Headless: msg.GetHeadless()}}
		// A newer control plane may know a policy that this sidecar does not.
		// Balancing by the default one beats not balancing.
		if a.policy, err = balancer.ParsePolicy(msg.GetPolicy()); err != nil {
			a.note = malformed(res.GetName(), "policy", err)
		}
		return a, nil
	case api.Destination_POD:
		addr, err := netip.ParseAddrPort(msg.GetEndpoint())
		if err == nil {
			err = connectable(addr)
		}
		if err != nil {
			return bad("endpoint", err)
		}
		return answer{dst: router.Destination{Kind: router.Pod, Endpoint: unmap(addr)}}, nil
	case api.Destination_EXTERNAL:
		return answer{dst: router.Destination{Kind: router.External}}, nil
	default:
		return bad("kind", fmt.Errorf("%s is not known here", msg.GetKind()))
	}
}

// decodeEndpoint reads one member of a collection. want is the address in the
// resource's name, which the body must repeat: two sources for one fact are
// two chances to be wrong.
func decodeEndpoint(res *discoveryv3.Resource, want netip.AddrPort) (balancer.EndpointSpec, error) {
	var msg endpointv3.LbEndpoint
	if err := body(res, xds.EndpointType, &msg); err != nil {
		return balancer.EndpointSpec{}, err
	}
	bad := func(field string, err error) (balancer.EndpointSpec, error) {
		return balancer.EndpointSpec{}, malformed(res.GetName(), field, err)
	}
	sock := msg.GetEndpoint().GetAddress().GetSocketAddress()
	if sock == nil {
		return bad("endpoint.address.socket_address", errors.New("is missing"))
	}
	if p := sock.GetProtocol(); p != corev3.SocketAddress_TCP {
		return bad("endpoint.address.socket_address.protocol", fmt.Errorf("is %s, not TCP", p))
	}
	ip, err := netip.ParseAddr(sock.GetAddress())
	if err != nil {
		return bad("endpoint.address.socket_address.address", err)
	}
	port := sock.GetPortValue()
	if port == 0 || port > 65535 {
		return bad("endpoint.address.socket_address.port_value", fmt.Errorf("%d is not a port to connect to", port))
	}
	addr := netip.AddrPortFrom(ip.Unmap(), uint16(port))
	if addr != want {
		return bad("endpoint.address.socket_address", fmt.Errorf("%s is not the address in the name", addr))
	}
	if err := connectable(addr); err != nil {
		return bad("endpoint.address.socket_address.address", err)
	}
	spec := balancer.EndpointSpec{Addr: addr}
	switch h := msg.GetHealthStatus(); h {
	// Envoy: UNKNOWN means that no health was determined, and is "interpreted as
	// HEALTHY" (config.core.v3.HealthStatus).
	case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY:
		spec.State = balancer.Ready
	case corev3.HealthStatus_UNHEALTHY:
		spec.State = balancer.Warming
	case corev3.HealthStatus_DRAINING:
		spec.State = balancer.Draining
	default:
		return bad("health_status", fmt.Errorf("%s is not used here (HEALTHY, UNHEALTHY, DRAINING)", h))
	}
	if w := msg.GetLoadBalancingWeight(); w != nil {
		if w.GetValue() == 0 {
			return bad("load_balancing_weight", errors.New("0 is not a weight; at least 1 is"))
		}
		spec.Weight = w.GetValue()
	}
	fields := msg.GetMetadata().GetFilterMetadata()[xds.EndpointMetadata].GetFields()
	spec.Pod = fields[xds.EndpointPod].GetStringValue()
	spec.UID = fields[xds.EndpointUID].GetStringValue()
	spec.Node = fields[xds.EndpointNode].GetStringValue()
	spec.Zone = fields[xds.EndpointZone].GetStringValue()
	return spec, nil
}

// connectable refuses addresses that mean something else in this pod than they
// did where they were written.
func connectable(a netip.AddrPort) error {
	ip := a.Addr().Unmap()
	switch {
	case a.Port() == 0:
		return errors.New("port 0 is not a port to connect to")
	case ip.Zone() != "":
		return fmt.Errorf("%s has a zone, which means nothing on another host", a)
	case ip.IsUnspecified(), ip.IsMulticast():
		return fmt.Errorf("%s cannot be connected to", a)
	}
	return nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
