// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"evenkeel.dev/xds"
)

// A sidecar that does not read is closed after StallTimeout, and until then
// costs the others nothing.
func TestSlowReaderIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.StallTimeout = 30 * time.Second })
		many := make([]int, 2000)
		for i := range many {
			many[i] = i
		}
		w.synced(service("pricing", "10.96.0.4"), slice("pricing", many...))
		// Its list is larger than the client's windows: the server cannot finish.
		slow := connect(t, w.lis, xds.Node{Namespace: "shop", Pod: "slow"}, "",
			grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16), grpc.WithStaticStreamWindowSize(1<<16))
		slow.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		synctest.Wait()

		fast := w.connect("web-1")
		start := time.Now()
		fast.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		fast.wantEndpoints(pricing, ready(many...)...)
		for i := range 5 {
			w.apply(slice("pricing", many[i:]...))
			fast.wantEndpoints(pricing, ready(many[i:]...)...)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("a slow sidecar held the others up for %s", took)
		}
		if n := metricValue(t, w.srv.metrics.slow); n != 0 {
			t.Errorf("closed early: %v", n)
		}
		time.Sleep(30*time.Second - time.Since(start) + time.Second)
		synctest.Wait()
		if n := metricValue(t, w.srv.metrics.slow); n != 1 {
			t.Errorf("slow closes: %v, want 1", n)
		}
		if log := w.log.String(); !strings.Contains(log, "closed a slow sidecar") || !strings.Contains(log, "sidecar=shop/slow") {
			t.Errorf("the log does not name it:\n%s", log)
		}
		if n := metricValue(t, w.srv.metrics.streams); n != 1 {
			t.Errorf("%v streams; want the fast one", n)
		}
		slow.cancel()
		fast.cancel()
	})
}

// A sidecar that reads but never acknowledges is sent no more than MaxUnacked
// ahead, and is closed, too.
func TestMissingAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.MaxUnacked, c.StallTimeout = 3, 30*time.Second })
		w.synced(service("pricing", "10.96.0.4"), slice("pricing", 0))
		c := w.connect("web-1")
		c.noAck = true
		c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		go func() {
			for {
				if _, err := c.recv(); err != nil {
					return
				}
			}
		}()
		for i := range 10 {
			synctest.Wait()
			w.apply(slice("pricing", 0, i+1))
		}
		synctest.Wait()
		if c.responses != 3 {
			t.Errorf("%d responses without an ACK; want 3", c.responses)
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if n := metricValue(t, w.srv.metrics.slow); n != 0 {
			t.Errorf("closed early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := metricValue(t, w.srv.metrics.slow); n != 1 {
			t.Errorf("slow closes: %v, want 1", n)
		}
		c.cancel()
	})
}

// What a stream that was full is sent afterwards is the newest, at once.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.MaxUnacked = 1 })
		w.synced(service("pricing", "10.96.0.4"), slice("pricing", 0))
		c := w.connect("web-1")
		c.noAck = true
		c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		first, err := c.recv()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			w.apply(slice("pricing", 0, i+1))
			synctest.Wait()
		}
		c.nack(first, "no") // a NACK makes room as well as an ACK
		c.noAck = false
		c.wantEndpoints(pricing, ready(0, 100)...)
		if c.responses != 2 {
			t.Errorf("%d responses for 100 changes; want the first and one more", c.responses)
		}
		c.cancel()
	})
}

// An idle stream is not slow.
func TestIdleIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.synced(service("pricing", "10.96.0.4"), slice("pricing", 0))
		c := w.connect("web-1")
		c.subscribe(xds.EndpointType, xds.EndpointCollection(pricing))
		c.wantEndpoints(pricing, ready(0)...)
		time.Sleep(24 * time.Hour)
		w.apply(slice("pricing", 0, 1))
		c.wantEndpoints(pricing, ready(0, 1)...)
		if n := metricValue(t, w.srv.metrics.slow); n != 0 {
			t.Errorf("slow closes: %v", n)
		}
		c.cancel()
	})
}

// A client that opens a stream and says nothing is not kept.
func TestSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		w.synced()
		c := w.connect("web-1")
		time.Sleep(29 * time.Second)
		synctest.Wait()
		start := time.Now()
		if _, err := c.stream.Recv(); err == nil {
			t.Error("it was answered")
		}
		if waited := time.Since(start); waited > 2*time.Second {
			t.Errorf("kept for %s more", waited)
		}
	})
}
