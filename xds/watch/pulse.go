// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package watch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	kwatch "k8s.io/apimachinery/pkg/watch"
)

const (
	// failingBound is how long a watch may fail before Health says so: a restart of
	// the API server is not worth it.
	failingBound = 30 * time.Second
	// steady is how long a watch must have been open to count as working.
	steady = 5 * time.Second
)

// errNoAnswer is the error of a request that is still waiting: client-go itself tries
// a watch again, for minutes, before it returns an error.
var errNoAnswer = errors.New("the API server does not answer")

// Health names each resource that cannot be watched for more than 30 seconds, for
// how long, and the last error; nil if there is none. An open watch on which
// nothing happens is healthy; that the other end of it is gone is noticed by HTTP/2's
// pings after 45 seconds. What was seen before stays in force meanwhile.
func (k *Kube) Health() error { return k.health(time.Now()) }

func (k *Kube) health(now time.Time) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(k.pulses)) {
		if d, err := k.pulses[name].failing(now); d > failingBound {
			errs = append(errs, fmt.Errorf("%s cannot be watched for %s: %w", name, d.Round(time.Second), err))
		}
	}
	return errors.Join(errs...)
}

// pulse follows the requests of one resource's watch. States:
//
//	fine      a watch is open, or was until just now
//	asking    a request waits for its answer; an answer ends it
//	failing   an error since; ends when a watch has been open for a while, so that
//	          one which opens and breaks at once does not look well
type pulse struct {
	mu     sync.Mutex
	opened time.Time // zero: no watch is open
	since  time.Time // when asking or failing began; zero: fine
	err    error     // the last one; nil: not failing
}

// ask is called before a request is made; fail, answered or open follows.
func (p *pulse) ask(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = now
	}
}

func (p *pulse) fail(err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = now
	}
	p.err = err
}

// answered: a list has come.
func (p *pulse) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.since = time.Time{}
	}
}

func (p *pulse) open(now time.Time) {
	p.answered()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = now
}

func (p *pulse) close(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.steady(now) {
		p.err, p.since = nil, time.Time{}
	}
	p.opened = time.Time{}
}

func (p *pulse) steady(now time.Time) bool { return !p.opened.IsZero() && now.Sub(p.opened) >= steady }

// failing returns for how long, 0 if it is fine, and the last error.
func (p *pulse) failing(now time.Time) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.since.IsZero() || p.steady(now):
		return 0, nil
	case p.err == nil:
		return now.Sub(p.since), errNoAnswer
	}
	return now.Sub(p.since), p.err
}

// stream is an open watch that tells its end.
type stream struct {
	kwatch.Interface
	end func()
}

// Stop is part of watch.Interface.
func (s *stream) Stop() {
	s.end()
	s.Interface.Stop()
}
