// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ClientCommand is the hidden command of the evenkeel binary that is one client.
const ClientCommand = "internal-demo-client"

// maxInFlight bounds the RPCs that a client has open when answers stop to come.
const maxInFlight = 200

// clientResult is what a client says at its end.
type clientResult struct {
	OK         int    `json:"ok"`
	Failed     int    `json:"failed"`
	FirstError string `json:"first_error,omitempty"`
}

// connected is the line that a client writes after its first answer.
const connected = "connected"

// ClientMain is an ordinary grpc-go client: one channel, nothing configured, so pick_first. It writes a line once it is connected,
// calls at a steady rate until its stdin ends, and then writes a clientResult.
func ClientMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(ClientCommand, flag.ContinueOnError)
	flags.SetOutput(stderr)
	target := flags.String("target", "", "gRPC target")
	rate := flags.Int("rate", 100, "RPCs a second")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	channel, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Fprintln(stderr, "demo client:", err)
		return 1
	}
	defer channel.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, stdin) // however it ends, it has ended
	}()
	// A pod whose service is away would wait and try again, too.
	if err := quote(ctx, channel, grpc.WaitForReady(true)); err != nil {
		fmt.Fprintln(stderr, "demo client: no answer to the first RPC:", err)
		return 1
	}
	fmt.Fprintln(stdout, connected)
	if err := json.NewEncoder(stdout).Encode(call(ctx, channel, *rate)); err != nil {
		fmt.Fprintln(stderr, "demo client:", err)
		return 1
	}
	return 0
}

// call makes rate RPCs a second until ctx ends, and waits for those that are open.
func call(ctx context.Context, channel *grpc.ClientConn, rate int) clientResult {
	var (
		mu       sync.Mutex
		result   clientResult
		open     sync.WaitGroup
		inFlight = make(chan struct{}, maxInFlight)
	)
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			open.Wait()
			return result
		case <-ticker.C:
		}
		select {
		case inFlight <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		open.Go(func() {
			err := quote(context.WithoutCancel(ctx), channel)
			<-inFlight
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				result.OK++
				return
			}
			if result.Failed++; result.FirstError == "" {
				result.FirstError = err.Error()
			}
		})
	}
}

func quote(ctx context.Context, channel *grpc.ClientConn, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return channel.Invoke(ctx, quoteMethod, new(emptypb.Empty), new(wrapperspb.StringValue), opts...)
}
