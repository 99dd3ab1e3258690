// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// memory is what the process holds now, in bytes: live heap, and resident.
func memory(t testing.TB) (heap, rss int64) {
	t.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), residentBytes(t)
}

func residentBytes(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// muteServer takes any number of streams and answers none. Neither it nor what it counts grows with
// them, so that what grows is the Sidecar.
func muteServer(t *testing.T, opened *atomic.Int64) string {
	return tcpServer(t, func(c *net.TCPConn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		_, _ = c.Write(hello(false))
		w := newWire(c)
		for w.each(func(typ http2.FrameType, _ http2.Flags, _ uint32) {
			if typ == http2.FrameHeaders {
				opened.Add(1)
			}
		}) == nil {
		}
	})
}

// An open stream on which nothing happens, on both of its sides, with the headers that real traffic has.
func TestIdleStreamsAreSmall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has its own memory")
	}
	const conns, perConn, bound = 10, 100, 8 << 10
	var opened atomic.Int64
	r := newRig(t).serve(muteServer(t, &opened), muteServer(t, &opened), muteServer(t, &opened))
	var buf bytes.Buffer
	enc := hpack.NewEncoder(&buf)
	enc.SetMaxDynamicTableSize(0) // one block fits all connections
	var all []net.Conn
	open := func(c net.Conn, id uint32, n int) {
		buf.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/shop.Pricing/Watch"},
			{Name: ":authority", Value: "pricing.shop:50051"},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "te", Value: "trailers"},
			{Name: "user-agent", Value: "grpc-go/1.85.0"},
			{Name: "grpc-accept-encoding", Value: "gzip"},
			{Name: "traceparent", Value: fmt.Sprintf("00-%032x-%016x-01", n, n)},
			{Name: "x-request-id", Value: fmt.Sprintf("%032x", n)},
			{Name: "authorization", Value: "Bearer " + strings.Repeat(fmt.Sprintf("%08x", n), 100)},
		} {
			if err := enc.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		fr := http2.NewFramer(c, nil)
		if err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: buf.Bytes(), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if err := fr.WriteData(id, false, message(100)); err != nil {
			t.Fatal(err)
		}
	}
	for range conns {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = c.Write(hello(true))
		all = append(all, c)
		open(c, 1, 0) // sessions on both sides, tables and buffers are there
	}
	streams := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " streams are open"), func() bool {
			return opened.Load() == int64(n) && r.snapshot().Streams == n
		})
	}
	streams(conns)
	heap0, rss0 := memory(t)
	for i, c := range all {
		for j := range perConn {
			open(c, uint32(2*j+3), i*perConn+j+1)
		}
	}
	streams(conns + conns*perConn)
	time.Sleep(50 * time.Millisecond)
	heap1, rss1 := memory(t)
	const n = conns * perConn
	t.Logf("a stream: %d bytes of heap, %d resident", (heap1-heap0)/n, (rss1-rss0)/n)
	if per := (heap1 - heap0) / n; per > bound {
		t.Errorf("%d bytes of heap for a stream, want at most %d", per, bound)
	}
	if per := (rss1 - rss0) / n; per > bound {
		t.Errorf("%d resident bytes for a stream, want at most %d", per, bound)
	}
}
