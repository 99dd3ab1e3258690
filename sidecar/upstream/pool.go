// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"evenkeel.dev/sidecar/h2"
	"evenkeel.dev/sidecar/loop"
)

// Observer hears about a pool's connectivity. It may call the pool's methods, except Close.
type Observer interface {
	// Connected: there is a session, and was none.
	Connected(now time.Time)
	// Disconnected: the last session can take no more streams. Another is being
	// dialled if the pool is warm or streams wait.
	Disconnected(now time.Time)
	// Slow: the first connect takes longer than Config.SlowConnect, and goes on.
	Slow(now time.Time)
	// Failing: no session could be made; the next attempt is at retry.
	Failing(now, retry time.Time, err error)
}

var (
	// ErrQueueFull: Config.MaxQueue streams wait already.
	ErrQueueFull = errors.New("too many streams wait for this endpoint")
	// ErrSlow: Evict was called while the connect was still under way.
	ErrSlow = errors.New("connecting is slow")
	// ErrClosed: the pool was closed, as its endpoint is gone.
	ErrClosed = errors.New("the endpoint is gone")
)

// Connectivity of a pool.
type Connectivity uint8

// What a pool is doing.
const (
	Idle Connectivity = iota
	Connecting
	Connected
	Failing
)

func (c Connectivity) String() string {
	return [...]string{"idle", "connecting", "connected", "failing"}[c]
}

// Pool holds the sessions to one address.
//
// The first session in ready that has a free stream is used: streams on few
// sessions share system calls.
type Pool struct {
	ps       *Pools
	addr     netip.AddrPort
	observer Observer
	warm     bool
	closed   bool

	ready   []*session // established, take streams
	opening []*session // dialling, or waiting for SETTINGS
	queue   queue

	failures int
	lastErr  error
	nextDial time.Time  // no dial before it
	retry    loop.Timer // fires at nextDial
}

// Addr is where the sessions go.
func (p *Pool) Addr() netip.AddrPort { return p.addr }

// Connectivity is what the pool is doing now.
func (p *Pool) Connectivity() Connectivity {
	switch {
	case len(p.ready) > 0:
		return Connected
	case p.failures > 0:
		return Failing
	case len(p.opening) > 0:
		return Connecting
	}
	return Idle
}

// Sessions that are established and take streams.
func (p *Pool) Sessions() int { return len(p.ready) }

// Queued streams.
func (p *Pool) Queued() int { return p.queue.n }

// Held are the response bytes that the app has not taken yet.
func (p *Pool) Held() (n int64) {
	for _, s := range p.ready {
		n += s.h2.Held()
	}
	return n
}

// LastError is why the latest connect failed; nil after one that did not.
func (p *Pool) LastError() error { return p.lastErr }

// Open opens a stream for h. Without a free one it returns nil and puts t into
// the queue: then exactly one call of w follows, later, unless t is cancelled.
// An error says at once that the stream cannot be opened here.
func (p *Pool) Open(now time.Time, h h2.StreamHandler, t *Ticket, w Waiter) (*h2.Stream, error) {
	if p.closed {
		return nil, p.errorf(ErrClosed)
	}
	if p.queue.n == 0 {
		if st := p.tryOpen(h); st != nil {
			return st, nil
		}
	}
	if p.queue.n >= p.ps.cfg.MaxQueue {
		p.ps.stats.QueueFull++
		return nil, p.errorf(ErrQueueFull)
	}
	t.h, t.w, t.pool = h, w, p
	p.queue.push(t)
	p.ps.stats.Queued++
	p.grow(now)
	return nil, nil
}

// Warm keeps one session established at all times.
func (p *Pool) Warm(now time.Time) {
	if !p.warm && !p.closed {
		p.warm = true
		p.grow(now)
	}
}

// Cool ends Warm: sessions without streams are closed after Config.IdleTimeout.
func (p *Pool) Cool() { p.warm = false }

