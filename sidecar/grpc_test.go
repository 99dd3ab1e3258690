// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestUnary(t *testing.T) {
	b := newBackend(t, "a")
	r := newRig(t).serve(b.addr)
	c := r.client()
	for range 100 {
		out, err := c.UnaryCall(withTimeout(t, 10*time.Second), &testpb.SimpleRequest{ResponseSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		if out.GetServerId() != "a" || len(out.GetPayload().GetBody()) != 10 {
			t.Fatalf("got %v", out)
		}
	}
	r.quiet()
	if n := b.calls.Load(); n != 100 {
		t.Errorf("the backend saw %d calls, want 100", n)
	}
	svc := r.snapshot().Services[0]
	if e := svc.Endpoints[0]; e.Picked != 100 || e.RPCs["OK"] != 100 || e.Connectivity != "connected" {
		t.Errorf("snapshot of the endpoint: %+v", e)
	}
}

func TestEmptyMessagesAndLargeOnes(t *testing.T) {
	b := newBackend(t, "a")
	c := newRig(t).serve(b.addr).client()
	if _, err := c.EmptyCall(withTimeout(t, 10*time.Second), &testpb.Empty{}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 16383, 16384, 65535, 65536, 300_000, 5 << 20} {
		in := &testpb.SimpleRequest{ResponseSize: int32(size), Payload: &testpb.Payload{Body: make([]byte, size)}}
		out, err := c.UnaryCall(withTimeout(t, 30*time.Second), in)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if len(out.GetPayload().GetBody()) != size {
			t.Fatalf("%d bytes: got %d", size, len(out.GetPayload().GetBody()))
		}
	}
}

func TestStreaming(t *testing.T) {
	b := newBackend(t, "a")
	r := newRig(t).serve(b.addr)
	c := r.client()
	sizes := []int32{31415, 9, 2653, 58979, 0, 1 << 20}
	var params []*testpb.ResponseParameters
	var sum int32
	for _, s := range sizes {
		params = append(params, &testpb.ResponseParameters{Size: s})
		sum += s
	}

	t.Run("server", func(t *testing.T) {
		s, err := c.StreamingOutputCall(withTimeout(t, 20*time.Second), &testpb.StreamingOutputCallRequest{ResponseParameters: params})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range sizes {
			m, err := s.Recv()
			if err != nil || len(m.GetPayload().GetBody()) != int(want) {
				t.Fatalf("got %d bytes and %v, want %d", len(m.GetPayload().GetBody()), err, want)
			}
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("got %v, want EOF", err)
		}
	})
	t.Run("client", func(t *testing.T) {
		s, err := c.StreamingInputCall(withTimeout(t, 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range sizes {
			if err := s.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := s.CloseAndRecv()
		if err != nil || out.GetAggregatedPayloadSize() != sum {
			t.Fatalf("got %v and %v, want %d", out, err, sum)
		}
	})
	t.Run("bidi", func(t *testing.T) {
		s, err := c.FullDuplexCall(withTimeout(t, 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range sizes {
			in := &testpb.StreamingOutputCallRequest{
				ResponseParameters: params[i : i+1], Payload: &testpb.Payload{Body: make([]byte, want)},
			}
			if err := s.Send(in); err != nil {
				t.Fatal(err)
			}
			m, err := s.Recv()
			if err != nil || len(m.GetPayload().GetBody()) != int(want) {
				t.Fatalf("got %d bytes and %v, want %d", len(m.GetPayload().GetBody()), err, want)
			}
		}
		_ = s.CloseSend()
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("got %v, want EOF", err)
		}
	})
	t.Run("empty bidi", func(t *testing.T) {
		s, err := c.FullDuplexCall(withTimeout(t, 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.CloseSend()
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("got %v, want EOF", err)
		}
	})
	r.quiet()
}

func TestMetadataAndStatus(t *testing.T) {
	b := newBackend(t, "a")
	c := newRig(t).serve(b.addr).client()
	blob := string([]byte{0, 1, 0xfe, 0xff})
	ctx := metadata.AppendToOutgoingContext(withTimeout(t, 10*time.Second), "x-echo", "a value", "x-echo-bin", blob)
	var header, trailer metadata.MD
	_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		t.Fatal(err)
	}
	if v := header.Get("x-echo"); len(v) != 1 || v[0] != "a value" {
		t.Errorf("header: %v", header)
	}
	if v := trailer.Get("x-echo-bin"); len(v) != 1 || v[0] != blob {
		t.Errorf("trailer: %v", trailer)
	}

	const msg = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈 and 100%\t\n"
	_, err = c.UnaryCall(withTimeout(t, 10*time.Second), &testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 2, Message: msg}})
	if status.Code(err) != codes.Unknown || status.Convert(err).Message() != msg {
		t.Errorf("got %v", err)
	}
	if _, err := testpb.NewUnimplementedServiceClient(newRig(t).serve(b.addr).dial()).UnimplementedCall(withTimeout(t, 10*time.Second), &testpb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

func TestLargeHeaders(t *testing.T) {
	b := newBackend(t, "a", grpc.MaxHeaderListSize(1<<20))
	c := newRig(t).serve(b.addr).client(grpc.WithMaxHeaderListSize(1 << 20))
	big := strings.Repeat("0123456789abcdef", 40_000/16) // several CONTINUATIONs
	ctx := metadata.AppendToOutgoingContext(withTimeout(t, 10*time.Second), "x-echo", big)
	var header metadata.MD
	if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if v := header.Get("x-echo"); len(v) != 1 || v[0] != big {
		t.Errorf("the header came back with %d bytes", len(strings.Join(v, "")))
	}
}

func TestCancelReachesTheServer(t *testing.T) {
	b := newBackend(t, "a")
	b.block = make(chan struct{})
	r := newRig(t).serve(b.addr)
	c := r.client()
	ctx, cancel := context.WithCancel(withTimeout(t, 10*time.Second))
	got := make(chan error, 1)
	go func() { _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); got <- err }()
	eventually(t, "the call is at the server", func() bool { return b.calls.Load() == 1 })
	cancel()
	if err := <-got; status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	r.quiet()
	if e := r.snapshot().Services[0].Endpoints[0]; e.RPCs["CANCELLED"] != 1 {
		t.Errorf("counted as %v", e.RPCs)
	}
	b.srv.GracefulStop() // returns only when the handler has ended, which the cancel alone ends
}

func TestCancelAfterFirstResponse(t *testing.T) {
	b := newBackend(t, "a")
	r := newRig(t).serve(b.addr)
	ctx, cancel := context.WithCancel(withTimeout(t, 10*time.Second))
	s, err := r.client().FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 31415}}})
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	r.quiet()
}

func TestDeadlineOnSleepingServer(t *testing.T) {
	b := newBackend(t, "a")
	b.block = make(chan struct{})
	r := newRig(t).serve(b.addr)
	_, err := r.client().UnaryCall(withTimeout(t, 50*time.Millisecond), &testpb.SimpleRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	r.quiet()
}

func TestParallelStreamsOfAllKinds(t *testing.T) {
	var addrs []string
	for _, n := range []string{"a", "b", "c"} {
		addrs = append(addrs, newBackend(t, n).addr)
	}
	r := newRig(t).serve(addrs...)
	c := r.client()
	body := bytes.Repeat([]byte("x"), 20_000)
	errs := make(chan error)
	const workers, each = 30, 30
	for range workers {
		go func() {
			for range each {
				if err := roundTrips(withTimeout(t, 60*time.Second), c, body); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	r.quiet()
}

func roundTrips(ctx context.Context, c testpb.TestServiceClient, body []byte) error {
	if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{ResponseSize: 20_000, Payload: &testpb.Payload{Body: body}}); err != nil {
		return err
	}
	s, err := c.FullDuplexCall(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: 20_000}}}); err != nil {
			return err
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
