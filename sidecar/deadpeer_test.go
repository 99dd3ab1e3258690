// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecar

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// vanish has the kernel drop each packet that comes in on the connection: no
// ACK, no RST, no FIN. To the other side it is a pulled plug.
func (p *peer) vanish() {
	p.t.Helper()
	raw, err := p.conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	// First all of its own must be acknowledged: what it retransmits would speak for it.
	eventually(p.t, "the peer has nothing in flight", func() bool {
		var info *unix.TCPInfo
		var err error
		if cerr := raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}); cerr != nil || err != nil {
			p.t.Fatal(cerr, err)
		}
		return info.Unacked == 0
	})
	var serr error
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	if err := raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	}); err != nil || serr != nil {
		p.t.Fatal(err, serr)
	}
}

func TestDeadPeer(t *testing.T) {
	const bound = 10 * time.Second
	const lost = "HEADERS 1 end" + grpcHeaders + " grpc-status=14 grpc-message=evenkeel: lost the connection to …"
	t.Run("that owes a response", func(t *testing.T) {
		t.Parallel()
		app, srv, r := one(t, true)
		srv.vanish()
		begin := time.Now()
		app.want("streams that only wait are ended too", lost)
		if d := time.Since(begin); d > bound {
			t.Errorf("noticed after %s, want %s", d, bound)
		}
		r.quiet()
	})
	t.Run("that does not acknowledge", func(t *testing.T) {
		t.Parallel()
		app, srv, r := one(t, false)
		srv.vanish()
		begin := time.Now()
		app.data(1, false, message(100))
		app.want("data in flight", lost)
		if d := time.Since(begin); d > bound {
			t.Errorf("noticed after %s, want %s", d, bound)
		}
		r.quiet()
	})
	t.Run("that was idle before", func(t *testing.T) {
		t.Parallel()
		f := newFakeServer(t)
		r := newRig(t).serve(f.addr)
		app := r.app()
		app.request(1, true)
		srv := f.accept()
		srv.want("the first", "HEADERS 1 end…")
		srv.headers(1, true, ":status", "200", "grpc-status", "0")
		app.want("the first", "HEADERS 1 end…")
		time.Sleep(4 * time.Second) // the last acknowledgement is old by now
		srv.vanish()
		begin := time.Now()
		app.request(3, true)
		app.want("noticed", "HEADERS 3 end"+grpcHeaders+" grpc-status=14…")
		if d := time.Since(begin); d > bound {
			t.Errorf("noticed after %s, want %s", d, bound)
		}
	})
	t.Run("a quiet one that lives is left alone", func(t *testing.T) {
		t.Parallel()
		app, srv, r := one(t, true)
		app.silent("it takes its time", 12*time.Second)
		srv.headers(1, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		app.want("and answers", "HEADERS 1 end…")
		r.quiet()
	})
}