// Evict takes all waiting streams out of the queue with ErrSlow, for those who
// can go elsewhere. The connect goes on.
func (p *Pool) Evict(now time.Time) { p.failQueue(now, p.errorf(ErrSlow)) }

// Renew is called when another server has come to have the address: sessions to the
// old one take no more streams, attempts to reach it are given up, and what
// failed is forgotten. Those who wait wait for the new one.
func (p *Pool) Renew(now time.Time) {
	if p.closed {
		return
	}
	for len(p.opening) > 0 {
		p.opening[0].abandon(now)
	}
	ready := p.ready
	p.ready = nil
	for _, s := range ready {
		s.retire(now)
	}
	p.failures, p.lastErr, p.nextDial = 0, nil, time.Time{}
	p.ps.cfg.Loop.StopTimer(&p.retry)
	if len(ready) > 0 {
		p.observer.Disconnected(now)
	}
	p.grow(now)
}

// Close ends the pool: streams that wait fail, those that run may end.
func (p *Pool) Close(now time.Time) {
	if p.closed {
		return
	}
	p.closed, p.warm = true, false
	p.ps.cfg.Loop.StopTimer(&p.retry)
	for len(p.opening) > 0 {
		p.opening[0].abandon(now)
	}
	for _, s := range p.ready {
		s.retire(now)
	}
	p.ready = nil
	p.failQueue(now, p.errorf(ErrClosed))
}

func (p *Pool) errorf(err error) error { return fmt.Errorf("%s: %w", p.addr, err) }

// tryOpen opens a stream on the first session that has one free and is not
// clogged. A clogged one is only used when there may be no other.
func (p *Pool) tryOpen(h h2.StreamHandler) *h2.Stream {
	for _, s := range p.ready {
		if s.clogged() {
			continue
		}
		if st := s.open(h); st != nil {
			return st
		}
	}
	if len(p.ready) < p.ps.cfg.MaxSessions {
		return nil
	}
	for _, s := range p.ready {
		if st := s.open(h); st != nil {
			return st
		}
	}
	return nil
}

// grow dials if a session is missing: the first one, or one more since all
// are full.
func (p *Pool) grow(now time.Time) {
	if p.closed || len(p.opening) > 0 || len(p.ready) >= p.ps.cfg.MaxSessions {
		return
	}
	if p.queue.n == 0 && (len(p.ready) > 0 || !p.warm) {
		return
	}
	if now.Before(p.nextDial) {
		if !p.retry.Set() {
			p.ps.cfg.Loop.SetTimer(&p.retry, p.nextDial, p)
		}
		return
	}
	p.dial(now)
}

// Expired implements loop.TimerHandler: the backoff is over.
func (p *Pool) Expired(now time.Time, _ *loop.Timer) { p.grow(now) }

// serve gives free streams to those who wait.
func (p *Pool) serve(now time.Time) {
	for t := p.queue.first; t != nil; t = p.queue.first {
		st := p.tryOpen(t.h)
		if st == nil {
			p.grow(now)
			return
		}
		p.unqueue(t)
		t.w.StreamReady(now, st)
	}
}

func (p *Pool) unqueue(t *Ticket) {
	p.queue.remove(t)
	t.pool = nil
	p.ps.stats.Queued--
}

// failQueue refuses those who wait now; who is queued by their reaction stays.
func (p *Pool) failQueue(now time.Time, err error) {
	for n := p.queue.n; n > 0 && p.queue.first != nil; n-- {
		t := p.queue.first
		p.unqueue(t)
		t.w.StreamRefused(now, err)
	}
}

// backoff is gRPC's: https://github.com/grpc/grpc/blob/master/doc/connection-backoff.md
func (p *Pool) backoff() time.Duration {
	d := float64(p.ps.cfg.BackoffMin)
	for range p.failures - 1 {
		if d *= 1.6; d >= float64(p.ps.cfg.BackoffMax) {
			d = float64(p.ps.cfg.BackoffMax)
			break
		}
	}
	return time.Duration(d * (0.8 + 0.4*p.ps.cfg.Rand.Float64()))
}
