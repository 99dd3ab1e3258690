// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// fieldDecoder is an HPACK decoder. x/net's would do, and is the judge in the
// tests; this one keeps each entry's class beside it, so that a field which
// comes by index is not judged again, decodes Huffman's code two symbols at a
// time, and takes repeated strings from the pool's intern table.
type fieldDecoder struct {
	sec     section
	table   dynamicTable
	pool    *Pool
	allowed uint32 // what a size update may ask for
	shrink  bool   // our SETTINGS took effect: a size update must come first
	scratch []byte
	known   [8]knownBlock
}

// knownBlock is a short field block and its section. While the table stays as it
// was the same block means the same, which saves most of the work for what most
// RPCs have: a response's headers, trailers, a request without unique fields.
type knownBlock struct {
	block []byte
	state tableState
	sec   section
}

// maxKnown is the longest block that is remembered; one of indexes is shorter.
const maxKnown = 64

var (
	errTruncated  = errors.New("hpack: field block ends inside a field")
	errInteger    = errors.New("hpack: integer is too large")
	errIndex      = errors.New("hpack: index is beyond the tables")
	errHuffman    = errors.New("hpack: invalid Huffman code")
	errSizeUpdate = errors.New("hpack: table size update is too large")
	errSizePlace  = errors.New("hpack: table size update is not at the start of the block")
	errNoUpdate   = errors.New("hpack: table size was not reduced as SETTINGS demand")
)

func (d *fieldDecoder) init(pool *Pool, maxList uint32) {
	d.pool = pool
	d.table.maxSize = initialTable
	d.sec.limit = maxList
}

// allow sets what our SETTINGS_HEADER_TABLE_SIZE permits. Until they are
// acknowledged the peer may still use the initial size.
func (d *fieldDecoder) allow(size uint32, acked bool) {
	d.allowed = size
	if !acked {
		d.allowed = max(size, initialTable)
	}
	// "This dynamic table size update MUST occur at the beginning of the first
	// header block following the change" (RFC 7541 section 4.2)
	d.shrink = d.table.maxSize > d.allowed
}

// decode reads a whole field block. The section is valid until the next call.
func (d *fieldDecoder) decode(p []byte) (*section, error) {
	if len(p) == 0 || len(p) > maxKnown {
		return d.decodeFields(p)
	}
	k := &d.known[(int(p[0])+int(p[len(p)-1])*3+len(p))%len(d.known)]
	before := d.table.state()
	if k.state == before && bytes.Equal(k.block, p) && !d.shrink {
		fields := append(d.sec.fields[:0], k.sec.fields...)
		d.sec = k.sec
		d.sec.fields = fields
		return &d.sec, nil
	}
	sec, err := d.decodeFields(p)
	if err == nil && d.table.state() == before && !sec.tooLarge {
		fields := append(k.sec.fields[:0], sec.fields...)
		k.block = append(k.block[:0], p...)
		k.state, k.sec = before, *sec
		k.sec.fields = fields
	}
	return sec, err
}

func (d *fieldDecoder) decodeFields(p []byte) (*section, error) {
	d.sec.reset()
	p, err := d.sizeUpdates(p)
	if err != nil {
		return nil, err
	}
	for len(p) > 0 {
		b := p[0]
		switch {
		case b >= 0x80: // indexed field
			i := uint32(b & 0x7f)
			if p = p[1:]; i == 0x7f {
				if i, p, err = continueInt(i, p); err != nil {
					return nil, err
				}
			}
			e := d.at(i)
			if e == nil {
				return nil, errIndex
			}
			d.sec.add(e)
		case b >= 0x40: // literal with incremental indexing
			p, err = d.literal(p, 0x3f)
		case b >= 0x20:
			return nil, errSizePlace
		default: // literal without indexing, or never indexed
			p, err = d.literal(p, 0x0f)
		}
		if err != nil {
			return nil, err
		}
	}
	return &d.sec, nil
}

