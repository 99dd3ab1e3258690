// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package h2

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// plainFields turns a section into what x/net's decoder would give.
func plainFields(fields []field) []field {
	out := slices.Clone(fields)
	for i := range out {
		out[i].Value = trimValue(out[i].Value)
	}
	return out
}

func randomFields(rnd *rand.Rand) []field {
	names := []string{
		":method", ":path", ":status", "content-type", "x-request-id", "traceparent", "authorization",
		"grpc-timeout", "te", "a", "b", "c", "accept-encoding", strings.Repeat("n", 200),
	}
	var fields []field
	for range rnd.IntN(12) {
		f := field{Name: names[rnd.IntN(len(names))], Sensitive: rnd.IntN(10) == 0}
		switch rnd.IntN(5) {
		case 0:
			f.Value = "POST"
		case 1:
			f.Value = fmt.Sprint("v", rnd.IntN(20))
		case 2:
			b := make([]byte, rnd.IntN(100))
			for i := range b {
				b[i] = byte(rnd.IntN(256))
			}
			f.Value = string(b)
		case 3:
			f.Value = strings.Repeat("x", rnd.IntN(5000))
		}
		fields = append(fields, f)
	}
	return fields
}

// TestEncoder: x/net's decoder reads what our encoder writes, whatever the
// table's size does meanwhile.
func TestEncoder(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var enc fieldEncoder
		limit := []int{4096, 0, 100, 65536}[seed%4]
		enc.init(limit)
		allowed := uint32(4096)
		dec := hpack.NewDecoder(4096, nil)
		for i := range 300 {
			if rnd.IntN(20) == 0 {
				for range 1 + rnd.IntN(3) {
					allowed = uint32(rnd.IntN(10000))
					enc.setMaxTableSize(allowed)
				}
				dec.SetAllowedMaxDynamicTableSize(allowed)
			}
			want := randomFields(rnd)
			if rnd.IntN(4) == 0 {
				want = slices.Clone(requestFields)
			}
			block := enc.append(nil, want)
			got, err := dec.DecodeFull(block)
			if err != nil {
				t.Fatalf("seed %d, block %d: %v", seed, i, err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, block %d:\n got %q\nwant %q", seed, i, got, want)
			}
			if enc.table.size > enc.table.maxSize || enc.table.maxSize > min(allowed, uint32(limit)) {
				t.Fatalf("seed %d: the table has %d bytes of %d", seed, enc.table.size, enc.table.maxSize)
			}
		}
	}
}

// TestEncoderSizeUpdate: RFC 7541 section 4.2 wants the least size told, and the last.
func TestEncoderSizeUpdate(t *testing.T) {
	var enc fieldEncoder
	enc.init(4096)
	f := fieldsOf("a", "b")
	enc.append(nil, f)
	for _, c := range []struct {
		sizes []uint32
		want  string
	}{
		{[]uint32{4096}, "be"},                    // unchanged: indexed
		{[]uint32{100000}, "be"},                  // we use no more
		{[]uint32{0, 4096}, "203fe11f4001610162"}, // emptied meanwhile
		{[]uint32{50, 30, 40}, "203f09000161" + "0162"},
		{[]uint32{0}, "20000161" + "0162"},
	} {
		for _, n := range c.sizes {
			enc.setMaxTableSize(n)
		}
		if got := fmt.Sprintf("%x", enc.append(nil, f)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.sizes, got, c.want)
		}
		if again := enc.append(nil, f); again[0]&0xe0 == 0x20 {
			t.Errorf("%v: told twice", c.sizes)
		}
	}
}

// TestEncoderLearns: names whose values never repeat leave the table alone, and
// come back when they do.
func TestEncoderLearns(t *testing.T) {
	var enc fieldEncoder
	enc.init(4096)
	for i := range 200 {
		fields := append(slices.Clone(requestFields), fieldsOf("x-request-id", fmt.Sprintf("%0100d", i))...)
		block := enc.append(nil, fields)
		if i > 100 && len(block) > 8+2+100+2 {
			t.Fatalf("request %d: %d bytes: the other fields were evicted", i, len(block))
		}
	}
	added := enc.table.added
	enc.append(nil, fieldsOf("x-request-id", "one"))
	if enc.table.added != added {
		t.Error("a unique value was put into the table")
	}
	enc.append(nil, fieldsOf("x-request-id", "one"))
	if b := enc.append(nil, fieldsOf("x-request-id", "one")); len(b) != 1 {
		t.Errorf("a value that repeats is not indexed: %x", b)
	}
	// A token that stays the same for long is worth its bytes once.
	token := fieldsOf("authorization", strings.Repeat("t", 800))
	enc.append(nil, token)
	if b := enc.append(nil, token); len(b) > 2 {
		t.Errorf("a token that repeats costs %d bytes", len(b))
	}
}

