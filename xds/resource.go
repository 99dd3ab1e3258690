// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

const (
	addressPrefix   = "address/"
	namePrefix      = "name/"
	endpointsPrefix = "endpoints/"
	collectionEnd   = "/*"
)

// RFC 1035, section 2.3.4: "labels 63 octets or less, names 255 octets or less"
// (on the wire: 253 as text).
const (
	maxLabel = 63
	maxHost  = 253
)

// ErrName is wrapped by every error about a malformed resource name.
var ErrName = errors.New("malformed resource name")

// DestinationName is the parsed name of a DestinationType resource. Exactly one
// of Addr and Host is set.
type DestinationName struct {
	// Addr is the original destination of a connection.
	Addr netip.AddrPort
	// Namespace is the client's own: it completes short host names.
	Namespace string
	// Host is the host of an :authority: a DNS name or an IP literal (IPv6
	// without brackets). Port belongs to it.
	Host string
	Port uint16
}

// AddressName is the resource name of an original destination.
func AddressName(a netip.AddrPort) string {
	return addressPrefix + netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
}

// HostName is the resource name of hostport ("pricing.shop:50051", as in
// :authority, lower case, no trailing dot) as a client in namespace means it.
func HostName(namespace, hostport string) string {
	return namePrefix + namespace + "/" + hostport
}

// String is the inverse of ParseDestinationName.
func (n DestinationName) String() string {
	if n.Host == "" {
		return AddressName(n.Addr)
	}
	return HostName(n.Namespace, joinHostPort(n.Host, n.Port))
}

// ParseDestinationName refuses everything that it would not write itself.
func ParseDestinationName(s string) (DestinationName, error) {
	if rest, ok := strings.CutPrefix(s, addressPrefix); ok {
		a, err := parseAddrPort(rest)
		if err != nil {
			return DestinationName{}, nameError(s, err)
		}
		return DestinationName{Addr: a}, nil
	}
	rest, ok := strings.CutPrefix(s, namePrefix)
	if !ok {
		return DestinationName{}, nameError(s, fmt.Errorf("a destination starts with %q or %q", addressPrefix, namePrefix))
	}
	ns, hostport, ok := strings.Cut(rest, "/")
	if !ok {
		return DestinationName{}, nameError(s, errors.New("want name/<client namespace>/<host>:<port>"))
	}
	if err := checkLabel(ns); err != nil {
		return DestinationName{}, nameError(s, fmt.Errorf("namespace %q: %w", ns, err))
	}
	host, port, err := splitHostPort(hostport)
	if err != nil {
		return DestinationName{}, nameError(s, err)
	}
	return DestinationName{Namespace: ns, Host: host, Port: port}, nil
}

// Service is one port of a Kubernetes Service; its text is "namespace/name:port".
// For a headless Service, Port is the port that is dialled (the target port).
type Service struct {
	Namespace string
	Name      string
	Port      uint16
}

// String is the inverse of ParseService.
func (s Service) String() string {
	return s.Namespace + "/" + s.Name + ":" + strconv.Itoa(int(s.Port))
}

// ParseService reads "namespace/name:port".
func ParseService(s string) (Service, error) {
	ns, rest, ok := strings.Cut(s, "/")
	if !ok {
		return Service{}, nameError(s, errors.New("want <namespace>/<service>:<port>"))
	}
	name, p, ok := strings.Cut(rest, ":")
	if !ok {
		return Service{}, nameError(s, errors.New("no port; want <namespace>/<service>:<port>"))
	}
	if err := checkLabel(ns); err != nil {
		return Service{}, nameError(s, fmt.Errorf("namespace %q: %w", ns, err))
	}
	if err := checkLabel(name); err != nil {
		return Service{}, nameError(s, fmt.Errorf("service %q: %w", name, err))
	}
	port, err := parsePort(p)
	if err != nil {
		return Service{}, nameError(s, err)
	}
	return Service{Namespace: ns, Name: name, Port: port}, nil
}

// EndpointCollection is the name to subscribe to for the endpoints of service
// ("namespace/name:port"). It is also the name of the marker which says that
// the first whole list has been sent.
func EndpointCollection(service string) string {
	return endpointsPrefix + service + collectionEnd
}

// EndpointName is the name of one endpoint of service ("namespace/name:port").
func EndpointName(service string, a netip.AddrPort) string {
	return endpointsPrefix + service + "/" + a.String()
}

// EndpointResource is the parsed name of an EndpointType resource. Addr is the
// zero value for the collection itself.
type EndpointResource struct {
	Service Service
	Addr    netip.AddrPort
}

// Collection reports whether the name is the collection's, not a member's.
func (r EndpointResource) Collection() bool { return !r.Addr.IsValid() }

// String is the inverse of ParseEndpointResource.
func (r EndpointResource) String() string {
	if r.Collection() {
		return EndpointCollection(r.Service.String())
	}
	return EndpointName(r.Service.String(), r.Addr)
}

