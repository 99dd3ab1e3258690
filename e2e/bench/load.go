// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// generate sends the shape's requests with headers as real traffic has them: a trace id, a request id and a token that
// no other request carries, so that HPACK's dynamic table helps nobody. It returns the latencies in µs.
func generate(ctx context.Context, addr, authority string, s shape) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		all  []float64
		errs error
	)
	for i := range s.conns {
		wg.Go(func() {
			lat, err := generateConn(ctx, addr, authority, s, uint64(i))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, lat...)
			if err != nil && errs == nil {
				errs = err
				cancel()
			}
		})
	}
	wg.Wait()
	return all, errs
}

// client is one connection of the generator: a writer that starts streams and a reader that ends them.
type client struct {
	conn    net.Conn
	framer  *http2.Framer
	out     *bufio.Writer
	enc     *hpack.Encoder
	block   bytes.Buffer
	rnd     *rand.ChaCha8
	message []byte
	fixed   []hpack.HeaderField

	mu      sync.Mutex // guards out, framer's writes and started
	started map[uint32]time.Time
}

func generateConn(ctx context.Context, addr, authority string, s shape, seed uint64) ([]float64, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	c := &client{
		conn: conn, out: bufio.NewWriterSize(conn, 64<<10), rnd: rand.NewChaCha8([32]byte{byte(seed), 1}),
		message: grpcMessage(s.body), started: map[uint32]time.Time{},
		fixed: []hpack.HeaderField{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/echo.Echo/Echo"},
			{Name: ":authority", Value: authority},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "te", Value: "trailers"},
			{Name: "user-agent", Value: "grpc-go/1.85.0"},
			{Name: "grpc-accept-encoding", Value: "gzip"},
		},
	}
	c.framer = http2.NewFramer(c.out, bufio.NewReaderSize(conn, 64<<10))
	c.enc = hpack.NewEncoder(&c.block)
	if _, err := c.out.WriteString(http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		return nil, err
	}
	if err := c.framer.WriteWindowUpdate(0, 1<<30); err != nil {
		return nil, err
	}

	n := s.requests / s.conns
	slots := make(chan struct{}, s.streams)
	for range s.streams {
		slots <- struct{}{}
	}
	lat := make([]float64, 0, n)
	read := make(chan error, 1)
	go func() { read <- c.read(n, &lat, slots) }()

	var tick *time.Ticker
	if s.rate > 0 {
		tick = time.NewTicker(time.Duration(s.conns) * time.Second / time.Duration(s.rate))
		defer tick.Stop()
	}
	for i := range n {
		if tick != nil {
			<-tick.C
		}
		select {
		case <-slots:
		default:
			// Nothing more may start: what was written must be on the wire before the wait.
			c.mu.Lock()
			err := c.out.Flush()
			c.mu.Unlock()
			if err != nil {
				return nil, err
			}
			select {
			case <-slots:
			case err := <-read:
				return lat, err
			}
		}
		if err := c.request(uint32(2*i+1), tick != nil); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	err = c.out.Flush()
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return lat, <-read
}

func (c *client) request(id uint32, flush bool) error {
	c.block.Reset()
	for _, f := range c.fixed {
		if err := c.enc.WriteField(f); err != nil {
			return err
		}
	}
	for _, f := range [...]hpack.HeaderField{
		{Name: "traceparent", Value: "00-" + c.hex(32) + "-" + c.hex(16) + "-01"},
		{Name: "x-request-id", Value: c.hex(32)},
		{Name: "authorization", Value: "Bearer " + c.hex(793)},
	} {
		if err := c.enc.WriteField(f); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started[id] = time.Now()
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true}); err != nil {
		return err
	}
	if err := c.framer.WriteData(id, true, c.message); err != nil {
		return err
	}
	if flush {
		return c.out.Flush()
	}
	return nil
}

func (c *client) hex(n int) string {
	const digits = "0123456789abcdef"
	b := make([]byte, n)
	for i := 0; i < n; {
		for v := c.rnd.Uint64(); v != 0 && i < n; v >>= 4 {
			b[i] = digits[v&15]
			i++
		}
	}
	return string(b)
}

func (c *client) read(n int, lat *[]float64, slots chan<- struct{}) error {
	status := map[uint32]string{}
	var id uint32
	dec := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			status[id] = f.Value
		}
	})
	for len(*lat) < n {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d of %d responses: %w", len(*lat), n, err)
		}
		id = f.Header().StreamID
		ended := false
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if !f.HeadersEnded() {
				return fmt.Errorf("stream %d: the generator does not expect CONTINUATION in a response", id)
			}
			if _, err := dec.Write(f.HeaderBlockFragment()); err != nil {
				return err
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.mu.Lock()
				err = errors.Join(c.framer.WriteSettingsAck(), c.out.Flush())
				c.mu.Unlock()
			}
		case *http2.PingFrame:
			c.mu.Lock()
			err = errors.Join(c.framer.WritePing(true, f.Data), c.out.Flush())
			c.mu.Unlock()
		case *http2.RSTStreamFrame:
			return fmt.Errorf("stream %d was reset: %v", id, f.ErrCode)
		case *http2.GoAwayFrame:
			return fmt.Errorf("GOAWAY: %v %s", f.ErrCode, f.DebugData())
		}
		if err != nil {
			return err
		}
		if ended {
			if s := status[id]; s != "0" {
				return fmt.Errorf("stream %d ended with grpc-status %s", id, strconv.Quote(s))
			}
			delete(status, id)
			c.mu.Lock()
			*lat = append(*lat, float64(time.Since(c.started[id]).Nanoseconds())/1e3)
			delete(c.started, id)
			c.mu.Unlock()
			slots <- struct{}{}
		}
	}
	return nil
}
