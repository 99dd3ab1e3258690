// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import "encoding/binary"

// framing follows gRPC's length-prefixed messages through a body:
//
//	Length-Prefixed-Message → Compressed-Flag (1 byte) Message-Length (4 bytes, big endian) Message
//
// It buffers nothing. The relay must know whether a message has been sent in
// half, and the metrics count the bytes of messages.
type framing struct {
	left  uint64 // bytes of the current message still to come
	head  uint8  // bytes of the prefix seen, 0 to 4
	size  uint32 // the length, as far as it was seen
	bytes uint64 // of messages, without prefixes
}

func (f *framing) feed(p []byte) {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, uint64(len(p)))
			f.left -= n
			p = p[n:]
			continue
		}
		if f.head == 0 && len(p) >= 5 {
			f.begin(binary.BigEndian.Uint32(p[1:]))
			p = p[5:]
			continue
		}
		if f.head > 0 {
			f.size = f.size<<8 | uint32(p[0])
		}
		p = p[1:]
		if f.head++; f.head == 5 {
			f.begin(f.size)
			f.head, f.size = 0, 0
		}
	}
}

func (f *framing) begin(n uint32) {
	f.left = uint64(n)
	f.bytes += uint64(n)
}

// whole reports whether the body may end here.
func (f *framing) whole() bool { return f.left == 0 && f.head == 0 }
