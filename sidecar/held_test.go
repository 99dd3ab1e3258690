// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// An app that stops reading while hundreds of unary calls run: each response is complete here and its
// stream to the server has closed, but its bytes still wait. They count as held all the same,
// or nothing would stop the next.
func TestCompleteResponsesThatNobodyReadsAreBounded(t *testing.T) {
	const calls, frames, size = 100, 12, 16384 // 19 MB
	f := newFakeServer(t)
	r := newRig(t).serve(f.addr)
	app := r.app()
	for i := range uint32(calls) {
		app.request(2*i+1, true)
	}
	srv := f.accept()
	var window atomic.Int64
	window.Store(65535)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			fr, err := srv.fr.ReadFrame()
			if err != nil {
				return
			}
			if u, ok := fr.(*http2.WindowUpdateFrame); ok && u.StreamID == 0 {
				window.Add(int64(u.Increment))
			}
		}
	}()
	eventually(t, "the requests are there", func() bool { return r.snapshot().Services[0].Endpoints[0].InFlight == calls })
	total := 0
	for i := range uint32(calls) {
		srv.response(2*i + 1)
		for j := range frames {
			until := time.Now().Add(300 * time.Millisecond)
			for window.Load() < size && time.Now().Before(until) {
				time.Sleep(time.Millisecond)
			}
			if window.Load() < size {
				goto shut
			}
			srv.data(2*i+1, j == frames-1, make([]byte, size))
			window.Add(-size)
			total += size
		}
	}
shut:
	// 2 MiB for the session, what one window lets in on top, and what the app's own window took.
	if total > 4<<20 {
		t.Errorf("the server could send %d bytes to an app that reads none", total)
	}
	if held := r.snapshot().Services[0].Endpoints[0].HeldBytes; held < 1<<20 {
		t.Errorf("only %d bytes count as held, of %d", held, total)
	}
	// What the app has not taken when it goes is nobody's any more, and the server may send again.
	app.conn.Close()
	r.quiet()
	eventually(t, "nothing is held, and the window is open", func() bool {
		return r.snapshot().Services[0].Endpoints[0].HeldBytes == 0 && window.Load() > 512<<10
	})
	srv.conn.Close()
	<-gone
}
