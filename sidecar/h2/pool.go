// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import "hash/maphash"

// Pool keeps streams and buffers for reuse by all sessions of one loop. The zero
// value is ready; it has one owner. What it keeps is bounded, the rest is the
// garbage collector's, and so is what its sessions together hold for their peers.
type Pool struct {
	// MaxHeld bounds the bytes that all sessions of the pool have delivered and
	// that were not yet Consumed: beyond it each session keeps its connection
	// window back while it holds 64 KiB of them. 0: 16 MiB.
	MaxHeld int64

	held    int64
	streams []*Stream
	chunks  []*chunk
	buffers [][]byte
	bytes   int      // of buffers
	large   [][]byte // those of more than bigBuffer
	strings []string // intern table: a string has one slot, by its hash
}

const (
	chunkSize   = 4 << 10
	keepStreams = 1024
	keepChunks  = 512 // 2 MiB

	// Each session that has something to write holds a buffer to the end of the
	// turn, and all of an app's connections may have in the same turn.
	bufferSize  = 2 << 10
	keepBuffers = 2 << 20   // bytes; half of that for those which have grown
	bigBuffer   = 32 << 10  // of more than that
	keepLarge   = 8         // are kept
	maxBuffer   = 256 << 10 // and of more than that, none
)

func (p *Pool) maxHeld() int64 {
	if p.MaxHeld == 0 {
		return 16 << 20
	}
	return p.MaxHeld
}

// Held returns the bytes that MaxHeld bounds.
func (p *Pool) Held() int64 { return p.held }

func (p *Pool) getStream() *Stream {
	n := len(p.streams)
	if n == 0 {
		return &Stream{}
	}
	st := p.streams[n-1]
	p.streams[n-1] = nil
	p.streams = p.streams[:n-1]
	st.closed = false
	return st
}

func (p *Pool) putStream(st *Stream) {
	clear(st.trailers)
	trailers := st.trailers[:0]
	*st = Stream{closed: true} // deaf, should a caller have kept it
	if cap(trailers) <= 16 {
		st.trailers = trailers
	}
	if len(p.streams) < keepStreams {
		p.streams = append(p.streams, st)
	}
}

// getBuffer returns an empty buffer for who had one of a size before: a session that
// writes much does so again.
func (p *Pool) getBuffer(before int) []byte {
	if n := len(p.large); n > 0 && before > bigBuffer {
		b := p.large[n-1]
		p.large[n-1] = nil
		p.large = p.large[:n-1]
		return b
	}
	n := len(p.buffers)
	if n == 0 {
		return make([]byte, 0, bufferSize)
	}
	b := p.buffers[n-1]
	p.buffers[n-1] = nil
	p.buffers = p.buffers[:n-1]
	p.bytes -= cap(b)
	return b
}

func (p *Pool) putBuffer(b []byte) {
	n := cap(b)
	if n > bigBuffer {
		if n <= maxBuffer && len(p.large) < keepLarge {
			p.large = append(p.large, b[:0])
		}
		return
	}
	keep := keepBuffers
	if n > 4*bufferSize {
		keep /= 2
	}
	if n > 0 && p.bytes+n <= keep {
		p.bytes += n
		p.buffers = append(p.buffers, b[:0])
	}
}

// chunk is a piece of a stream's queue.
type chunk struct {
	next *chunk
	r, w int // read and write offset
	b    [chunkSize]byte
}

func (p *Pool) getChunk() *chunk {
	n := len(p.chunks)
	if n == 0 {
		return &chunk{}
	}
	c := p.chunks[n-1]
	p.chunks[n-1] = nil
	p.chunks = p.chunks[:n-1]
	return c
}

func (p *Pool) putChunk(c *chunk) {
	c.next, c.r, c.w = nil, 0, 0
	if len(p.chunks) < keepChunks {
		p.chunks = append(p.chunks, c)
	}
}

// chunkQueue is data that waits for windows or output space.
type chunkQueue struct {
	first, last *chunk
	n           int
}

func (q *chunkQueue) append(p *Pool, b []byte) {
	q.n += len(b)
	for len(b) > 0 {
		if q.last == nil || q.last.w == chunkSize {
			c := p.getChunk()
			if q.last == nil {
				q.first = c
			} else {
				q.last.next = c
			}
			q.last = c
		}
		n := copy(q.last.b[q.last.w:], b)
		q.last.w += n
		b = b[n:]
	}
}

// moveTo appends the first n bytes to b; n must not be more than there are.
func (q *chunkQueue) moveTo(b []byte, n int, p *Pool) []byte {
	q.n -= n
	for n > 0 {
		c := q.first
		m := min(n, c.w-c.r)
		b = append(b, c.b[c.r:c.r+m]...)
		c.r += m
		n -= m
		if c.r == c.w {
			q.first = c.next
			if q.first == nil {
				q.last = nil
			}
			p.putChunk(c)
		}
	}
	return b
}

func (q *chunkQueue) free(p *Pool) {
	for c := q.first; c != nil; {
		next := c.next
		p.putChunk(c)
		c = next
	}
	*q = chunkQueue{}
}

// intern returns b as a string, without an allocation if it was seen lately:
// header names and values come again and again, also where their table is too
// small to hold them.
func (p *Pool) intern(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) > maxIntern {
		return string(b)
	}
	if p.strings == nil {
		p.strings = make([]string, internSlots)
	}
	slot := &p.strings[maphash.Bytes(hpackTables.seed, b)%internSlots]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}

const (
	internSlots = 1024
	maxIntern   = 128
)
