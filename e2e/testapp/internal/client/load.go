// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package client

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"evenkeel.dev/e2e/testapp/internal/echo"
	"evenkeel.dev/e2e/testapp/internal/stats"
)

// maxInFlight bounds the RPCs of the constant load.
const maxInFlight = 5000

// load sends RPCs over some channels.
type load struct {
	call      Call
	stats     *stats.Collector
	endpoints []endpoint
	// turn and streams count what was begun, and so choose kind and channel.
	turn, streams atomic.Uint64
	// open counts RPCs in flight.
	open atomic.Int64
}

func newLoad(call Call, channels int, c *stats.Collector, log *slog.Logger) (*load, error) {
	l := &load{call: call, stats: c}
	for range max(1, channels) {
		e, err := newEndpoint(call, c, log)
		if err != nil {
			l.close()
			return nil, err
		}
		l.endpoints = append(l.endpoints, e)
	}
	return l, nil
}

func (l *load) close() {
	for _, e := range l.endpoints {
		e.close()
	}
}

// one sends one RPC.
func (l *load) one(ctx context.Context) {
	n, kind := l.turn.Add(1), l.call.Kind
	if kind == Mix {
		kind = []Kind{Unary, ServerStream, ClientStream, Bidi}[n%4]
	}
	l.send(ctx, n, kind, l.call.Length)
}

// lasting sends one stream of a random length, of either kind in turn.
func (l *load) lasting(ctx context.Context, s Streams) {
	n := l.streams.Add(1)
	l.send(ctx, n, []Kind{LongServerStream, LongBidi}[n%2], s.Min+rand.N(s.Max-s.Min+1))
}

// send sends the nth RPC; a lasting one has its length more time than the deadline.
func (l *load) send(ctx context.Context, n uint64, kind Kind, length time.Duration) {
	l.open.Add(1)
	defer l.open.Add(-1)
	l.stats.Started(string(kind))
	begin := time.Now()
	lasting := kind == LongBidi || kind == LongServerStream
	deadline := l.call.Deadline
	if lasting {
		deadline += length
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for _, kv := range l.call.Metadata {
		if k, v, ok := cut(kv); ok {
			ctx = metadata.AppendToOutgoingContext(ctx, k, v)
		}
	}
	reply, answers, err := l.endpoints[n%uint64(len(l.endpoints))].do(ctx, kind, length)
	now := time.Now()
	if err != nil {
		code, message := describe(err)
		l.stats.Failed(stats.Failure{
			BeganMS: begin.UnixMilli(), EndedMS: now.UnixMilli(), Kind: string(kind), Code: code, Message: message, Server: reply.Server, Answers: answers,
		})
		return
	}
	l.stats.Succeeded(now, stats.Success{
		Kind: string(kind), Server: reply.Server, Authority: reply.Authority, PeerHost: hostOf(reply), Latency: now.Sub(begin), Lasting: lasting,
	})
}

func hostOf(r echo.Reply) string {
	host, _, err := net.SplitHostPort(r.Peer)
	if err != nil {
		return r.Peer
	}
	return host
}

// burst sends n RPCs, at most concurrency at a time.
func (l *load) burst(ctx context.Context, n, concurrency int) error {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for range concurrency {
		wg.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				l.one(ctx)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return errors.New("the request was ended before the run was")
	}
	return nil
}

// steady sends RPCs at a constant rate, in thousandths per second, until ctx ends,
// and returns when all have ended. They are due at fixed times: a slow answer does
// not lower the rate (no coordinated omission).
func (l *load) steady(ctx context.Context, milliRate *atomic.Int64, one func(context.Context)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	inFlight := make(chan struct{}, maxInFlight)
	const tick = 5 * time.Millisecond
	t := time.NewTicker(tick)
	defer t.Stop()
	last, due := time.Now(), 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			due += now.Sub(last).Seconds() * float64(milliRate.Load()) / 1000
			last = now
			for ; due >= 1; due-- {
				select {
				case inFlight <- struct{}{}:
					wg.Go(func() {
						one(context.WithoutCancel(ctx))
						<-inFlight
					})
				default:
					l.stats.Skipped()
				}
			}
		}
	}
}
