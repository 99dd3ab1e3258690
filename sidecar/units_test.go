// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
)

func TestParseTimeout(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"1n": 1, "100u": 100 * time.Microsecond, "5m": 5 * time.Millisecond, "2S": 2 * time.Second,
		"3M": 3 * time.Minute, "4H": 4 * time.Hour, "99999999n": 99999999, "0S": 0,
		"99999999H": 100 * 365 * 24 * time.Hour,
	} {
		if got, ok := parseTimeout(in); !ok || got != want {
			t.Errorf("%q: got %s, %v, want %s", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", " 1S", "1S ", "1x"} {
		if got, ok := parseTimeout(in); ok {
			t.Errorf("%q is no timeout, got %s", in, got)
		}
	}
}

func TestFormatTimeout(t *testing.T) {
	for want, in := range map[string]time.Duration{
		"0n": 0, "1n": 1, "99999999n": 99_999_999, "100000u": 100_000_000, "100001u": 100_000_001,
		"10000000u": 10 * time.Second, "100000m": 100 * time.Second, "86400000m": 24 * time.Hour,
		"31536000S": 365 * 24 * time.Hour,
	} {
		if got := formatTimeout(in); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
	if got := formatTimeout(-time.Second); got != "0n" {
		t.Errorf("a passed deadline: got %q", got)
	}
}

func FuzzTimeout(f *testing.F) {
	f.Add("1S")
	f.Add("99999999H")
	f.Fuzz(func(t *testing.T, in string) {
		d, ok := parseTimeout(in)
		if !ok {
			return
		}
		again, ok := parseTimeout(formatTimeout(d))
		// Rounded up by less than the unit that eight digits leave.
		if !ok || again < d || again-d > d/10_000_000+1 {
			t.Errorf("%q is %s, and comes back as %s, %v", in, d, again, ok)
		}
	})
}

func TestFraming(t *testing.T) {
	body := append(append(message(0), message(300)...), message(7)...)
	for size := 1; size <= len(body); size++ {
		var f framing
		for at := 0; at < len(body); at += size {
			end := min(at+size, len(body))
			f.feed(body[at:end])
			whole := end == 5 || end == 310 || end == len(body)
			if f.whole() != whole {
				t.Fatalf("in pieces of %d, at %d: whole is %v", size, end, f.whole())
			}
		}
		if f.bytes != 307 {
			t.Fatalf("in pieces of %d: %d bytes", size, f.bytes)
		}
	}
}

func TestPercentEncode(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain text ~": "plain text ~", "100%": "100%25", "a\nb": "a%0Ab", "ü": "%C3%BC", "\x7f": "%7F",
	} {
		if got := percentEncode(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if n := len(trailers(codeInternal, strings.Repeat("x", 5000))[1].Value); n != maxMessage {
		t.Errorf("a message of %d bytes", n)
	}
}

func TestIsGRPC(t *testing.T) {
	for in, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=utf-8": true,
		"Application/GRPC": true, "application/grpc-web": false, "application/grpcx": false, "application/json": false, "": false,
	} {
		if isGRPC(in) != want {
			t.Errorf("%q: want %v", in, want)
		}
	}
}

func TestStatusIn(t *testing.T) {
	for in, want := range map[string]code{"0": 0, "16": 16, "17": codeUnknown, "-1": codeUnknown, "x": codeUnknown, "": codeUnknown, "300": codeUnknown} {
		if got, ok := statusIn([]hpack.HeaderField{{Name: "x"}, {Name: "grpc-status", Value: in}}); !ok || got != want {
			t.Errorf("%q: got %s", in, got)
		}
	}
	if _, ok := statusIn(nil); ok {
		t.Error("found a status in nothing")
	}
}

func TestBucket(t *testing.T) {
	for v, want := range map[float64]int{0: 0, 0.00001: 0, 0.000011: 1, 100: len(latencyBounds) - 1, 101: len(latencyBounds)} {
		if got := bucket(v, latencyBounds[:]); got != want {
			t.Errorf("%g: bucket %d, want %d", v, got, want)
		}
	}
}
