// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package echo is the service of the test programs. Its messages are JSON in
// bytes, so that every language can speak it without generated code: a client
// registers the methods with identity serializers.
package echo

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that we wrap
	"google.golang.org/grpc/mem"
)

// ServiceName and the methods' full names.
const (
	ServiceName  = "evenkeel.e2e.Echo"
	Unary        = "/" + ServiceName + "/Unary"
	ServerStream = "/" + ServiceName + "/ServerStream"
	ClientStream = "/" + ServiceName + "/ClientStream"
	Bidi         = "/" + ServiceName + "/Bidi"
)

// Request is what a client asks for.
type Request struct {
	// Payload is ballast.
	Payload string `json:"payload,omitempty"`
	// ReplyBytes is how much ballast the answer has.
	ReplyBytes int `json:"reply_bytes,omitempty"`
	// DelayMS is how long the server waits before each answer.
	DelayMS int `json:"delay_ms,omitempty"`
	// Messages is how many answers a server stream has. Zero: 1.
	Messages int `json:"messages,omitempty"`
	// Status is the gRPC status code to end with.
	Status uint32 `json:"status,omitempty"`
}

// Delay is DelayMS.
func (r *Request) Delay() time.Duration { return time.Duration(r.DelayMS) * time.Millisecond }

// Reply is what a server says.
type Reply struct {
	// Server is its name: the pod's.
	Server string `json:"server"`
	// Peer is the client's address as the server sees it.
	Peer string `json:"peer"`
	// Authority is the name that the client asked for.
	Authority string `json:"authority"`
	// Received counts the messages of the stream so far.
	Received int `json:"received"`
	// Payload is ballast.
	Payload string `json:"payload,omitempty"`
}

// Codec passes *[]byte through as it is, and everything else (the health
// service's messages) to the usual one.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ proto encoding.CodecV2 }

func (c codec) Name() string { return c.proto.Name() }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
	}
	return c.proto.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
		return nil
	}
	return c.proto.Unmarshal(data, v)
}

// Encode makes the message of v.
func Encode(v any) (*[]byte, error) {
	b, err := json.Marshal(v)
	return &b, err
}

// Decode reads a message into v.
func Decode(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("echo: message: %w", err)
	}
	return nil
}

// StreamDesc describes a streaming method.
func StreamDesc(method string) *grpc.StreamDesc {
	return &grpc.StreamDesc{ServerStreams: method != ClientStream, ClientStreams: method != ServerStream}
}
