// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strconv"
	"time"
)

// parseTimeout reads grpc-timeout:
//
//	Timeout → "grpc-timeout" TimeoutValue TimeoutUnit
//	TimeoutValue → {positive integer as ASCII string of at most 8 digits}
//	TimeoutUnit → "H" / "M" / "S" / "m" / "u" / "n"
//
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
//
// A malformed one is the server's to judge: it is passed on and sets no deadline here.
func parseTimeout(v string) (time.Duration, bool) {
	if len(v) < 2 || len(v) > 9 {
		return 0, false
	}
	var n int64
	for i := range len(v) - 1 {
		c := v[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	var unit time.Duration
	switch v[len(v)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	// 99,999,999 H does not fit; beyond a century nobody waits.
	if n > int64(100*365*24*time.Hour/unit) {
		return 100 * 365 * 24 * time.Hour, true
	}
	return time.Duration(n) * unit, true
}

// formatTimeout writes grpc-timeout in the finest unit of at most 8 digits.
// It rounds up: a server must not give up before the client does.
func formatTimeout(d time.Duration) string {
	if d <= 0 {
		return "0n"
	}
	for _, u := range [...]struct {
		unit time.Duration
		name string
	}{
		{time.Nanosecond, "n"},
		{time.Microsecond, "u"},
		{time.Millisecond, "m"},
		{time.Second, "S"},
		{time.Minute, "M"},
		{time.Hour, "H"},
	} {
		if n := (d-1)/u.unit + 1; n <= 99_999_999 {
			return strconv.FormatInt(int64(n), 10) + u.name
		}
	}
	return "99999999H"
}
