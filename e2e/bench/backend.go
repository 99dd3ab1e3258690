// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// rawCodec hands message bytes through, so that the backends spend nothing on protobuf.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

// backend is one grpc-go server that echoes each message and counts the RPCs that it served.
type backend struct {
	addr   string
	served atomic.Uint64
	server *grpc.Server
}

type backendSet []*backend

func startBackends(n int) (backendSet, error) {
	var set backendSet
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			set.stop()
			return nil, fmt.Errorf("backend: %w", err)
		}
		b := &backend{addr: l.Addr().String()}
		b.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(b.echo),
			grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20))
		go b.server.Serve(l) //nolint:errcheck // ends with stop
		set = append(set, b)
	}
	return set, nil
}

func (b *backend) echo(_ any, stream grpc.ServerStream) error {
	var msg []byte
	if err := stream.RecvMsg(&msg); err != nil {
		return err
	}
	b.served.Add(1)
	return stream.SendMsg(&msg)
}

func (s backendSet) addrs() []string {
	var a []string
	for _, b := range s {
		a = append(a, b.addr)
	}
	return a
}

func (s backendSet) served() (n uint64) {
	for _, b := range s {
		n += b.served.Load()
	}
	return n
}

func (s backendSet) stop() {
	for _, b := range s {
		b.server.Stop()
	}
}
