// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// code is a gRPC status code: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
type code uint8

// The codes that are made here, and the bounds.
const (
	codeOK                code = 0
	codeCancelled         code = 1
	codeUnknown           code = 2
	codeDeadlineExceeded  code = 4
	codeResourceExhausted code = 8
	codeInternal          code = 13
	codeUnavailable       code = 14
	numCodes                   = 17
)

var codeNames = [numCodes]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
	"ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
	"ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

func (c code) String() string { return codeNames[c] }

// statusIn finds grpc-status. Codes that are not defined count as UNKNOWN, as clients see them.
func statusIn(fields []hpack.HeaderField) (code, bool) {
	for i := range fields {
		if fields[i].Name == "grpc-status" {
			n, err := strconv.ParseUint(fields[i].Value, 10, 8)
			if err != nil || n >= numCodes {
				return codeUnknown, true
			}
			return code(n), true
		}
	}
	return codeUnknown, false
}

// isGRPC: content-type is application/grpc, or that with "+proto", ";charset" and the like.
func isGRPC(contentType string) bool {
	const base = "application/grpc"
	if len(contentType) < len(base) || !strings.EqualFold(contentType[:len(base)], base) {
		return false
	}
	return len(contentType) == len(base) || contentType[len(base)] == '+' || contentType[len(base)] == ';'
}

// percentEncode writes grpc-message:
//
//	Percent-Byte-Unencoded → 1*( %x20-%x24 / %x26-%x7E ) ; space and VCHAR, except %
func percentEncode(s string) string {
	clean := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// maxMessage bounds grpc-message: a longer one would itself be a header list too large for some clients.
const maxMessage = 1024

func trailersOnly(c code, msg string) []hpack.HeaderField {
	return append([]hpack.HeaderField{
		{Name: ":status", Value: "200"},
		{Name: "content-type", Value: "application/grpc"},
	}, trailers(c, msg)...)
}

func trailers(c code, msg string) []hpack.HeaderField {
	if len(msg) > maxMessage {
		msg = msg[:maxMessage]
	}
	return []hpack.HeaderField{
		{Name: "grpc-status", Value: strconv.Itoa(int(c))},
		{Name: "grpc-message", Value: percentEncode(msg)},
	}
}

// httpStatus is for requests that are not gRPC.
func (c code) httpStatus() string {
	switch c {
	case codeDeadlineExceeded:
		return "504"
	case codeResourceExhausted:
		return "429"
	case codeInternal:
		return "502"
	}
	return "503"
}