// TestDecoder: our decoder reads what x/net's encoder writes.
func TestDecoder(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var buf bytes.Buffer
		enc := hpack.NewEncoder(&buf)
		var dec fieldDecoder
		dec.init(&Pool{}, 1<<30)
		dec.allow(65536, true)
		enc.SetMaxDynamicTableSizeLimit(65536)
		for i := range 300 {
			if rnd.IntN(20) == 0 {
				enc.SetMaxDynamicTableSize(uint32(rnd.IntN(10000)))
			}
			want := randomFields(rnd)
			if len(want) == 0 || rnd.IntN(4) == 0 {
				want = slices.Clone(requestFields)
			}
			buf.Reset()
			for _, f := range want {
				if err := enc.WriteField(f); err != nil {
					t.Fatal(err)
				}
			}
			sec, err := dec.decode(buf.Bytes())
			if err != nil {
				t.Fatalf("seed %d, block %d: %v", seed, i, err)
			}
			if !slices.Equal(sec.fields, plainFields(want)) {
				t.Fatalf("seed %d, block %d:\n got %q\nwant %q", seed, i, sec.fields, want)
			}
		}
	}
}

func TestHuffman(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 3000 {
		b := make([]byte, rnd.IntN(60))
		for j := range b {
			if b[j] = byte(rnd.IntN(256)); i%2 == 0 {
				b[j] = "abcdefghijklmnopqrstuvwxyzABC0123456789-_./ "[rnd.IntN(43)]
			}
		}
		code := hpack.AppendHuffmanString(nil, string(b))
		got, ok := hpackTables.huffman.decode([]byte("before"), code)
		if !ok || string(got) != "before"+string(b) {
			t.Fatalf("%q: got %q, %t", b, got, ok)
		}
		// Any change must be judged as x/net does.
		if len(code) > 0 {
			code[rnd.IntN(len(code))] ^= byte(1 << rnd.IntN(8))
			compareHuffman(t, code)
		}
	}
	for _, bad := range []string{"\xff", "\xff\xff", "\xff\xff\xff\xff", "\xff\xff\xff\xff\xff\xff\xff\xff", "\x00", "\xfe", "\x1f\xff"} {
		compareHuffman(t, []byte(bad))
	}
}

func compareHuffman(t *testing.T, code []byte) {
	t.Helper()
	want, err := hpack.HuffmanDecodeToString(code)
	got, ok := hpackTables.huffman.decode(nil, code)
	if ok != (err == nil) || ok && string(got) != want {
		t.Fatalf("%x: got %q, %t; x/net %q, %v", code, got, ok, want, err)
	}
}

// TestDecoderTableSize: what our SETTINGS_HEADER_TABLE_SIZE demands.
func TestDecoderTableSize(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		p := newRawPeer(t, Server, &Config{DecoderTableSize: -1})
		p.frames = nil
		p.out.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		p.check(p.fr.WriteSettings())
		p.request(1, true, "a", "b")
		p.request(3, true, "a", "b")
		p.wantFrame("the default table until the ACK", "SETTINGS ACK")
		p.check(p.fr.WriteSettingsAck())
		p.henc.SetMaxDynamicTableSizeLimit(0)
		p.request(5, true, "a", "b")
		p.wantIdle("the peer reduced its table")
		if len(p.streams) != 3 {
			t.Fatal("requests are missing")
		}
	})
	t.Run("the peer does not reduce its table", func(t *testing.T) {
		p := newPeer(t, Server, &Config{DecoderTableSize: 100})
		p.request(1, true)
		p.wantFailed("RFC 7541 section 4.2", compress)
	})
	t.Run("an update at the end of a block", func(t *testing.T) {
		p := newPeer(t, Server, nil)
		raw(p, 1, endHeaders|endStream, 1, string(p.block(get...))+"\x20")
		p.wantFailed("RFC 7541 section 4.2", compress)
	})
	t.Run("more is used when more is offered", func(t *testing.T) {
		p := newPeer(t, Server, &Config{DecoderTableSize: 65536})
		p.henc.SetMaxDynamicTableSizeLimit(65536)
		p.henc.SetMaxDynamicTableSize(65536)
		p.request(1, true, "a", strings.Repeat("x", 10000))
		p.request(3, true, "a", strings.Repeat("x", 10000))
		p.wantIdle("no fault")
		if n := len(p.streams[3].fields[Response]); n != 5 {
			t.Fatalf("%d fields", n)
		}
	})
}

