// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"evenkeel.dev/xds"
)

// maxResponse bounds one response of the control plane. A list of 5,000
// endpoints is about 1.2 MiB.
const maxResponse = 16 << 20

// event is what an attempt tells Run's goroutine: opened, then responses. After
// the last one the channel is closed and attempt.err says why.
type event struct {
	opened   bool
	response *discoveryv3.DeltaDiscoveryResponse
}

// attempt is one connection with one stream, and the goroutines that block on
// it so that Run's does not.
type attempt struct {
	events   chan event
	requests chan *discoveryv3.DeltaDiscoveryRequest
	cancel   context.CancelCauseFunc
	done     sync.WaitGroup
	err      error // set before events is closed
}

// connect starts an attempt. Each has a connection of its own: the name is
// resolved anew, CA and token are read anew, and another replica may be met.
func (c *Client) connect(ctx context.Context) *attempt {
	ctx, cancel := context.WithCancelCause(ctx)
	at := &attempt{
		events:   make(chan event),
		requests: make(chan *discoveryv3.DeltaDiscoveryRequest),
		cancel:   cancel,
	}
	at.done.Go(func() {
		at.err = at.run(ctx, &c.cfg)
		if cause := context.Cause(ctx); cause != nil {
			at.err = cause
		}
		close(at.events)
	})
	return at
}

// fail ends the attempt for a reason of our own: its events end with it.
func (at *attempt) fail(cause error) { at.cancel(cause) }

// stop ends the attempt and waits for its goroutines.
func (at *attempt) stop() {
	at.cancel(nil)
	at.done.Wait()
}

// emit hands an event over unless nobody wants it any more.
func (at *attempt) emit(ctx context.Context, ev event) bool {
	select {
	case at.events <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

// run is the life of one stream. Its error is why it ended.
func (at *attempt) run(ctx context.Context, cfg *Config) (err error) {
	conn, err := dial(cfg, cfg.Target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	header, err := authorization(cfg)
	if err != nil {
		return err
	}
	// The stream must end before conn is closed and before the sender is waited for.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).
		DeltaAggregatedResources(metadata.NewOutgoingContext(ctx, header))
	if err != nil {
		return fmt.Errorf("open the stream: %w", err)
	}
	if !at.emit(ctx, event{opened: true}) {
		return ctx.Err()
	}
	at.done.Go(func() {
		for {
			select {
			case req := <-at.requests:
				// The reason of a failed Send is what Recv returns.
				if stream.Send(req) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		res, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the control plane ended the stream")
		case err != nil:
			return err
		case !at.emit(ctx, event{response: res}):
			return ctx.Err()
		}
	}
}

// dial prepares a connection; it is made when the stream is opened.
func dial(cfg *Config, target string) (*grpc.ClientConn, error) {
	network, address := "tcp", target
	creds := newTLS(cfg)
	if path, ok := cfg.socket(); ok {
		network, address, creds = "unix", path, insecure.NewCredentials()
	}
	dialer := net.Dialer{Timeout: cfg.ConnectTimeout}
	dialer.SetMultipathTCP(false)
	conn, err := grpc.NewClient("passthrough:///evenkeel-xds",
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		}),
		// One attempt is one connection: the waiting is Run's.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: cfg.ConnectTimeout}),
		// A control plane that vanishes or hangs is noticed by pings, which ours
		// allows; grpc sets TCP_USER_TIMEOUT to the same.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(8<<10),
		grpc.WithWriteBufferSize(8<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	return conn, nil
}

// authorization reads the token, which the kubelet renews in place.
func authorization(cfg *Config) (metadata.MD, error) {
	if cfg.TokenFile == "" {
		return nil, nil
	}
	token, err := os.ReadFile(cfg.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	text := strings.TrimSpace(string(token))
	if text == "" {
		return nil, fmt.Errorf("read the token: %s is empty", cfg.TokenFile)
	}
	return metadata.Pairs(xds.MetadataKeyAuth, xds.AuthSchemeBearer+text), nil
}
