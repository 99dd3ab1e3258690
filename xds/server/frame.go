// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that ours wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"evenkeel.dev/xds/snapshot"
)

// frame is an encoded DeltaDiscoveryResponse. It is immutable and may be sent
// on any number of streams.
type frame struct {
	typeURL string
	nonce   string
	wire    []byte
	names   int // resources in it, removed ones too
}

// nonces gives each response that is encoded its own number. A response that is
// shared by many streams has the same nonce on each: a nonce only has to tell
// the responses of one stream from each other.
type nonces struct{ last atomic.Uint64 }

func (n *nonces) next() string { return strconv.FormatUint(n.last.Add(1), 36) }

// Field numbers of envoy.service.discovery.v3.DeltaDiscoveryResponse. Its
// resources are already encoded, so the message is put together by hand; a test
// decodes it with the generated type.
const (
	fieldResources        = 2
	fieldTypeURL          = 4
	fieldNonce            = 5
	fieldRemovedResources = 6
)

// encode makes as many responses as the limit on their size wants, at least one.
func encode(n *nonces, typeURL string, limit int, resources []*snapshot.Resource, removed []string) []*frame {
	var frames []*frame
	f := startFrame(n, typeURL)
	room := func(size int) {
		if f.names > 0 && len(f.wire)+size > limit {
			frames = append(frames, f)
			f = startFrame(n, typeURL)
		}
		f.names++
	}
	for _, name := range removed {
		room(len(name) + 8)
		f.wire = protowire.AppendTag(f.wire, fieldRemovedResources, protowire.BytesType)
		f.wire = protowire.AppendString(f.wire, name)
	}
	for _, r := range resources {
		room(len(r.Wire) + 8)
		f.wire = protowire.AppendTag(f.wire, fieldResources, protowire.BytesType)
		f.wire = protowire.AppendBytes(f.wire, r.Wire)
	}
	return append(frames, f)
}

func startFrame(n *nonces, typeURL string) *frame {
	f := &frame{typeURL: typeURL, nonce: n.next()}
	f.wire = protowire.AppendTag(f.wire, fieldTypeURL, protowire.BytesType)
	f.wire = protowire.AppendString(f.wire, typeURL)
	f.wire = protowire.AppendTag(f.wire, fieldNonce, protowire.BytesType)
	f.wire = protowire.AppendString(f.wire, f.nonce)
	return f
}

// codec sends frames as they are and leaves every other message to grpc's own.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal returns the shared bytes: grpc writes them to the connection's buffer
// and never into them.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.wire)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Name is grpc's own, so that the content type is the ordinary one.
func (codec) Name() string { return "proto" }
