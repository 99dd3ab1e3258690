// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package listener

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/sidecar/loop"
)

// Conn is an accepted connection whose protocol is known.
type Conn struct {
	FD   *loop.FD
	Peer netip.AddrPort
	// Orig is what the app dialled; not valid when it dialled the listener itself.
	Orig netip.AddrPort
	// First was read from FD already; valid during the call only.
	First []byte
	// Ended: the app has sent its end of stream behind First.
	Ended bool
	// Silent: Config.SniffTimeout has passed, and First is nothing or a part of
	// HTTP/2's preface. Only with Raw.
	Silent bool
}

// Handler takes the connections over. It owns Conn.FD from then on.
type Handler interface {
	HTTP2(now time.Time, c Conn)
	Raw(now time.Time, c Conn)
}

// Config of a Listener.
type Config struct {
	// Logger, Loop and Handler; required.
	Logger  *slog.Logger
	Loop    *loop.Loop
	Handler Handler
	// OriginalDst finds out where an accepted connection was going. It is called
	// in the loop. Nil: no connection has an original destination.
	OriginalDst func(fd int) (netip.AddrPort, error)
	// ErrNoOriginalDst is what OriginalDst returns for a connection that was not redirected.
	ErrNoOriginalDst error
	// SniffTimeout is how long to wait for the first bytes. Zero: 1 s.
	SniffTimeout time.Duration
	// AcceptBudget bounds the connections taken in one turn. Zero: 64.
	AcceptBudget int
	// MaxConns bounds the connections whose protocol is not known yet; beyond
	// it they are closed. Zero: 4096.
	MaxConns int
}

// Stats counts connections.
type Stats struct {
	Accepted     uint64
	HTTP2        uint64
	Raw          uint64
	NoDescriptor uint64 // closed since no descriptor was left
	TooMany      uint64 // closed since Config.MaxConns were undecided
	LookupErrors uint64
	AcceptErrors uint64
	Undecided    int // now
}

// Listener accepts on any number of sockets.
type Listener struct {
	cfg   Config
	socks []*socket
	spare int // a descriptor to give up when there is no other; -1 while given up
	stats Stats

	undecided map[*sniffer]struct{}
	mutedTill time.Time // no log of a lack of descriptors until then
}