// sizeUpdates reads the updates at the start of a block: "at most two" (RFC
// 7541 section 4.2), so that they are no way to keep us busy.
func (d *fieldDecoder) sizeUpdates(p []byte) ([]byte, error) {
	for n := 0; n < 2 && len(p) > 0 && p[0]&0xe0 == 0x20; n++ {
		size := uint32(p[0] & 0x1f)
		p = p[1:]
		if size == 0x1f {
			var err error
			if size, p, err = continueInt(size, p); err != nil {
				return nil, err
			}
		}
		if size > d.allowed {
			return nil, errSizeUpdate
		}
		d.table.maxSize = size
		d.table.makeRoom(0, nil)
		d.shrink = false
	}
	if d.shrink {
		return nil, errNoUpdate
	}
	return p, nil
}

// at returns the entry with an HPACK index, nil if there is none.
func (d *fieldDecoder) at(i uint32) *entry {
	if i-1 < staticLen {
		return &hpackTables.static[i]
	}
	if i == 0 || i-staticLen > uint32(d.table.n) {
		return nil
	}
	return d.table.bySerial(d.table.added - (i - staticLen - 1))
}

// literal reads a literal field whose name index has the bits of mask.
func (d *fieldDecoder) literal(p []byte, mask byte) ([]byte, error) {
	first := p[0]
	i := uint32(first & mask)
	p = p[1:]
	var err error
	if i == uint32(mask) {
		if i, p, err = continueInt(i, p); err != nil {
			return nil, err
		}
	}
	var e entry
	var name, value []byte
	if i != 0 {
		ref := d.at(i)
		if ref == nil {
			return nil, errIndex
		}
		e.Name = ref.Name
	} else {
		if name, p, err = d.str(p); err != nil {
			return nil, err
		}
		e.Name = d.pool.intern(name)
	}
	if value, p, err = d.str(p); err != nil {
		return nil, err
	}
	size := uint32(len(e.Name) + len(value) + entryOverhead)
	index := mask == 0x3f && d.table.makeRoom(size, nil)
	if !index && d.sec.size+size > d.sec.limit {
		d.sec.size += size
		d.sec.tooLarge = true
		return p, nil // its text is of no use to anyone
	}
	e.Value = d.pool.intern(value)
	e.padded = padded(value)
	e.class = classify(e.Name, e.Value, validValue(value))
	if index {
		d.table.push(e)
	}
	e.Sensitive = first&0xf0 == 0x10
	d.sec.add(&e)
	return p, nil
}

// str reads a string. The result holds until the next call.
func (d *fieldDecoder) str(p []byte) (s, rest []byte, err error) {
	if len(p) == 0 {
		return nil, nil, errTruncated
	}
	huffman := p[0]&0x80 != 0
	n := uint32(p[0] & 0x7f)
	p = p[1:]
	if n == 0x7f {
		if n, p, err = continueInt(n, p); err != nil {
			return nil, nil, err
		}
	}
	if uint64(n) > uint64(len(p)) {
		return nil, nil, errTruncated
	}
	s, rest = p[:n], p[n:]
	if huffman {
		var ok bool
		if d.scratch, ok = hpackTables.huffman.decode(d.scratch[:0], s); !ok {
			return nil, nil, errHuffman
		}
		s = d.scratch
		if cap(d.scratch) > keepScratch {
			d.scratch = nil
		}
	}
	return s, rest, nil
}

// keepScratch is the largest scratch buffer that a session keeps.
const keepScratch = 4 << 10

// continueInt reads the rest of an integer whose prefix was full (RFC 7541
// section 5.1). Four more bytes are enough for what we would accept.
func continueInt(v uint32, p []byte) (uint32, []byte, error) {
	for shift := 0; shift < 28; shift += 7 {
		if len(p) == 0 {
			return 0, nil, errTruncated
		}
		b := p[0]
		p = p[1:]
		v += uint32(b&0x7f) << shift
		if b < 0x80 {
			return v, p, nil
		}
	}
	return 0, nil, errInteger
}

// validValue: RFC 9113 section 8.2.1: no NUL, LF or CR. Eight bytes at a time it
// looks whether any could be one.
func validValue(v []byte) bool {
	for len(v) >= 8 {
		const low, high = 0x0101010101010101, 0x8080808080808080
		x := binary.LittleEndian.Uint64(v)
		if (x-low*('\r'+1))&^x&high != 0 && !validBytes(v[:8]) {
			return false
		}
		v = v[8:]
	}
	return validBytes(v)
}

func validBytes(v []byte) bool {
	for _, c := range v {
		if c == 0 || c == '\n' || c == '\r' {
			return false
		}
	}
	return true
}
