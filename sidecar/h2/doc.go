// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package h2 is HTTP/2 (RFC 9113) and HPACK (RFC 7541) as a relay of gRPC needs
// them, on both ends of a connection, without I/O: bytes and the time go into a
// Session, events and bytes come out of it.
package h2
