// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import "math/bits"

// streamTable finds a stream by its id: an open-addressed table with linear
// probing, for a third of the cost of a Go map. Fibonacci hashing spreads ids
// that are handed out in turn with gaps between them, so that a probe and a
// removal look at one or two slots.
type streamTable struct {
	slots []*Stream // a power of two long
	shift uint      // 32 - log2(len(slots))
	n     int
}

func (t *streamTable) len() int { return t.n }

func (t *streamTable) home(id uint32) int { return int((id >> 1) * 0x9e3779b1 >> t.shift) }

func (t *streamTable) get(id uint32) *Stream {
	if t.n == 0 {
		return nil
	}
	for i := t.home(id); ; i = (i + 1) & (len(t.slots) - 1) {
		st := t.slots[i]
		if st == nil || st.id == id {
			return st
		}
	}
}

func (t *streamTable) put(st *Stream) {
	if 2*(t.n+1) > len(t.slots) {
		t.resize(max(8, 2*len(t.slots)))
	}
	t.insert(st)
	t.n++
}

func (t *streamTable) insert(st *Stream) {
	i := t.home(st.id)
	for t.slots[i] != nil {
		i = (i + 1) & (len(t.slots) - 1)
	}
	t.slots[i] = st
}

func (t *streamTable) resize(size int) {
	old := t.slots
	t.slots = make([]*Stream, size)
	t.shift = uint(32 - bits.TrailingZeros(uint(size)))
	for _, st := range old {
		if st != nil {
			t.insert(st)
		}
	}
}

// remove closes the gap by moving back those that were pushed beyond it.
func (t *streamTable) remove(id uint32) {
	if t.n == 0 {
		return
	}
	mask := len(t.slots) - 1
	i := t.home(id)
	for t.slots[i] == nil || t.slots[i].id != id {
		if t.slots[i] == nil {
			return
		}
		i = (i + 1) & mask
	}
	t.n--
	for j := (i + 1) & mask; t.slots[j] != nil; j = (j + 1) & mask {
		home := t.home(t.slots[j].id)
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = nil
	if len(t.slots) > 1024 && t.n < len(t.slots)/16 {
		t.resize(len(t.slots) / 4)
	}
}

// all returns the streams which match; the table may change while they are used.
func (t *streamTable) all(match func(*Stream) bool) []*Stream {
	var all []*Stream
	for _, st := range t.slots {
		if st != nil && match(st) {
			all = append(all, st)
		}
	}
	return all
}
