// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package loop

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLoop(t testing.TB, edit func(*Config)) *Loop {
	t.Helper()
	cfg := Config{Logger: slog.New(slog.DiscardHandler)}
	if edit != nil {
		edit(&cfg)
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// running starts the loop and ends it with the test.
func running(t testing.TB, edit func(*Config)) *Loop {
	t.Helper()
	l := newLoop(t, edit)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// in runs f in the loop and waits for it.
func in(t testing.TB, l *Loop, f func(now time.Time)) {
	t.Helper()
	ch := make(chan struct{})
	if !l.Post(func(now time.Time) { f(now); close(ch) }) {
		t.Fatal("the loop has ended")
	}
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatal("the loop did not take its mail in 10 s")
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestPostRunsInOrder(t *testing.T) {
	l := running(t, nil)
	var got []int
	for i := range 1000 {
		l.Post(func(time.Time) { got = append(got, i) })
	}
	in(t, l, func(time.Time) {})
	if !slices.IsSorted(got) || len(got) != 1000 {
		t.Errorf("%d functions ran, sorted: %v", len(got), slices.IsSorted(got))
	}
}

func TestPostFromWithin(t *testing.T) {
	l := running(t, nil)
	ran := make(chan struct{})
	l.Post(func(time.Time) { l.Post(func(time.Time) { close(ran) }) })
	<-ran
}

func TestPostAfterTheEnd(t *testing.T) {
	l := newLoop(t, nil)
	l.Stop()
	if err := l.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if l.Post(func(time.Time) {}) {
		t.Error("Post says that it will be called")
	}
}

func TestHeartbeat(t *testing.T) {
	l := running(t, func(c *Config) { c.Heartbeat = 5 * time.Millisecond })
	before := l.Turns()
	eventually(t, "an idle loop turns", func() bool { return l.Turns() > before+5 })
}

func TestIdleLoopSleeps(t *testing.T) {
	l := running(t, nil)
	in(t, l, func(time.Time) {})
	before := l.Turns()
	time.Sleep(600 * time.Millisecond)
	if n := l.Turns() - before; n > 10 {
		t.Errorf("%d turns in 600 ms without work, want 2 or 3", n)
	}
}

type firing struct{ f func(now time.Time, t *Timer) }

func (f firing) Expired(now time.Time, t *Timer) { f.f(now, t) }

func TestTimersFireInOrderAndNotEarly(t *testing.T) {
	l := running(t, nil)
	const n = 200
	timers := make([]Timer, n)
	fired := make(chan time.Duration, n)
	in(t, l, func(now time.Time) {
		for _, i := range rand.Perm(n) {
			at := now.Add(time.Duration(i) * 200 * time.Microsecond)
			l.SetTimer(&timers[i], at, firing{func(now time.Time, _ *Timer) {
				if now.Before(at) {
					t.Errorf("timer %d fired %s early", i, at.Sub(now))
				}
				fired <- time.Duration(i)
			}})
		}
	})
	last := time.Duration(-1)
	for range n {
		select {
		case d := <-fired:
			if d < last {
				t.Fatalf("timer %d after %d", d, last)
			}
			last = d
		case <-time.After(5 * time.Second):
			t.Fatal("a timer did not fire")
		}
	}
}

func TestTimersStopAndMove(t *testing.T) {
	l := running(t, nil)
	var stopped, moved, again Timer
	fired := make(chan string, 10)
	say := func(s string) firing { return firing{func(time.Time, *Timer) { fired <- s }} }
	in(t, l, func(now time.Time) {
		l.SetTimer(&stopped, now.Add(5*time.Millisecond), say("stopped"))
		l.SetTimer(&moved, now.Add(time.Hour), say("moved"))
		l.SetTimer(&moved, now.Add(10*time.Millisecond), say("moved"))
		l.StopTimer(&stopped)
		l.StopTimer(&stopped)
		l.SetTimer(&again, now, &repeat{l, 3, func() { fired <- "again" }})
	})
	for _, want := range []string{"again", "moved"} {
		if got := <-fired; got != want {
			t.Errorf("%s fired, want %s", got, want)
		}
	}
	time.Sleep(20 * time.Millisecond)
	in(t, l, func(time.Time) {
		if stopped.Set() || moved.Set() {
			t.Error("a timer is still set")
		}
	})
}

// repeat sets its timer again, for now, until it has fired n times.
type repeat struct {
	l    *Loop
	n    int
	done func()
}

func (r *repeat) Expired(now time.Time, t *Timer) {
	if r.n--; r.n == 0 {
		r.done()
		return
	}
	r.l.SetTimer(t, now, r)
}

// The heap against a plain sorted list, with everything that can be done to it.
func TestTimerHeap(t *testing.T) {
	l := newLoop(t, nil)
	defer l.Close()
	l.StopTimer(&l.beat)
	rnd := rand.New(rand.NewPCG(1, 2))
	timers := make([]Timer, 100)
	at := map[int]int{}
	for range 20_000 {
		i := rnd.IntN(len(timers))
		if rnd.IntN(3) == 0 {
			l.StopTimer(&timers[i])
			delete(at, i)
		} else {
			at[i] = rnd.IntN(1000)
			l.SetTimer(&timers[i], l.epoch.Add(time.Duration(at[i])), firing{})
		}
		if len(l.timers) != len(at) {
			t.Fatalf("%d timers, want %d", len(l.timers), len(at))
		}
		least := 1 << 30
		for _, v := range at {
			least = min(least, v)
		}
		if len(at) > 0 && l.timers[0].at != int64(least) {
			t.Fatalf("the first is at %d, want %d", l.timers[0].at, least)
		}
	}
}

// echo is a Protocol that sends back what it gets.
type echo struct {
	out      []byte
	conn     *Conn
	received int
	finished bool
	failAt   string
	aborted  error
	ended    chan error
	tick     time.Time
	ticked   chan time.Time
	mute     time.Duration // not zero: it sends nothing back, and ticks this long after what it got
}

func (e *echo) Receive(now time.Time, p []byte) error {
	e.received += len(p)
	if e.mute > 0 {
		e.tick = now.Add(e.mute)
		return nil
	}
	e.out = append(e.out, p...)
	e.conn.MarkDirty()
	if e.failAt != "" && string(p) == e.failAt {
		return errors.New("failed")
	}
	return nil
}
func (e *echo) Output() []byte                 { return e.out }
func (e *echo) Wrote(_ time.Time, n int)       { e.out = e.out[n:] }
func (e *echo) NextDeadline() time.Time        { return e.tick }
func (e *echo) Finished() bool                 { return e.finished && len(e.out) == 0 }
func (e *echo) Abort(cause error)              { e.aborted = cause }
func (e *echo) ConnEnded(_ time.Time, c error) { e.ended <- c }
func (e *echo) Tick(now time.Time) error {
	e.tick = time.Time{}
	e.ticked <- now
	return nil
}

// pair is a Conn with an echo in the loop, and the other end of its connection.
func pair(t testing.TB, l *Loop) (*echo, *net.TCPConn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	got := make(chan *echo, 1)
	in(t, l, func(time.Time) {
		l.Dial(lis.Addr().(*net.TCPAddr).AddrPort(), time.Second, dialed{func(now time.Time, fd *FD, err error) {
			if err != nil {
				t.Error(err)
				close(got)
				return
			}
			e := &echo{ended: make(chan error, 1), ticked: make(chan time.Time, 1)}
			e.conn = l.NewConn(fd, e, e)
			got <- e
		}})
	})
	c, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	e := <-got
	if e == nil {
		t.FailNow()
	}
	return e, c.(*net.TCPConn)
}

type dialed struct {
	f func(now time.Time, fd *FD, err error)
}

func (d dialed) Dialed(now time.Time, fd *FD, err error) { d.f(now, fd, err) }

func TestConnEchoesFarBeyondItsBuffers(t *testing.T) {
	l := running(t, func(c *Config) { c.ReadBuffer = 4096 })
	e, c := pair(t, l)
	const n = 8 << 20
	go func() { _, _ = c.Write(make([]byte, n)); _ = c.CloseWrite() }()
	// Nobody reads for a while: the kernel takes only half.
	time.Sleep(50 * time.Millisecond)
	got, err := io.Copy(io.Discard, c)
	if err != nil {
		t.Fatal(err)
	}
	// The end of the stream ends an echo at once, with what it had not written.
	if got == 0 || got > n {
		t.Errorf("%d bytes came back of %d", got, n)
	}
	if cause := <-e.ended; !errors.Is(cause, io.EOF) {
		t.Errorf("ended by %v, want EOF", cause)
	}
	if !errors.Is(e.aborted, io.EOF) || e.received != n {
		t.Errorf("aborted by %v after %d bytes", e.aborted, e.received)
	}
}

func TestConnFlushesWhatItSaidLast(t *testing.T) {
	l := running(t, nil)
	e, c := pair(t, l)
	in(t, l, func(time.Time) { e.failAt = "bad" })
	// Bytes that nobody will read: without lingering, close would turn into a
	// reset and destroy the last words.
	_, _ = io.WriteString(c, "bad")
	got := make([]byte, 3)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "bad" {
		t.Fatalf("got %q, %v", got, err)
	}
	_, _ = io.WriteString(c, "more that is not read")
	if _, err := c.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
	if cause := <-e.ended; cause == nil || cause.Error() != "failed" {
		t.Errorf("ended by %v", cause)
	}
	if e.aborted != nil {
		t.Errorf("a Protocol that failed by itself was aborted: %v", e.aborted)
	}
	c.Close()
	eventually(t, "its descriptor is closed", func() bool { return descriptors(t, l) == 2 })
}

func TestConnLingersNotForEver(t *testing.T) {
	l := running(t, nil)
	e, c := pair(t, l)
	in(t, l, func(now time.Time) { e.finished = true; e.conn.MarkDirty() })
	if cause := <-e.ended; !errors.Is(cause, ErrFinished) {
		t.Errorf("ended by %v", cause)
	}
	_ = c // never closed by the peer
	eventually(t, "its descriptor is closed", func() bool { return descriptors(t, l) == 2 })
}

func TestConnReset(t *testing.T) {
	l := running(t, nil)
	e, c := pair(t, l)
	_ = c.SetLinger(0)
	c.Close()
	if cause := <-e.ended; !errors.Is(cause, unix.ECONNRESET) {
		t.Errorf("ended by %v, want ECONNRESET", cause)
	}
	eventually(t, "its descriptor is closed", func() bool { return descriptors(t, l) == 2 })
}

func TestConnTicks(t *testing.T) {
	l := running(t, nil)
	e, _ := pair(t, l)
	at := time.Now().Add(20 * time.Millisecond)
	in(t, l, func(time.Time) { e.tick = at; e.conn.MarkDirty() })
	if now := <-e.ticked; now.Before(at) {
		t.Errorf("ticked %s early", at.Sub(now))
	}
}

// What was received may begin a deadline, and need no answer.
func TestConnTicksWithoutOutput(t *testing.T) {
	l := running(t, nil)
	e, c := pair(t, l)
	in(t, l, func(time.Time) { e.mute = 20 * time.Millisecond })
	if _, err := c.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.ticked:
	case <-time.After(5 * time.Second):
		t.Error("no tick within 5 s, want one after 20 ms")
	}
}

func descriptors(t testing.TB, l *Loop) (n int) {
	in(t, l, func(time.Time) { n = l.Descriptors() })
	return n
}

func TestDialErrors(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis.Close()
	refused := lis.Addr().(*net.TCPAddr).AddrPort()
	for _, c := range []struct {
		name string
		addr netip.AddrPort
		text string
	}{
		{"refused", refused, "dial " + refused.String() + ": connection refused"},
		{"no address", netip.AddrPort{}, "dial invalid AddrPort: not an address that can be dialled"},
		{"broadcast", netip.MustParseAddrPort("255.255.255.255:1"), "dial 255.255.255.255:1: network is unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := running(t, nil)
			got := make(chan error, 1)
			in(t, l, func(time.Time) {
				l.Dial(c.addr, time.Second, dialed{func(_ time.Time, fd *FD, err error) {
					if fd != nil {
						t.Error("a descriptor came with the error")
					}
					got <- err
				}})
				if len(got) > 0 {
					t.Error("the handler was called before Dial had returned")
				}
			})
			if err := <-got; err == nil || err.Error() != c.text {
				t.Errorf("got %v, want %q", err, c.text)
			}
			if n := descriptors(t, l); n != 2 {
				t.Errorf("%d descriptors, want 2", n)
			}
		})
	}
}

func TestDialCancel(t *testing.T) {
	l := running(t, nil)
	in(t, l, func(time.Time) {
		d := l.Dial(netip.MustParseAddrPort("127.0.0.1:1"), time.Second, dialed{func(time.Time, *FD, error) {
			t.Error("called after Cancel")
		}})
		d.Cancel()
		d.Cancel()
	})
	if n := descriptors(t, l); n != 2 {
		t.Errorf("%d descriptors, want 2", n)
	}
}

// The edge that says HungUp comes while more is to be read than a turn may: the
// end must be seen all the same.
func TestEndBehindTheBudget(t *testing.T) {
	for range 20 {
		l := running(t, func(c *Config) { c.ReadBuffer, c.ReadBudget = 1024, 1024 })
		e, c := pair(t, l)
		in(t, l, func(time.Time) { // the loop is busy while all of it comes
			_, _ = c.Write(make([]byte, 1500))
			_ = c.CloseWrite()
			time.Sleep(time.Millisecond)
		})
		select {
		case cause := <-e.ended:
			if !errors.Is(cause, io.EOF) {
				t.Errorf("ended by %v", cause)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the end was not seen")
		}
	}
}

// An event for a descriptor that was closed, and whose number is taken again, is dropped.
func TestDescriptorNumberUsedAgain(t *testing.T) {
	l := running(t, nil)
	var a, b, silent [2]int // nothing is ever readable on silent
	for _, p := range []*[2]int{&a, &b, &silent} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		*p = fds
		defer unix.Close(p[1])
	}
	defer unix.Close(silent[0])
	wrong := false
	in(t, l, func(time.Time) {
		var fds [2]*FD
		closeOther := func(i int) readyFunc {
			return func(_ time.Time, ev Events) {
				if ev&Readable == 0 || fds[1-i] == nil {
					return
				}
				old := fds[1-i].Raw()
				fds[1-i].Close()
				fds[1-i] = nil
				if n, err := unix.Dup(silent[0]); err == nil {
					if n != old {
						unix.Close(n)
						return
					}
					_ = unix.SetNonblock(n, true)
					_, _ = l.Register(n, readyFunc(func(_ time.Time, ev Events) { wrong = wrong || ev&Readable != 0 }))
				}
			}
		}
		fds[0], _ = l.Register(a[0], closeOther(0))
		fds[1], _ = l.Register(b[0], closeOther(1))
		_, _ = unix.Write(a[1], []byte("x"))
		_, _ = unix.Write(b[1], []byte("x"))
	})
	in(t, l, func(time.Time) {})
	in(t, l, func(time.Time) {
		if wrong {
			t.Error("the new descriptor got the old one's event")
		}
	})
}

type readyFunc func(now time.Time, ev Events)

func (f readyFunc) Ready(now time.Time, ev Events) { f(now, ev) }

// A connection that always has bytes does not keep others waiting.
func TestBudget(t *testing.T) {
	l := running(t, func(c *Config) { c.ReadBuffer, c.ReadBudget = 1024, 2048 })
	_, busy := pair(t, l)
	_, calm := pair(t, l)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, busy) }()
	go func() {
		defer close(done)
		b := make([]byte, 1<<20)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = busy.Write(b)
			}
		}
	}()
	for range 20 {
		begin := time.Now()
		_, _ = io.WriteString(calm, "ping")
		if _, err := io.ReadFull(calm, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("the calm one waited %s", d)
		}
	}
	close(stop)
	<-done
	busy.Close()
}

// BenchmarkRoundTrip is one request and response through an idle loop: wake-up,
// read, write, park.
func BenchmarkRoundTrip(b *testing.B) {
	l := running(b, nil)
	_, c := pair(b, l)
	_ = c.SetDeadline(time.Time{})
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.Write(p)
		if _, err := io.ReadFull(c, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTimer is a deadline that is set and stopped, among a thousand.
func BenchmarkTimer(b *testing.B) {
	l := newLoop(b, nil)
	defer l.Close()
	others := make([]Timer, 1000)
	for i := range others {
		l.SetTimer(&others[i], l.now.Add(time.Duration(i)*time.Millisecond), firing{})
	}
	var t Timer
	b.ReportAllocs()
	for b.Loop() {
		l.SetTimer(&t, l.now.Add(500*time.Millisecond), heartbeat{l})
		l.StopTimer(&t)
	}
}
