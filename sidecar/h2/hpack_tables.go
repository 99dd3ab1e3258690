// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// entry is a field in a table, with all that is asked of it again and again.
type entry struct {
	hpack.HeaderField
	class  class
	padded bool // the value has white space around it, which is not passed on
}

func (e *entry) size() uint32 { return fieldSize(&e.HeaderField) }

// fieldSize is RFC 7541 section 4.1's, and RFC 9113 section 6.5.2's.
func fieldSize(f *hpack.HeaderField) uint32 {
	return uint32(len(f.Name) + len(f.Value) + entryOverhead)
}

const (
	entryOverhead = 32 // RFC 7541 section 4.1
	staticLen     = 61 // RFC 7541 appendix A
	initialTable  = 4096
)

// hpackTables is computed once, from x/net's hpack, which keeps the RFC's tables
// to itself: the static table by decoding each index, the Huffman code by
// encoding each byte. It is never written afterwards.
var hpackTables = buildTables()

type tables struct {
	static  [staticLen + 1]entry // from 1
	exact   [512]uint8           // hash of name and value → static index, open-addressed
	names   [256]uint8           // hash of name → static index, open-addressed
	huffman huffmanTable
	seed    maphash.Seed
}

func buildTables() *tables {
	t := &tables{seed: maphash.MakeSeed()}
	for i := 1; i <= staticLen; i++ {
		fields, err := hpack.NewDecoder(initialTable, nil).DecodeFull([]byte{0x80 | byte(i)})
		if err != nil || len(fields) != 1 {
			panic("h2: x/net's hpack does not know a static table entry")
		}
		e := &t.static[i]
		e.HeaderField = fields[0]
		e.class = classify(e.Name, e.Value, true)
		slot := t.hash(e.Name, e.Value) % uint32(len(t.exact))
		for t.exact[slot] != 0 {
			slot = (slot + 1) % uint32(len(t.exact))
		}
		t.exact[slot] = uint8(i)
		if t.staticName(e.Name, hashName(e.Name)) == 0 {
			slot = hashName(e.Name) % uint32(len(t.names))
			for t.names[slot] != 0 {
				slot = (slot + 1) % uint32(len(t.names))
			}
			t.names[slot] = uint8(i)
		}
	}
	t.huffman.build()
	return t
}

// hash is of a whole field.
func (t *tables) hash(name, value string) uint32 {
	return uint32(maphash.String(t.seed, value)) ^ hashName(name)*0x9e3779b1
}

// hashName is cheap; who uses it compares the name.
func hashName(name string) uint32 {
	n := len(name)
	if n == 0 {
		return 0
	}
	return uint32(n)*31 + uint32(name[n-1])*7 + uint32(name[n/2])*131 + uint32(name[0])
}

// staticField returns the static index of a field, 0 if there is none.
func (t *tables) staticField(name, value string, hash uint32) int {
	for slot := hash % uint32(len(t.exact)); t.exact[slot] != 0; slot = (slot + 1) % uint32(len(t.exact)) {
		i := int(t.exact[slot])
		if e := &t.static[i]; e.Value == value && e.Name == name {
			return i
		}
	}
	return 0
}

// staticName returns a static index with the name, 0 if there is none.
func (t *tables) staticName(name string, hash uint32) int {
	for slot := hash % uint32(len(t.names)); t.names[slot] != 0; slot = (slot + 1) % uint32(len(t.names)) {
		i := int(t.names[slot])
		if t.static[i].Name == name {
			return i
		}
	}
	return 0
}

// dynamicTable is RFC 7541 section 2.3.2's, a ring with the newest entry at
// position added-1. Entries have a serial number, from 1, which never changes.
type dynamicTable struct {
	ring    []entry // a power of two long
	added   uint32  // entries ever added
	n       int     // entries that are in it
	size    uint32
	maxSize uint32
}

// tableState tells apart any two states of a table in which an index may mean
// different fields.
type tableState struct {
	added, maxSize uint32
	n              int
}

func (t *dynamicTable) state() tableState { return tableState{t.added, t.maxSize, t.n} }

// bySerial returns an entry that is in the table.
func (t *dynamicTable) bySerial(serial uint32) *entry {
	return &t.ring[(serial-1)&uint32(len(t.ring)-1)]
}

// has reports whether the entry with the serial number is (still) in the table.
func (t *dynamicTable) has(serial uint32) bool { return t.added-serial < uint32(t.n) }

// oldest returns the serial number of the entry to go first.
func (t *dynamicTable) oldest() uint32 { return t.added - uint32(t.n) + 1 }

// makeRoom evicts entries until size more bytes fit; it reports whether they do.
func (t *dynamicTable) makeRoom(size uint32, evicted func(*entry)) bool {
	for t.n > 0 && (size > t.maxSize || t.size > t.maxSize-size) {
		e := t.bySerial(t.oldest())
		t.size -= e.size()
		if evicted != nil {
			evicted(e)
		}
		*e = entry{}
		t.n--
	}
	return size <= t.maxSize
}