func TestInterning(t *testing.T) {
	var p Pool
	a := p.intern([]byte("some value"))
	if n := testing.AllocsPerRun(100, func() { p.intern([]byte("some value")) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if a != "some value" || p.intern(nil) != "" {
		t.Error("not the value")
	}
	long := bytes.Repeat([]byte("x"), maxIntern+1)
	if p.intern(long) != string(long) {
		t.Error("a long one")
	}
}

// FuzzDecoder holds our decoder against x/net's: each takes what the other takes.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("\x82\x86\x84\x41\x0f\x77\x77\x77\x2e\x65\x78\x61\x6d\x70\x6c\x65\x2e\x63\x6f\x6d"), []byte("\x82\x86\x84\xbe\x58\x08no-cache"))
	f.Add([]byte("\x20\x3f\xe1\x1f\x40\x01a\x01b"), []byte("\x3f\x11\xbe"))
	f.Add([]byte("\x40\x82\xff\xff\x81\xff"), []byte("\x10\x01a\x83\x1f\xff\xff"))
	f.Add([]byte("\x7f\x80\x01\x01b"), []byte("\x1f\x80\x80\x80\x80\x01"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var dec fieldDecoder
		dec.init(&Pool{}, 1<<30)
		dec.allow(4096, true)
		judge := hpack.NewDecoder(4096, nil)
		for _, block := range [][]byte{first, second, second} {
			want, judgeErr := judge.DecodeFull(block)
			sec, err := dec.decode(block)
			if dec.table.size > dec.table.maxSize || dec.table.maxSize > 4096 {
				t.Fatalf("the table has %d bytes of %d", dec.table.size, dec.table.maxSize)
			}
			if err != nil && judgeErr == nil {
				// Where we are stricter, on purpose.
				if errors.Is(err, errInteger) || errors.Is(err, errSizePlace) || errors.Is(err, errIndex) {
					return
				}
				t.Fatalf("%x: we say %v, x/net takes it", block, err)
			}
			if err == nil && judgeErr != nil {
				if len(block) > 1 && block[0]&0xe0 == 0x20 && strings.Contains(judgeErr.Error(), "MUST occur at the beginning") {
					return // x/net takes a second size update only with an empty table
				}
				t.Fatalf("%x: we take it, x/net says %v", block, judgeErr)
			}
			if err != nil {
				return
			}
			if !slices.Equal(sec.fields, plainFields(want)) {
				t.Fatalf("%x:\n got %q\nwant %q", block, sec.fields, want)
			}
		}
	})
}

// FuzzEncoder has x/net's decoder judge what our encoder writes.
func FuzzEncoder(f *testing.F) {
	f.Add([]byte("a\x00b\x01c\x00dd\x02e\x00f"), uint16(100))
	f.Add([]byte(":path\x00/x\x01:path\x00/x\x01te\x00trailers"), uint16(0))
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		var enc fieldEncoder
		enc.init(int(size))
		dec := hpack.NewDecoder(4096, nil)
		for round := range 3 {
			var fields []field
			for part := range bytes.SplitSeq(text, []byte{1}) {
				name, value, _ := bytes.Cut(part, []byte{0})
				sensitive := len(value) > 0 && value[0] == 2
				fields = append(fields, field{Name: string(name), Value: string(value), Sensitive: sensitive})
			}
			got, err := dec.DecodeFull(enc.append(nil, fields))
			if err != nil || !slices.Equal(got, fields) {
				t.Fatalf("round %d: %v\n got %q\nwant %q", round, err, got, fields)
			}
			enc.setMaxTableSize(uint32(size) / uint32(round+1))
		}
	})
}