// New makes a Listener.
func New(cfg Config) (*Listener, error) {
	var errs []error
	if cfg.Logger == nil {
		errs = append(errs, errors.New("listener: Config.Logger is required"))
	}
	if cfg.Loop == nil {
		errs = append(errs, errors.New("listener: Config.Loop is required"))
	}
	if cfg.Handler == nil {
		errs = append(errs, errors.New("listener: Config.Handler is required"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.SniffTimeout <= 0 {
		cfg.SniffTimeout = time.Second
	}
	if cfg.AcceptBudget <= 0 {
		cfg.AcceptBudget = 64
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 4096
	}
	l := &Listener{cfg: cfg, undecided: map[*sniffer]struct{}{}, spare: -1}
	l.openSpare()
	return l, nil
}

// Stats so far.
func (l *Listener) Stats() Stats {
	s := l.stats
	s.Undecided = len(l.undecided)
	return s
}

// Add accepts on a bound TCP listener. Its descriptor is duplicated: f stays the caller's.
func (l *Listener) Add(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("listener: %s: %w", f.Name(), err)
	}
	dup := -1
	var dupErr error
	if err := raw.Control(func(fd uintptr) {
		dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		dupErr = err
	}
	if dupErr != nil {
		return fmt.Errorf("listener: duplicate the descriptor of %s: %w", f.Name(), dupErr)
	}
	// Shared with every process that holds this socket, the supervisor, and wanted so there too.
	if err := unix.SetNonblock(dup, true); err != nil {
		unix.Close(dup)
		return fmt.Errorf("listener: make %s non-blocking: %w", f.Name(), err)
	}
	s := &socket{l: l}
	if s.fd, err = l.cfg.Loop.Register(dup, s); err != nil {
		unix.Close(dup)
		return fmt.Errorf("listener: %s: %w", f.Name(), err)
	}
	l.socks = append(l.socks, s)
	return nil
}

// Addrs are the addresses that are listened on.
func (l *Listener) Addrs() []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range l.socks {
		all = append(all, s.fd.LocalAddr())
	}
	return all
}

// Pause takes no more connections; they wait in the kernel, for another process perhaps.
func (l *Listener) Pause() {
	for _, s := range l.socks {
		if fd := s.fd.Release(); fd >= 0 {
			unix.Close(fd)
		}
	}
	l.socks = nil
}

// Close ends accepting and drops connections whose protocol is not known yet.
func (l *Listener) Close() {
	l.Pause()
	for s := range l.undecided {
		s.abandon()
	}
	if l.spare >= 0 {
		unix.Close(l.spare)
		l.spare = -1
	}
}

// socket is one listening socket.
type socket struct {
	l  *Listener
	fd *loop.FD
}

// Ready implements loop.Handler.
func (s *socket) Ready(now time.Time, _ loop.Events) {
	l := s.l
	for range l.cfg.AcceptBudget {
		fd, peer, errno := s.fd.Accept()
		switch errno {
		case 0:
			l.stats.Accepted++
			l.accepted(now, fd, peer)
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE:
			if !l.shed(now, s.fd) {
				return
			}
		case unix.ECONNABORTED, unix.EPROTO, unix.EPERM, unix.ENETDOWN, unix.EHOSTDOWN,
			unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENONET, unix.ENOPROTOOPT, unix.EOPNOTSUPP:
			// accept(2): errors of the new connection; "treat them like EAGAIN by retrying".
			l.stats.AcceptErrors++
		default:
			l.stats.AcceptErrors++
			l.cfg.Logger.Error("accept failed", "error", errno)
			return
		}
	}
	s.fd.Again()
}

func (l *Listener) accepted(now time.Time, fd int, peer netip.AddrPort) {
	if len(l.undecided) >= l.cfg.MaxConns {
		l.stats.TooMany++
		unix.Close(fd)
		return
	}
	// A response must not wait for an ACK (Nagle): the loop batches already.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	s := &sniffer{l: l, conn: Conn{Peer: peer, Orig: l.original(fd)}}
	var err error
	if s.conn.FD, err = l.cfg.Loop.Register(fd, s); err != nil {
		l.stats.AcceptErrors++
		l.cfg.Logger.Error("cannot watch an accepted connection", "error", err)
		unix.Close(fd)
		return
	}
	l.undecided[s] = struct{}{}
	l.cfg.Loop.SetTimer(&s.timer, now.Add(l.cfg.SniffTimeout), s)
}

func (l *Listener) original(fd int) netip.AddrPort {
	if l.cfg.OriginalDst == nil {
		return netip.AddrPort{}
	}
	orig, err := l.cfg.OriginalDst(fd)
	if err != nil {
		if l.cfg.ErrNoOriginalDst == nil || !errors.Is(err, l.cfg.ErrNoOriginalDst) {
			l.stats.LookupErrors++
			l.cfg.Logger.Warn("cannot read a connection's original destination", "error", err)
		}
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(orig.Addr().Unmap(), orig.Port())
}

// shed closes one waiting connection with the help of the spare descriptor.
// False: even that was not possible, so the rest waits for the next connection's edge.
func (l *Listener) shed(now time.Time, sock *loop.FD) bool {
	l.stats.NoDescriptor++
	if now.After(l.mutedTill) {
		l.mutedTill = now.Add(time.Minute)
		l.cfg.Logger.Error("no file descriptor is left: connections of the app are closed; raise the limit (ulimit -n) of the sidecar",
			"closed_so_far", l.stats.NoDescriptor)
	}
	if l.spare < 0 {
		l.openSpare()
	}
	if l.spare < 0 {
		return false
	}
	unix.Close(l.spare)
	l.spare = -1
	if fd, _, errno := sock.Accept(); errno == 0 {
		unix.Close(fd)
	}
	l.openSpare()
	return true
}

func (l *Listener) openSpare() {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	l.spare = fd
}