// push adds an entry; makeRoom has said that it fits.
func (t *dynamicTable) push(e entry) {
	if t.n == len(t.ring) {
		t.grow()
	}
	t.added++
	t.n++
	t.size += e.size()
	*t.bySerial(t.added) = e
}

func (t *dynamicTable) grow() {
	old := *t
	t.ring = make([]entry, max(16, 2*len(old.ring)))
	if old.n == 0 {
		return
	}
	for serial := old.oldest(); serial != old.added+1; serial++ {
		*t.bySerial(serial) = *old.bySerial(serial)
	}
}

// huffmanTable decodes RFC 7541 appendix B's code: the next 14 bits give one or
// two symbols, or say that the code is longer; then it is found by its length,
// as the code is canonical.
type huffmanTable struct {
	short [1 << huffmanBits]uint32 // symbol, symbol, how many, their bits; 0: longer
	first [31]uint32               // by length: the first code
	count [31]uint32
	start [31]int // of the symbols with that length in syms
	syms  []byte
}

// huffmanBits: two letters have 12 to 14 bits.
const huffmanBits = 14

func (h *huffmanTable) build() {
	var code [256]uint32
	var length [256]int
	for sym := range 256 {
		s := string([]byte{byte(sym)})
		// Eight times the symbol are as many bytes as it has bits.
		length[sym] = int(hpack.HuffmanEncodeLength(strings.Repeat(s, 8)))
		b := append(hpack.AppendHuffmanString(nil, s), 0, 0, 0, 0)
		bits := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		code[sym] = bits >> (32 - length[sym])
	}
	for n := 1; n <= 30; n++ {
		h.start[n] = len(h.syms)
		for sym := range 256 {
			if length[sym] != n {
				continue
			}
			if h.count[n] == 0 {
				h.first[n] = code[sym]
			}
			h.count[n]++
			h.syms = append(h.syms, byte(sym))
		}
	}
	for i := range h.short {
		bits := uint32(i) << (32 - huffmanBits)
		a, na := h.match(bits, huffmanBits)
		if na == 0 {
			continue
		}
		b, nb := h.match(bits<<na, huffmanBits-na)
		n := uint32(1)
		if nb > 0 {
			n = 2
		}
		h.short[i] = uint32(a) | uint32(b)<<8 | n<<16 | uint32(na+nb)<<24
	}
}

// match finds the symbol whose code starts bits, if it has at most limit bits.
func (h *huffmanTable) match(bits uint32, limit int) (sym byte, n int) {
	for n := 5; n <= limit; n++ {
		if d := bits>>(32-n) - h.first[n]; d < h.count[n] {
			return h.syms[h.start[n]+int(d)], n
		}
	}
	return 0, 0
}

// decode appends the decoded string to dst; ok is false for a malformed one.
func (h *huffmanTable) decode(dst, src []byte) (out []byte, ok bool) {
	// A symbol has at least 5 bits; one more, as two are written at a time.
	at := len(dst)
	dst = slices.Grow(dst, len(src)*8/5+2)
	dst = dst[:cap(dst)]
	var acc uint64 // its low n bits are still to be decoded
	var n uint
	for {
		if len(src) >= 4 {
			acc = acc<<32 | uint64(binary.BigEndian.Uint32(src))
			src = src[4:]
			n += 32
		} else {
			for _, b := range src {
				acc = acc<<8 | uint64(b)
				n += 8
			}
			src = nil
		}
		for n >= 30 {
			e := h.short[acc>>(n-huffmanBits)&(1<<huffmanBits-1)]
			if e == 0 {
				sym, m := h.match(uint32(acc>>(n-30)<<2), 30)
				if m == 0 {
					return dst[:at], false // EOS, which must not occur in a string
				}
				dst[at] = sym
				at++
				n -= uint(m)
				continue
			}
			dst[at] = byte(e)
			dst[at+1] = byte(e >> 8)
			at += int(e >> 16 & 0xff)
			n -= uint(e >> 24)
		}
		if len(src) == 0 {
			return h.decodeTail(dst[:at], acc, int(n))
		}
	}
}

// decodeTail decodes the last n < 30 bits, which end in padding.
func (h *huffmanTable) decodeTail(dst []byte, acc uint64, n int) (out []byte, ok bool) {
	for n > 0 {
		bits := uint32(acc << (32 - n)) // zeros behind
		sym, m := h.match(bits, n)
		if m == 0 {
			// "Padding strictly longer than 7 bits" and "not corresponding to
			// the most significant bits of the code for the EOS symbol" are
			// errors (RFC 7541 section 5.2).
			ones := uint64(1)<<n - 1
			return dst, n < 8 && acc&ones == ones
		}
		dst = append(dst, sym)
		n -= m
	}
	return dst, true
}
