// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

// keptBody is the beginning of a request's body, kept for a replay. Small ones, which most
// are, live in a slice that stays with the pooled relay; what goes beyond it
// comes in chunks from a pool, so that a large request is no garbage.
type keptBody struct {
	head   []byte
	chunks []*bodyChunk
	n      int
}

const (
	headBody   = 4 << 10
	keepChunks = 64 // 1 MiB
)

type bodyChunk struct {
	n int
	b [16 << 10]byte
}

// bodyPool belongs to the loop.
type bodyPool struct{ free []*bodyChunk }

func (p *bodyPool) get() *bodyChunk {
	if n := len(p.free); n > 0 {
		c := p.free[n-1]
		p.free[n-1] = nil
		p.free = p.free[:n-1]
		return c
	}
	return &bodyChunk{}
}

func (p *bodyPool) put(c *bodyChunk) {
	if len(p.free) < keepChunks {
		c.n = 0
		p.free = append(p.free, c)
	}
}

func (k *keptBody) append(p *bodyPool, b []byte) {
	k.n += len(b)
	if len(k.chunks) == 0 {
		m := min(len(b), headBody-len(k.head))
		k.head = append(k.head, b[:m]...)
		b = b[m:]
	}
	for len(b) > 0 {
		last := len(k.chunks) - 1
		if last < 0 || k.chunks[last].n == len(k.chunks[last].b) {
			k.chunks = append(k.chunks, p.get())
			last++
		}
		c := k.chunks[last]
		m := copy(c.b[c.n:], b)
		c.n += m
		b = b[m:]
	}
}

func (k *keptBody) free(p *bodyPool) {
	for i, c := range k.chunks {
		p.put(c)
		k.chunks[i] = nil
	}
	k.head, k.chunks, k.n = k.head[:0], k.chunks[:0], 0
}
