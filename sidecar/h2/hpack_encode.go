// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"math"
	"slices"

	"golang.org/x/net/http2/hpack"
)

// fieldEncoder is an HPACK encoder. Against x/net's it finds entries by one hash
// instead of up to four map lookups, learns which names have values that do not
// come again (trace ids, request ids) and keeps them out of the table, which
// they would flush, and writes strings as they are: Huffman's code saves a fifth
// of the bytes of what is new, on links that do not need it, and costs both ends
// more time than all else that is done to a header.
type fieldEncoder struct {
	table  dynamicTable
	limit  uint32 // what we use at most, whatever the peer allows
	update bool   // the table's size must be told before the next field,
	least  uint32 // and this one before, which it had meanwhile

	// Where entries are, by hash, newest first come; what is not found in its
	// slot is not found, and sent as a literal.
	exact [256]uint32 // serial
	names [64]uint32  // serial
	learn [64]learned // by hash of the name

	known    [8]encodedBlock
	literals bool // the block has a literal
}

// encodedBlock is a short field block, as in fieldDecoder; of indexes alone, as
// literals are what the table learns from.
type encodedBlock struct {
	fields []hpack.HeaderField
	state  tableState
	block  []byte
}

// learned is what was seen of the values of one name.
type learned struct {
	last   uint32 // the hash of the last value
	wasted uint8  // entries that were evicted in a row without having been used
}

func (e *fieldEncoder) init(limit int) {
	e.limit = uint32(min(limit, math.MaxInt32))
	e.table.maxSize = initialTable
	e.least = math.MaxUint32
	if e.limit < initialTable {
		e.resize(e.limit)
	}
}

// setMaxTableSize applies the peer's SETTINGS_HEADER_TABLE_SIZE.
func (e *fieldEncoder) setMaxTableSize(n uint32) {
	if n = min(n, e.limit); n != e.table.maxSize {
		e.resize(n)
	}
}

func (e *fieldEncoder) resize(n uint32) {
	e.update = true
	e.least = min(e.least, n)
	e.table.maxSize = n
	e.table.makeRoom(0, nil)
}

// append encodes a field block.
func (e *fieldEncoder) append(b []byte, fields []hpack.HeaderField) []byte {
	if e.update {
		// "the smallest maximum table size that occurs in that interval MUST be
		// signaled ... The final maximum size is always signaled" (RFC 7541
		// section 4.2)
		if e.least < e.table.maxSize {
			// x/net's decoder, which is grpc-go's, takes a second update only
			// with an empty table; an emptied one is right with everybody.
			b = append(b, 0x20)
			final := e.table.maxSize
			e.table.maxSize = 0
			e.table.makeRoom(0, nil)
			e.table.maxSize = final
		}
		b = appendInt(b, 0x20, 5, e.table.maxSize)
		e.update, e.least = false, math.MaxUint32
	}
	if len(fields) == 0 {
		return b
	}
	k := &e.known[(len(fields)+len(fields[0].Name))%len(e.known)]
	before := e.table.state()
	if k.state == before && slices.Equal(k.fields, fields) {
		return append(b, k.block...)
	}
	start := len(b)
	e.literals = false
	for i := range fields {
		b = e.appendField(b, &fields[i])
	}
	if block := b[start:]; len(block) <= maxKnown && !e.literals {
		k.state = before
		k.fields = append(k.fields[:0], fields...)
		k.block = append(k.block[:0], block...)
	}
	return b
}

func (e *fieldEncoder) appendField(b []byte, f *hpack.HeaderField) []byte {
	t := &e.table
	nameHash := hashName(f.Name)
	hash := hpackTables.hash(f.Name, f.Value)
	if !f.Sensitive {
		slot := &e.exact[hash%uint32(len(e.exact))]
		if t.has(*slot) {
			if g := t.bySerial(*slot); g.Value == f.Value && g.Name == f.Name {
				g.class = used
				return appendInt(b, 0x80, 7, e.index(*slot))
			}
		}
		if i := hpackTables.staticField(f.Name, f.Value, hash); i != 0 {
			return append(b, 0x80|byte(i))
		}
	}
	e.literals = true
	name := uint32(hpackTables.staticName(f.Name, nameHash))
	if name == 0 {
		if serial := e.names[nameHash%uint32(len(e.names))]; t.has(serial) && t.bySerial(serial).Name == f.Name {
			name = e.index(serial)
		}
	}
	switch {
	case f.Sensitive:
		b = appendInt(b, 0x10, 4, name)
	case e.worthIndexing(f, nameHash, hash):
		// The name's index counts before the entry is added, which may evict it.
		b = appendInt(b, 0x40, 6, name)
		e.add(f, nameHash, hash)
	default:
		b = appendInt(b, 0, 4, name)
	}
	if name == 0 {
		b = appendInt(b, 0, 7, uint32(len(f.Name)))
		b = append(b, f.Name...)
	}
	b = appendInt(b, 0, 7, uint32(len(f.Value)))
	return append(b, f.Value...)
}

// used marks, in an encoder's table, an entry that saved something.
const used class = 1

// index turns a serial number into an HPACK index.
func (e *fieldEncoder) index(serial uint32) uint32 {
	return staticLen + 1 + e.table.added - serial
}

// worthIndexing reports whether the value may be expected again.
func (e *fieldEncoder) worthIndexing(f *hpack.HeaderField, nameHash, hash uint32) bool {
	if fieldSize(f) > e.table.maxSize/2 {
		return false
	}
	l := &e.learn[nameHash%uint32(len(e.learn))]
	again := l.last == hash
	l.last = hash
	return again || l.wasted < 2
}

func (e *fieldEncoder) add(f *hpack.HeaderField, nameHash, hash uint32) {
	if !e.table.makeRoom(fieldSize(f), e.evicted) {
		return
	}
	e.table.push(entry{HeaderField: hpack.HeaderField{Name: f.Name, Value: f.Value}})
	e.exact[hash%uint32(len(e.exact))] = e.table.added
	e.names[nameHash%uint32(len(e.names))] = e.table.added
}

func (e *fieldEncoder) evicted(g *entry) {
	l := &e.learn[hashName(g.Name)%uint32(len(e.learn))]
	switch {
	case g.class == used:
		l.wasted = 0
	case l.wasted < math.MaxUint8:
		l.wasted++
	}
}

// appendInt appends an integer with a prefix of the given bits (RFC 7541 section 5.1).
func appendInt(b []byte, first byte, bits int, v uint32) []byte {
	full := uint32(1)<<bits - 1
	if v < full {
		return append(b, first|byte(v))
	}
	b = append(b, first|byte(full))
	for v -= full; v >= 0x80; v >>= 7 {
		b = append(b, 0x80|byte(v))
	}
	return append(b, byte(v))
}
