// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// FuzzRelay lets both sides send anything that has the form of frames. Whatever it is, each
// stream ends on both sides and nothing stays behind.
func FuzzRelay(f *testing.F) {
	rst := []byte{3, 0, 1, 4, 0, 0, 0, 8}
	f.Add([]byte{}, []byte{})
	f.Add([]byte{0, 1, 1, 5, 'h', 'e', 'l', 'l', 'o'}, []byte{1, 4, 1, 1, 0x88})
	f.Add(rst, rst)
	f.Add([]byte{}, append([]byte{1, 4, 1, 1, 0x88, 0, 0, 1, 3, 'a', 'b', 'c'}, rst...))
	f.Add([]byte{8, 0, 1, 4, 0, 0, 1, 0}, []byte{7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{4, 0, 0, 6, 0, 4, 0, 0, 0, 0}, []byte{4, 0, 0, 6, 0, 3, 0, 0, 0, 0})
	r := newRig(f)
	lis := listen(f)
	f.Cleanup(func() { lis.Close() })
	scripts := make(chan []byte, 1)
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go playServer(conn, scripts)
		}
	}()
	r.serve(lis.Addr().String())
	f.Fuzz(func(t *testing.T, app, server []byte) {
		r.t = t
		if len(app) > 4096 || len(server) > 4096 {
			return
		}
		select {
		case <-scripts: // of a run whose request did not arrive
		default:
		}
		scripts <- frames(server)
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		p := newPeer(t, conn)
		_, _ = conn.Write([]byte(http2.ClientPreface))
		p.do(p.fr.WriteSettings())
		p.request(1, false)
		p.request(3, true)
		_, _ = conn.Write(frames(app))
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
		for err == nil {
			_, err = conn.Read(make([]byte, 4096))
		}
		conn.Close()
		r.quiet()
		eventually(t, "no connection is left", func() bool { return len(r.snapshot().Downstream) == 0 })
	})
}

// frames makes frames of a script: type, flags, stream, length, payload.
func frames(script []byte) (out []byte) {
	for len(script) >= 4 {
		n := min(int(script[3]), len(script)-4)
		out = append(out, 0, 0, byte(n), script[0]%12, script[1], 0, 0, 0, script[2]%8)
		out = append(out, script[4:4+n]...)
		script = script[4+n:]
	}
	return out
}

// playServer plays one script for each request that comes.
func playServer(conn net.Conn, scripts chan []byte) {
	defer conn.Close()
	fr := http2.NewFramer(conn, conn)
	if _, err := conn.Read(make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	if fr.WriteSettings() != nil || fr.WriteSettingsAck() != nil {
		return
	}
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if _, ok := f.(*http2.HeadersFrame); !ok {
			continue
		}
		select {
		case s := <-scripts:
			if _, err := conn.Write(s); err != nil {
				return
			}
		default:
		}
	}
}