// ParseEndpointResource refuses everything that it would not write itself.
func ParseEndpointResource(s string) (EndpointResource, error) {
	rest, ok := strings.CutPrefix(s, endpointsPrefix)
	if !ok {
		return EndpointResource{}, nameError(s, fmt.Errorf("an endpoint starts with %q", endpointsPrefix))
	}
	i := strings.LastIndexByte(rest, '/')
	if i < 0 {
		return EndpointResource{}, nameError(s, errors.New("want endpoints/<namespace>/<service>:<port>/* or …/<ip>:<port>"))
	}
	svc, err := ParseService(rest[:i])
	if err != nil {
		return EndpointResource{}, nameError(s, err)
	}
	if rest[i:] == collectionEnd {
		return EndpointResource{Service: svc}, nil
	}
	a, err := parseAddrPort(rest[i+1:])
	if err != nil {
		return EndpointResource{}, nameError(s, err)
	}
	return EndpointResource{Service: svc, Addr: a}, nil
}

func nameError(name string, err error) error {
	if inner, ok := errors.AsType[*malformed](err); ok { // a part that is a name by itself: say the whole one only
		err = inner.reason
	}
	return &malformed{name: name, reason: err}
}

type malformed struct {
	name   string
	reason error
}

func (e *malformed) Error() string {
	return fmt.Sprintf("%s %s: %s", ErrName, quoteShort(e.name), e.reason)
}

func (e *malformed) Unwrap() error { return ErrName }

// quoteShort keeps a hostile name from filling the log.
func quoteShort(s string) string {
	const keep = 300
	if len(s) > keep {
		return strconv.Quote(s[:keep]) + "…"
	}
	return strconv.Quote(s)
}

func parseAddrPort(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("want <ip>:<port>: %w", err)
	case a.Port() == 0:
		return netip.AddrPort{}, errors.New("port 0 is not a port to connect to")
	case a.Addr().Zone() != "":
		return netip.AddrPort{}, errors.New("an address with a zone means nothing on another host")
	}
	if want := netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String(); want != s {
		return netip.AddrPort{}, fmt.Errorf("not canonical: write %q", want)
	}
	return a, nil
}

func parsePort(s string) (uint16, error) {
	p, err := strconv.ParseUint(s, 10, 16)
	if err != nil || p == 0 || s[0] == '0' || s[0] == '+' {
		return 0, fmt.Errorf("port %s: want a number from 1 to 65535", quoteShort(s))
	}
	return uint16(p), nil
}

func joinHostPort(host string, port uint16) string {
	if strings.IndexByte(host, ':') >= 0 {
		return "[" + host + "]:" + strconv.Itoa(int(port))
	}
	return host + ":" + strconv.Itoa(int(port))
}

func splitHostPort(s string) (string, uint16, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, errors.New("no port; want <host>:<port>")
	}
	host := s[:i]
	port, err := parsePort(s[i+1:])
	if err != nil {
		return "", 0, err
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		a, err := parseAddrPort(netip.AddrPortFrom(ip, port).String())
		if err != nil {
			return "", 0, err
		}
		if want := a.String(); want != s {
			return "", 0, fmt.Errorf("not canonical: write %q", want)
		}
		return a.Addr().String(), port, nil
	}
	if err := checkHost(host); err != nil {
		return "", 0, fmt.Errorf("host %s: %w", quoteShort(host), err)
	}
	return host, port, nil
}

// checkHost wants lower-case DNS labels. An underscore is let through: it can
// name nothing in Kubernetes, but is seen in the host names of others, and
// "not known" is the right answer to it rather than "malformed".
func checkHost(host string) error {
	if len(host) > maxHost {
		return fmt.Errorf("%d characters, at most %d make a host name", len(host), maxHost)
	}
	if strings.HasSuffix(host, ".") {
		return errors.New("write it without the trailing dot")
	}
	for label := range strings.SplitSeq(host, ".") {
		if err := checkChars(label, "_-"); err != nil {
			return err
		}
	}
	return nil
}

// checkLabel wants an RFC 1123 label, as Kubernetes does for namespaces and Services.
func checkLabel(s string) error {
	if err := checkChars(s, "-"); err != nil {
		return err
	}
	if s[0] == '-' || s[len(s)-1] == '-' {
		return errors.New("a name may not start or end with '-'")
	}
	return nil
}

func checkChars(s, extra string) error {
	switch {
	case s == "":
		return errors.New("empty name")
	case len(s) > maxLabel:
		return fmt.Errorf("%d characters, at most %d are allowed", len(s), maxLabel)
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte(extra, c) < 0 {
			return fmt.Errorf("character %q is not allowed (lower case letters, digits, %q)", c, extra)
		}
	}
	return nil
}
