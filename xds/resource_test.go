// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestParseDestinationName(t *testing.T) {
	for in, want := range map[string]DestinationName{
		"address/10.96.3.4:50051":           {Addr: netip.MustParseAddrPort("10.96.3.4:50051")},
		"address/[fd00::4]:50051":           {Addr: netip.MustParseAddrPort("[fd00::4]:50051")},
		"name/shop/pricing:50051":           {Namespace: "shop", Host: "pricing", Port: 50051},
		"name/shop/pricing.shop.svc:80":     {Namespace: "shop", Host: "pricing.shop.svc", Port: 80},
		"name/shop/web-0.web.shop:1":        {Namespace: "shop", Host: "web-0.web.shop", Port: 1},
		"name/shop/10.1.2.3:50051":          {Namespace: "shop", Host: "10.1.2.3", Port: 50051},
		"name/shop/[fd00::7]:50051":         {Namespace: "shop", Host: "fd00::7", Port: 50051},
		"name/shop/my_host.example.com:443": {Namespace: "shop", Host: "my_host.example.com", Port: 443},
	} {
		got, err := ParseDestinationName(in)
		if err != nil || got != want {
			t.Errorf("ParseDestinationName(%q) = %+v, %v; want %+v", in, got, err, want)
			continue
		}
		if got.String() != in {
			t.Errorf("ParseDestinationName(%q).String() = %q", in, got.String())
		}
	}
}

// Each error must name what is wrong, since it is all that an operator sees.
func TestParseDestinationNameErrors(t *testing.T) {
	for in, part := range map[string]string{
		"":                                "starts with",
		"pricing.shop:50051":              "starts with",
		"address/":                        "<ip>:<port>",
		"address/10.96.3.4":               "<ip>:<port>",
		"address/10.96.3.4:0":             "port 0",
		"address/10.96.3.4:050":           "canonical",
		"address/[::ffff:10.96.3.4]:80":   `write "10.96.3.4:80"`,
		"address/[fe80::1%eth0]:80":       "zone",
		"address/[FD00::4]:80":            `write "[fd00::4]:80"`,
		"name/shop":                       "want name/",
		"name//pricing:80":                "namespace",
		"name/Shop/pricing:80":            `'S'`,
		"name/a.b/pricing:80":             `'.'`,
		"name/shop/pricing":               "no port",
		"name/shop/pricing:":              "port",
		"name/shop/pricing:+80":           "1 to 65535",
		"name/shop/pricing:080":           "1 to 65535",
		"name/shop/pricing:65536":         "1 to 65535",
		"name/shop/Pricing:80":            `'P'`,
		"name/shop/pricing.shop.:80":      "trailing dot",
		"name/shop/a..b:80":               "empty name",
		"name/shop/:80":                   "empty name",
		"name/shop/fd00::7:80":            `write "[fd00::7]:80"`,
		"name/shop/[10.1.2.3]:80":         `write "10.1.2.3:80"`,
		"name/shop/x/y:80":                `'/'`,
		"name/shop/a\x00b:80":             `\x00`,
		"name/shop/" + long(64) + ":80":   "64 characters",
		"name/" + long(64) + "/a:80":      "64 characters",
		"name/shop/" + hostOf(254) + ":8": "254 characters",
	} {
		_, err := ParseDestinationName(in)
		if err == nil || !strings.Contains(err.Error(), part) || !errors.Is(err, ErrName) {
			t.Errorf("ParseDestinationName(%q): %v; want one that says %q", in, err, part)
		}
	}
}

func TestParseEndpointResource(t *testing.T) {
	svc := Service{"shop", "pricing", 50051}
	for in, want := range map[string]EndpointResource{
		"endpoints/shop/pricing:50051/*":                {Service: svc},
		"endpoints/shop/pricing:50051/10.244.1.7:50051": {svc, netip.MustParseAddrPort("10.244.1.7:50051")},
		"endpoints/shop/pricing:50051/[fd00::7]:8080":   {svc, netip.MustParseAddrPort("[fd00::7]:8080")},
	} {
		got, err := ParseEndpointResource(in)
		if err != nil || got != want || got.String() != in {
			t.Errorf("ParseEndpointResource(%q) = %+v, %v (%q); want %+v", in, got, err, got, want)
		}
	}
	for in, part := range map[string]string{
		"endpoints":                              "starts with",
		"endpoints/shop":                         "want endpoints/",
		"endpoints/shop/*":                       "want <namespace>",
		"endpoints/shop/pricing/*":               "no port",
		"endpoints/shop/pricing:0/*":             "1 to 65535",
		"endpoints/shop/-pricing:1/*":            "start or end",
		"endpoints/shop/pricing:1/**":            "<ip>:<port>",
		"endpoints/shop/pricing:1/10.0.0.1":      "<ip>:<port>",
		"endpoints/shop/pricing:1/010.0.0.1:8":   "<ip>:<port>",
		"endpoints/shop/pricing:1/x/10.0.0.1:80": "port",
	} {
		_, err := ParseEndpointResource(in)
		if err == nil || !strings.Contains(err.Error(), part) || !errors.Is(err, ErrName) {
			t.Errorf("ParseEndpointResource(%q): %v; want one that says %q", in, err, part)
		}
	}
}

func TestNameErrorIsShort(t *testing.T) {
	_, err := ParseDestinationName("name/shop/" + strings.Repeat("x", 1<<20) + ":1")
	if err == nil || len(err.Error()) > 1000 {
		t.Fatalf("an error of %d bytes", len(err.Error()))
	}
}

func FuzzParseDestinationName(f *testing.F) {
	for _, s := range []string{"address/10.96.3.4:50051", "address/[fd00::4]:1", "name/a/b.c:80", "name/a/[::1]:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseDestinationName(s)
		if err != nil {
			return
		}
		if n.String() != s {
			t.Fatalf("%q was read but is written %q", s, n.String())
		}
		if (n.Host == "") == (n.Addr == netip.AddrPort{}) {
			t.Fatalf("%q: want an address or a host, got %+v", s, n)
		}
	})
}

func FuzzParseEndpointResource(f *testing.F) {
	f.Add("endpoints/shop/pricing:50051/*")
	f.Add("endpoints/shop/pricing:50051/[fd00::7]:8080")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseEndpointResource(s); err == nil && r.String() != s {
			t.Fatalf("%q was read but is written %q", s, r.String())
		}
	})
}

func long(n int) string { return strings.Repeat("a", n) }

func hostOf(n int) string {
	s := strings.Repeat(strings.Repeat("a", 49)+".", n/50+1)
	return s[:n-1] + "a"
}
