// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package router

import (
	"net/netip"
	"strings"
)

// maxName bounds a DNS name: RFC 1035 section 3.1 limits it to 255 octets on
// the wire, which is 253 in text.
const maxName = 253

// maxKey is a name, a colon and five digits.
const maxKey = maxName + 1 + 5

// target is a parsed :authority.
type target struct {
	kind targetKind
	addr netip.AddrPort // literal
	n    int            // name: length of the key in buf
	buf  [maxKey]byte   // name: the normalised key, "host:port"
}

type targetKind uint8

const (
	garbage targetKind = iota // names nothing that a cluster can have
	literal                   // an IP address
	name                      // a DNS name
)

// key is the name as bytes; string(t.key()) in a map index does not allocate.
func (t *target) key() []byte { return t.buf[:t.n] }

// parse reads an :authority. port is used where it has none; zero means that
// there is none to use.
//
// The value is text from the application: everything that is not a DNS name or
// an IP address with a valid port is garbage, not an error, because the
// original destination usually decides alone.
func (t *target) parse(authority string, port uint16) {
	t.kind = garbage
	host, portText, ok := split(authority)
	if !ok {
		return
	}
	if portText != "" {
		if port, ok = parsePort(portText); !ok {
			return
		}
	}
	if port == 0 {
		return
	}
	if host[0] == '[' {
		if addr, err := netip.ParseAddr(host[1 : len(host)-1]); err == nil && addr.Is6() && addr.Zone() == "" {
			t.kind, t.addr = literal, netip.AddrPortFrom(addr.Unmap(), port)
		}
		return
	}
	host = strings.TrimSuffix(host, ".")
	if !t.setHost(host) {
		return
	}
	// A name whose last label is a number is an IPv4 address or nothing:
	// https://url.spec.whatwg.org/#ends-in-a-number-checker
	if digits(host[strings.LastIndexByte(host, '.')+1:]) {
		if addr, err := netip.ParseAddr(host); err == nil {
			t.kind, t.addr = literal, netip.AddrPortFrom(addr, port)
		}
		return
	}
	t.kind = name
	t.appendPort(port)
}

// split cuts host and port apart. The host keeps its brackets and is not empty.
//
// RFC 9113 section 8.3.1: ":authority" MUST NOT include the deprecated userinfo
// subcomponent for "http" or "https" schemed URIs. An '@' is therefore garbage,
// as is any second colon outside of brackets.
func split(authority string) (host, port string, ok bool) {
	if authority == "" {
		return "", "", false
	}
	end := 0
	if authority[0] == '[' {
		end = strings.IndexByte(authority, ']') + 1
	} else {
		end = strings.IndexByte(authority, ':')
		if end < 0 {
			end = len(authority)
		}
	}
	if end <= 0 {
		return "", "", false
	}
	host, rest := authority[:end], authority[end:]
	switch {
	case rest == "":
		return host, "", true
	case rest[0] != ':':
		return "", "", false
	}
	// RFC 3986 section 3.2.3: the port may be empty after the colon, and is
	// then the default one.
	return host, rest[1:], true
}

// setHost copies a DNS name in lower case and reports whether it is one.
// RFC 1123 section 2.1: labels of letters, digits and hyphens, 63 at most. The
// names of Services and pods are all of that form, so an underscore need not
// be asked about.
func (t *target) setHost(host string) bool {
	if host == "" || len(host) > maxName {
		return false
	}
	label := 0
	for i := range len(host) {
		c := host[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			label++
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
			label++
		case c == '-' && label > 0:
			label++
		case c == '.' && label > 0 && host[i-1] != '-':
			label = 0
		default:
			return false
		}
		if label > 63 {
			return false
		}
		t.buf[i] = c
	}
	t.n = len(host)
	last := host[len(host)-1]
	return last != '.' && last != '-'
}

func (t *target) appendPort(port uint16) {
	t.buf[t.n] = ':'
	t.n++
	div := uint16(10000)
	for div > 1 && port/div == 0 {
		div /= 10
	}
	for ; div > 0; div /= 10 {
		t.buf[t.n] = '0' + byte(port/div%10)
		t.n++
	}
}

func parsePort(s string) (uint16, bool) {
	if len(s) > 5 || !digits(s) {
		return 0, false
	}
	v := 0
	for i := range len(s) {
		v = v*10 + int(s[i]-'0')
	}
	return uint16(v), 0 < v && v <= 65535
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
