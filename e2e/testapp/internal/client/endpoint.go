// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package client is the Go client of the end-to-end tests: an ordinary grpc-go
// client with an ordinary "name:port" target, which sends RPCs at a constant rate
// and tells over HTTP what became of them.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"evenkeel.dev/e2e/testapp/internal/echo"
	"evenkeel.dev/e2e/testapp/internal/stats"
)

// Kind is the kind of RPC.
type Kind string

// Kinds of RPCs. Mix takes the four in turn.
const (
	Unary        Kind = "unary"
	ServerStream Kind = "server-stream"
	ClientStream Kind = "client-stream"
	Bidi         Kind = "bidi"
	Mix          Kind = "mix"
)

// Kinds of streams that last as long as they are asked to. They are only in
// Config.Streams' load, or asked for by /run.
const (
	LongServerStream Kind = "long-server-stream"
	LongBidi         Kind = "long-bidi"
)

// streamMessages is how many messages a stream has each way.
const streamMessages = 3

// pace is how often a lasting stream has a message each way.
const pace = 250 * time.Millisecond

// Call describes the RPCs of a load.
type Call struct {
	// Target is a grpc-go target: "name:port".
	Target string
	// Protocol is "grpc" or "http1".
	Protocol string
	// Policy is the load-balancing policy. Empty: grpc-go's default,
	// pick_first.
	Policy string
	// TLS makes it speak TLS; the server's certificate is not checked.
	TLS bool
	// Kind of the RPCs.
	Kind Kind
	// Deadline of each RPC.
	Deadline time.Duration
	// Delay is how long the server shall wait before each answer.
	Delay time.Duration
	// Bytes is the size of the payload each way.
	Bytes int
	// Metadata is sent with each RPC, as "key=value".
	Metadata []string
	// Length is how long RPCs of the lasting kinds last. Zero: one message.
	Length time.Duration
	// NoRetry takes away what retries grpc-go lets one take away: those of a
	// service config. It always replays what it never put on the wire.
	NoRetry bool
}

// endpoint sends RPCs: one channel, or one HTTP/1 client. Where an RPC fails,
// the reply is the last one that came; length is for the lasting kinds.
type endpoint interface {
	do(ctx context.Context, kind Kind, length time.Duration) (echo.Reply, int, error)
	close()
}

func newEndpoint(call Call, c *stats.Collector, log *slog.Logger) (endpoint, error) {
	if call.Protocol == "http1" {
		return newHTTP1(call, c), nil
	}
	return newChannel(call, c, log)
}

// counting wraps net.Dialer, so that connections are counted and their peers
// told as the application sees them.
func counting(c *stats.Collector) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			c.ConnectFailed()
			return nil, err
		}
		c.Connected(conn.RemoteAddr().String())
		return &countedConn{Conn: conn, closed: sync.OnceFunc(c.Disconnected)}, nil
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

type channel struct {
	call Call
	conn *grpc.ClientConn
	req  echo.Request
}

func newChannel(call Call, c *stats.Collector, log *slog.Logger) (*channel, error) {
	creds := insecure.NewCredentials()
	if call.TLS {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	dial := counting(c)
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(echo.Codec())),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }),
	}
	if call.Policy != "" {
		opts = append(opts, grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{%q:{}}]}`, call.Policy)))
	}
	if call.NoRetry {
		opts = append(opts, grpc.WithDisableRetry())
	}
	conn, err := grpc.NewClient(call.Target, opts...)
	if err != nil {
		return nil, err
	}
	log.Info("channel made", "target", call.Target)
	return &channel{call: call, conn: conn, req: echo.Request{
		Payload: strings.Repeat("x", call.Bytes), ReplyBytes: call.Bytes, DelayMS: int(call.Delay.Milliseconds()), Messages: streamMessages,
	}}, nil
}

func (ch *channel) close() { ch.conn.Close() }

func (ch *channel) do(ctx context.Context, kind Kind, length time.Duration) (echo.Reply, int, error) {
	var reply echo.Reply
	req := ch.req
	messages := max(1, int(length/pace))
	if kind == LongServerStream {
		req.Messages, req.DelayMS = messages, int(pace.Milliseconds())
	}
	b, err := echo.Encode(req)
	if err != nil {
		return reply, 0, err
	}
	switch kind {
	case Unary:
		var out []byte
		if err := ch.conn.Invoke(ctx, echo.Unary, b, &out); err != nil {
			return reply, 0, err
		}
		return reply, 1, echo.Decode(out, &reply)
	case ClientStream:
		return ch.stream(ctx, echo.ClientStream, b, streamMessages, 0)
	case Bidi:
		return ch.stream(ctx, echo.Bidi, b, streamMessages, 0)
	case LongBidi:
		return ch.stream(ctx, echo.Bidi, b, messages, pace)
	default:
		return ch.stream(ctx, echo.ServerStream, b, 1, 0)
	}
}

// stream sends messages, waiting after each, reads to the end and returns the
// last answer and how many there were. A stream is one RPC: that all answers come
// from one server is checked.
func (ch *channel) stream(ctx context.Context, method string, b *[]byte, messages int, wait time.Duration) (echo.Reply, int, error) {
	var last echo.Reply
	s, err := ch.conn.NewStream(ctx, echo.StreamDesc(method), method)
	if err != nil {
		return last, 0, err
	}
	sent := make(chan error, 1)
	go func() { sent <- send(s, b, messages, wait) }()
	answers := 0
	for ; ; answers++ {
		var out []byte
		err := s.RecvMsg(&out)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return last, answers, err // the stream is over: send returns too
		}
		var reply echo.Reply
		if err := echo.Decode(out, &reply); err != nil {
			return last, answers, err
		}
		if last.Server != "" && reply.Server != last.Server {
			return last, answers, fmt.Errorf("one stream was answered by %s and %s", last.Server, reply.Server)
		}
		last = reply
	}
	if err := <-sent; err != nil {
		return last, answers, err
	}
	if answers == 0 {
		return last, 0, errors.New("the stream ended well without an answer")
	}
	return last, answers, nil
}

func send(s grpc.ClientStream, b *[]byte, messages int, wait time.Duration) error {
	for i := range messages {
		if i > 0 && wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-s.Context().Done():
				t.Stop()
				return nil // RecvMsg says why
			}
		}
		if err := s.SendMsg(b); err != nil {
			if errors.Is(err, io.EOF) { // the server has ended the stream: RecvMsg says how
				return nil
			}
			return err
		}
	}
	return s.CloseSend()
}

type http1 struct {
	call   Call
	client *http.Client
}

func newHTTP1(call Call, c *stats.Collector) *http1 {
	return &http1{call: call, client: &http.Client{Transport: &http.Transport{
		DialContext:     counting(c),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}}
}

func (h *http1) close() { h.client.CloseIdleConnections() }

func (h *http1) do(ctx context.Context, _ Kind, _ time.Duration) (echo.Reply, int, error) {
	var reply echo.Reply
	scheme := "http"
	if h.call.TLS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+h.call.Target+"/", strings.NewReader(strings.Repeat("x", h.call.Bytes)))
	if err != nil {
		return reply, 0, err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return reply, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return reply, 0, fmt.Errorf("status %s", res.Status)
	}
	return reply, 1, json.NewDecoder(res.Body).Decode(&reply)
}

// describe makes the code and message that /stats tells.
func describe(err error) (code, message string) {
	if s, ok := status.FromError(err); ok {
		return s.Code().String(), s.Message()
	}
	return "CLIENT", err.Error()
}
