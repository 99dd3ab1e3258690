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

// Health names each resource that cannot be watched for more than 30 seconds, for
// how long, and the last error; nil if there is none. An open watch on which
// nothing happens is healthy. What was seen before stays in force meanwhile.
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
//	fine      no error since the last steady watch
//	failing   an error since; ends when a watch has been open for a while, so that
//	          one which opens and breaks at once does not look well
type pulse struct {
	mu     sync.Mutex
	opened time.Time // zero: no watch is open
	since  time.Time // of the first error, while err is set
	err    error     // the last one
}

func (p *pulse) fail(err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.since = now
	}
	p.err = err
}

func (p *pulse) open(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = now
}

func (p *pulse) close(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.steady(now) {
		p.err = nil
	}
	p.opened = time.Time{}
}

func (p *pulse) steady(now time.Time) bool { return !p.opened.IsZero() && now.Sub(p.opened) >= steady }

// failing returns for how long, 0 if it is fine, and the last error.
func (p *pulse) failing(now time.Time) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil || p.steady(now) {
		return 0, nil
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
