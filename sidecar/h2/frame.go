// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	frameHeaderLen  = 9
	initialWindow   = 65535 // RFC 9113 section 6.9.2
	maxWindow       = 1<<31 - 1
	minMaxFrameSize = 1 << 14 // RFC 9113 section 4.2
	maxMaxFrameSize = 1<<24 - 1
	maxStreamID     = 1<<31 - 1
)

// frameHeader is RFC 9113 section 4.1's. http2.Framer would read it too, but
// from an io.Reader, into buffers of its own and one frame at a time.
type frameHeader struct {
	length int
	typ    http2.FrameType
	flags  http2.Flags
	id     uint32
}

func parseFrameHeader(b []byte) frameHeader {
	_ = b[8]
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		typ:    http2.FrameType(b[3]),
		flags:  http2.Flags(b[4]),
		id:     binary.BigEndian.Uint32(b[5:]) & maxStreamID,
	}
}

func (f frameHeader) has(flag http2.Flags) bool { return f.flags&flag != 0 }

func appendFrameHeader(b []byte, length int, typ http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(typ), byte(flags),
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// unpad strips the Pad Length field and the padding (RFC 9113 section 6.1) off
// the payload of a HEADERS frame.
func unpad(f frameHeader, p []byte) ([]byte, error) {
	if !f.has(http2.FlagHeadersPadded) {
		return p, nil
	}
	if len(p) == 0 {
		return nil, connError(http2.ErrCodeFrameSize, "padded frame without a pad length")
	}
	pad := int(p[0])
	if pad >= len(p) {
		// "If the length of the padding is the length of the frame payload or
		// greater, the recipient MUST treat this as a connection error of type
		// PROTOCOL_ERROR."
		return nil, connError(http2.ErrCodeProtocol, "padding is as long as the frame")
	}
	return p[1 : len(p)-pad], nil
}
