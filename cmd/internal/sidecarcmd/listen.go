// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// sockets are the listeners that outlive the workers. The supervisor never
// accepts: a connection made while no worker runs waits in the kernel's queue.
type sockets struct {
	outbound []*os.File // 127.0.0.1, and ::1 where there is IPv6
	port     uint16     // of all outbound ones
	pod      *os.File
	debug    *os.File

	podAddr, debugAddr netip.AddrPort
}

// bind opens all listeners of cfg.
func bind(ctx context.Context, cfg *Config, log *slog.Logger) (*sockets, error) {
	s := &sockets{port: uint16(cfg.ListenPort)}
	err := s.bindOutbound(ctx, log)
	if err == nil {
		s.pod, s.podAddr, err = listen(ctx, "tcp", cfg.PodListen)
	}
	if err == nil {
		s.debug, s.debugAddr, err = listen(ctx, "tcp", cfg.DebugListen)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// bindOutbound opens the redirect's target. The redirect looks for a listener
// of the same family in the pod's network namespace, so there is one for each.
func (s *sockets) bindOutbound(ctx context.Context, log *slog.Logger) error {
	v4, addr, err := listen(ctx, "tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.port).String())
	if err != nil {
		return err
	}
	s.outbound = append(s.outbound, v4)
	s.port = addr.Port()
	v6, _, err := listen(ctx, "tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), s.port).String())
	switch {
	case err == nil:
		s.outbound = append(s.outbound, v6)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EPROTONOSUPPORT):
		log.Info("no IPv6 here: listening on IPv4 alone", "error", err)
	default:
		s.closeOutbound()
		return err
	}
	return nil
}

func (s *sockets) closeOutbound() {
	for _, f := range s.outbound {
		closeFile(f)
	}
	s.outbound = nil
}

func (s *sockets) close() {
	s.closeOutbound()
	closeFile(s.pod)
	closeFile(s.debug)
}

// closeFile closes a listener. There is nothing to flush and nobody to tell.
func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// listen makes a listening socket that is plain TCP. Go listens with MPTCP
// since 1.24, whose accepted sockets carry no socket storage: the original
// destination would be lost.
func listen(ctx context.Context, network, address string) (*os.File, netip.AddrPort, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, netip.AddrPort{}, fmt.Errorf("listen on %s: %w", address, err)
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return nil, netip.AddrPort{}, errors.Join(fmt.Errorf("listen on %s: not TCP", address), ln.Close())
	}
	addr := tcp.Addr().(*net.TCPAddr).AddrPort()
	// A descriptor of its own, so that Go's listener and its place in the
	// supervisor's poller can go.
	f, err := tcp.File()
	if err := errors.Join(err, tcp.Close()); err != nil {
		closeFile(f)
		return nil, netip.AddrPort{}, fmt.Errorf("listen on %s: %w", address, err)
	}
	return f, addr, nil
}
