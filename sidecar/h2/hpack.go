// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"golang.org/x/net/http2/hpack"
)

type fieldDecoder struct {
	d   *hpack.Decoder
	sec section
}

func (d *fieldDecoder) init(tableSize int, maxList uint32) {
	d.d = hpack.NewDecoder(uint32(tableSize), func(f hpack.HeaderField) {
		f.Value = trimValue(f.Value)
		d.sec.add(f, classify(f.Name, f.Value))
	})
	d.sec.limit = maxList
}

func (d *fieldDecoder) decode(block []byte) (*section, error) {
	d.sec.reset()
	if _, err := d.d.Write(block); err != nil {
		return nil, err
	}
	if err := d.d.Close(); err != nil {
		return nil, err
	}
	return &d.sec, nil
}

type fieldEncoder struct {
	e     *hpack.Encoder
	buf   []byte
	limit uint32
}

func (e *fieldEncoder) Write(p []byte) (int, error) {
	e.buf = append(e.buf, p...)
	return len(p), nil
}

func (e *fieldEncoder) init(limit int) {
	e.e = hpack.NewEncoder(e)
	e.limit = uint32(limit)
	e.e.SetMaxDynamicTableSizeLimit(e.limit)
}

func (e *fieldEncoder) setMaxTableSize(n uint32) {
	e.e.SetMaxDynamicTableSize(min(n, e.limit))
}

func (e *fieldEncoder) append(dst []byte, fields []hpack.HeaderField) []byte {
	e.buf = dst
	for _, f := range fields {
		_ = e.e.WriteField(f) // the buffer's Write cannot fail
	}
	dst, e.buf = e.buf, nil
	return dst
}
