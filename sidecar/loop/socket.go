// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Accept takes one connection from a listening socket: non-blocking,
// close-on-exec. Errno EAGAIN: none is waiting.
func (f *FD) Accept() (fd int, peer netip.AddrPort, errno unix.Errno) {
	for {
		fd, sa, err := unix.Accept4(f.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == nil {
			return fd, fromSockaddr(sa), 0
		}
		if !errors.As(err, &errno) {
			return -1, netip.AddrPort{}, unix.EINVAL // cannot be: unix returns Errno
		}
		if errno != unix.EINTR {
			return -1, netip.AddrPort{}, errno
		}
	}
}

// DialHandler is told once how a Dial went. The FD is his; err says what and where.
type DialHandler interface {
	Dialed(now time.Time, fd *FD, err error)
}

// Dialing is a connect that is under way.
type Dialing struct {
	loop  *Loop
	fd    *FD
	addr  netip.AddrPort
	h     DialHandler
	timer Timer
	limit time.Duration
}

// Dial starts a TCP connect. The handler is never called before Dial has
// returned. An error at once (no route, no descriptor left) comes through it as well.
func (l *Loop) Dial(addr netip.AddrPort, timeout time.Duration, h DialHandler) *Dialing {
	d := &Dialing{loop: l, addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), h: h, limit: timeout}
	if err := d.start(); err != nil {
		d.fd = nil
		l.SetTimer(&d.timer, l.now, dialFailed{d, err})
		return d
	}
	l.SetTimer(&d.timer, l.now.Add(timeout), d)
	return d
}

func (d *Dialing) start() error {
	family, sa := unix.AF_INET, unix.Sockaddr(nil)
	if a := d.addr.Addr(); a.Is4() {
		sa = &unix.SockaddrInet4{Port: int(d.addr.Port()), Addr: a.As4()}
	} else if a.Is6() && a.Zone() == "" {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(d.addr.Port()), Addr: a.As16()}
	} else {
		return fmt.Errorf("dial %s: not an address that can be dialled", d.addr)
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("dial %s: socket: %w", d.addr, err)
	}
	// The answer to the first frame must not wait for an ACK (Nagle): the loop batches already.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err := unix.Connect(fd, sa); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return fmt.Errorf("dial %s: %w", d.addr, err)
	}
	if d.fd, err = d.loop.Register(fd, d); err != nil {
		unix.Close(fd)
		return fmt.Errorf("dial %s: %w", d.addr, err)
	}
	return nil
}

// Ready implements Handler: connected, or refused.
func (d *Dialing) Ready(now time.Time, ev Events) {
	if ev&(Writable|HungUp) == 0 {
		return
	}
	soerr, err := unix.GetsockoptInt(d.fd.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && soerr != 0 {
		err = unix.Errno(soerr)
	}
	if err != nil {
		d.finish(now, fmt.Errorf("dial %s: %w", d.addr, err))
		return
	}
	d.finish(now, nil)
}

// Expired implements TimerHandler: the connect took too long.
func (d *Dialing) Expired(now time.Time, _ *Timer) {
	d.finish(now, fmt.Errorf("dial %s: no answer in %s: %w", d.addr, d.limit, unix.ETIMEDOUT))
}

func (d *Dialing) finish(now time.Time, err error) {
	h, fd := d.h, d.fd
	d.h, d.fd = nil, nil
	d.loop.StopTimer(&d.timer)
	if err != nil {
		if fd != nil {
			fd.Close()
		}
		fd = nil
	}
	h.Dialed(now, fd, err)
}

// Cancel gives the connect up; its handler is not called any more.
func (d *Dialing) Cancel() {
	if d.h == nil {
		return
	}
	d.h = nil
	d.loop.StopTimer(&d.timer)
	if d.fd != nil {
		d.fd.Close()
		d.fd = nil
	}
}

// dialFailed brings an error of Dial itself to the handler in the next turn.
type dialFailed struct {
	d   *Dialing
	err error
}

func (f dialFailed) Expired(now time.Time, _ *Timer) { f.d.finish(now, f.err) }

// LocalAddr is the socket's own address; the zero value when the kernel does not tell.
func (f *FD) LocalAddr() netip.AddrPort {
	sa, err := unix.Getsockname(f.fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return fromSockaddr(sa)
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
