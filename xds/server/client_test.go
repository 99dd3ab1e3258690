// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"evenkeel.dev/xds"
	"evenkeel.dev/xds/api"
)

// world is a Server that really serves, in memory.
type world struct {
	t   *testing.T
	srv *Server
	lis *bufconn.Listener
	log *logBuffer
}

func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	w := &world{t: t, log: &logBuffer{}, lis: bufconn.Listen(1 << 16)}
	cfg := Config{Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.srv = srv
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, w.lis, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return w
}

func dialBuf(t testing.TB, lis *bufconn.Listener, creds credentials.TransportCredentials, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	cc, err := grpc.NewClient("passthrough:///buf", append(opts, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	return cc
}

// client is a sidecar's side of a stream: a real one that keeps what it was told.
type client struct {
	t      testing.TB
	node   *corepb.Node
	stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel context.CancelFunc

	resources map[string]*discoverypb.Resource // by name, both types
	removed   []string                         // in order
	responses int
	noAck     bool
}

func (w *world) connect(pod string) *client {
	w.t.Helper()
	return connect(w.t, w.lis, xds.Node{Namespace: "shop", Pod: pod, UID: "uid-" + pod, Node: "node1"}, "")
}

func connect(t testing.TB, lis *bufconn.Listener, n xds.Node, token string, opts ...grpc.DialOption) *client {
	t.Helper()
	return connectOver(t, dialBuf(t, lis, nil, opts...), n, token)
}

func connectOver(t testing.TB, cc *grpc.ClientConn, n xds.Node, token string) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); cc.Close() })
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, xds.MetadataKeyAuth, xds.AuthSchemeBearer+token)
	}
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, node: nodeProto(n), stream: stream, cancel: cancel, resources: map[string]*discoverypb.Resource{}}
}

func nodeProto(n xds.Node) *corepb.Node {
	fields := map[string]*structpb.Value{}
	for k, v := range n.Metadata() {
		fields[k] = structpb.NewStringValue(v)
	}
	return &corepb.Node{Id: n.ID(), Metadata: &structpb.Struct{Fields: fields}}
}

func (c *client) send(req *discoverypb.DeltaDiscoveryRequest) {
	c.t.Helper()
	req.Node, c.node = c.node, nil
	if err := c.stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *client) subscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

// recv takes one response in and acknowledges it.
func (c *client) recv() (*discoverypb.DeltaDiscoveryResponse, error) {
	r, err := c.stream.Recv()
	if err != nil {
		return nil, err
	}
	c.responses++
	for _, n := range r.GetRemovedResources() {
		delete(c.resources, n)
		c.removed = append(c.removed, n)
	}
	for _, res := range r.GetResources() {
		c.resources[res.GetName()] = res
	}
	if !c.noAck {
		c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
	}
	return r, nil
}

func (c *client) nack(r *discoverypb.DeltaDiscoveryResponse, text string) {
	c.t.Helper()
	c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &status.Status{Message: text}})
}

// until receives responses until ok; what is that for.
func (c *client) until(what string, ok func() bool) {
	c.t.Helper()
	watchdog := time.AfterFunc(10*time.Second, c.cancel)
	defer watchdog.Stop()
	for !ok() {
		if _, err := c.recv(); err != nil {
			c.t.Fatalf("waiting until %s: %v; have %v, removed %v", what, err, slices.Sorted(maps.Keys(c.resources)), c.removed)
		}
	}
}

// fails receives until the stream ends, and wants its error to say all parts.
func (c *client) fails(parts ...string) {
	c.t.Helper()
	watchdog := time.AfterFunc(10*time.Second, c.cancel)
	defer watchdog.Stop()
	for {
		_, err := c.recv()
		if err == nil {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				c.t.Fatalf("the stream ended with %q, which does not say %q", err, p)
			}
		}
		return
	}
}

func (c *client) destination(name string) *api.Destination {
	c.t.Helper()
	d := &api.Destination{}
	if r := c.resources[name]; r == nil {
		c.t.Fatalf("no destination %s", name)
	} else if err := r.GetResource().UnmarshalTo(d); err != nil {
		c.t.Fatal(err)
	}
	return d
}

// endpoints is the collection as "ip:port=STATE@pod", sorted, and whether its
// marker was received.
func (c *client) endpoints(service string) (list []string, whole bool) {
	c.t.Helper()
	prefix := strings.TrimSuffix(xds.EndpointCollection(service), "*")
	for name, r := range c.resources {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if strings.HasSuffix(name, "/*") {
			whole = true
			continue
		}
		ep := &endpointpb.LbEndpoint{}
		if err := r.GetResource().UnmarshalTo(ep); err != nil {
			c.t.Fatal(err)
		}
		sa := ep.GetEndpoint().GetAddress().GetSocketAddress()
		list = append(list, fmt.Sprintf("%s=%s", net.JoinHostPort(sa.GetAddress(), fmt.Sprint(sa.GetPortValue())), ep.GetHealthStatus()))
	}
	slices.Sort(list)
	return list, whole
}

func (c *client) wantEndpoints(service string, want ...string) {
	c.t.Helper()
	slices.Sort(want)
	c.until(fmt.Sprintf("%s has %v", service, want), func() bool {
		got, whole := c.endpoints(service)
		return whole && slices.Equal(got, want)
	})
}
