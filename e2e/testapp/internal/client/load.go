// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package client

import (
	"context"
	"errors"
	"log/slog"
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
	turn      atomic.Uint64
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
	n := l.turn.Add(1)
	kind := l.call.Kind
	if kind == Mix {
		kind = []Kind{Unary, ServerStream, ClientStream, Bidi}[n%4]
	}
	l.stats.Started()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.call.Deadline)
	defer cancel()
	for _, kv := range l.call.Metadata {
		if k, v, ok := cut(kv); ok {
			ctx = metadata.AppendToOutgoingContext(ctx, k, v)
		}
	}
	reply, err := l.endpoints[n%uint64(len(l.endpoints))].do(ctx, kind)
	now := time.Now()
	if err != nil {
		code, message := describe(err)
		l.stats.Failed(now, code, message)
		return
	}
	l.stats.Succeeded(now, reply.Server, reply.Authority, hostOf(reply), now.Sub(begin))
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

// steady sends RPCs at a constant rate until ctx ends. They are due at fixed
// times: a slow answer does not lower the rate (no coordinated omission).
func (l *load) steady(ctx context.Context, rate *atomic.Int64) {
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
			due += now.Sub(last).Seconds() * float64(rate.Load())
			last = now
			for ; due >= 1; due-- {
				select {
				case inFlight <- struct{}{}:
					wg.Go(func() {
						l.one(context.WithoutCancel(ctx))
						<-inFlight
					})
				default:
					l.stats.Skipped()
				}
			}
		}
	}
}
