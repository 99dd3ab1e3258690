// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package redirect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/redirect"
	"evenkeel.dev/redirect/origdst"
)

const (
	podEnv = "EVENKEEL_TEST_POD"

	listenerPort = redirect.DefaultListenerPort
	servicePort  = redirect.DefaultOutboundPort
)

// The pod's network: Services that nobody serves, and two addresses that a server can listen on.
var (
	clusterIP4 = netip.MustParseAddr("10.96.3.4")
	clusterIP6 = netip.MustParseAddr("fd96::4")
	serverIP4  = netip.MustParseAddr("10.99.0.1")
	serverIP6  = netip.MustParseAddr("fd99::1")
)

// pod is the inside of a pod as the kernel sees one: a network namespace, and a cgroup with one
// below it for each container. The test's process plays all containers, one after the other.
type pod struct {
	t       *testing.T
	cgroup  string
	sidecar string
	app     string
}

// inPod runs body in a process of its own in a new network namespace and a new cgroup; that
// process is this test binary again, at the same test. The test needs root.
func inPod(t *testing.T, body func(t *testing.T, p *pod)) {
	t.Helper()
	if dir := os.Getenv(podEnv); dir != "" {
		p := &pod{t: t, cgroup: dir, sidecar: filepath.Join(dir, "sidecar"), app: filepath.Join(dir, "app")}
		p.upNetwork()
		body(t, p)
		return
	}
	needRoot(t)
	dir := newCgroup(t, "pod")
	for _, sub := range []string{"sidecar", "app"} {
		mkCgroup(t, filepath.Join(dir, sub))
	}
	runIn(t, filepath.Join(dir, "app"), podEnv+"="+dir)
}

// runIn runs this test once more in a child process in the cgroup dir and a network namespace of
// its own.
func runIn(t *testing.T, dir string, env ...string) {
	t.Helper()
	app, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0],
		"-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v", "-test.count=1",
		"-test.short="+strconv.FormatBool(testing.Short()))
	// A process under the race detector lingers for a second at its end unless told otherwise.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNET,
		UseCgroupFD: true,
		CgroupFD:    int(app.Fd()),
		Pdeathsig:   syscall.SIGKILL,
	}
	err = cmd.Run()
	switch {
	case err != nil:
		t.Errorf("in the pod: %v\n%s", err, out.String())
	case !strings.Contains(out.String(), "--- PASS: "+t.Name()):
		t.Errorf("in the pod: the test did not run\n%s", out.String())
	case testing.Verbose():
		t.Logf("in the pod:\n%s", out.String())
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: attaches eBPF programs and makes cgroups and network namespaces")
	}
}

// cgroupRoot is where cgroup2 is mounted on this machine, pure or hybrid.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Fatal("no cgroup2 mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	return ""
}

// newCgroup makes a cgroup of the test's own, which goes with what is below it.
func newCgroup(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(cgroupRoot(t), fmt.Sprintf("evenkeel-test-%d-%s-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"), name))
	mkCgroup(t, dir)
	return dir
}

func mkCgroup(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rmCgroup(t, dir) })
}

// rmCgroup waits for the last process to be reaped.
func rmCgroup(t *testing.T, dir string) {
	deadline := time.Now().Add(15 * time.Second)
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("cgroup left behind: %v", err)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *pod) upNetwork() {
	p.t.Helper()
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", serverIP4.String() + "/32", "dev", "lo"},
		{"addr", "add", serverIP6.String() + "/128", "dev", "lo", "nodad"},
	} {
		if out, err := exec.CommandContext(p.t.Context(), "ip", args...).CombinedOutput(); err != nil {
			p.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	waitRoute(p.t, "::1")
	waitRoute(p.t, serverIP6.String())
}

// waitRoute waits until an IPv6 address of this namespace can be reached: the kernel enters its
// route from a work queue, some time after the address was accepted.
func waitRoute(t *testing.T, addr string) {
	t.Helper()
	var last error
	eventually(t, "a route to "+addr, func() bool {
		c, err := net.Dial("udp", net.JoinHostPort(addr, "9"))
		if err == nil {
			c.Close()
		}
		last = err
		return err == nil
	}, func() any { return last })
}

// enter moves this process into the cgroup: what it does from now on is done by that container.
func enter(t *testing.T, cgroup string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Fatal(err)
	}
}

// attach attaches to the pod's cgroup, with defaults where cfg has none.
func (p *pod) attach(cfg redirect.Config) *redirect.Attachment {
	p.t.Helper()
	if cfg.Cgroup == "" {
		cfg.Cgroup = p.cgroup
	}
	a, err := redirect.Attach(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { a.Close() })
	return a
}

// listen starts the sidecar's listeners, from the sidecar's cgroup, and returns to the app's.
func (p *pod) listen(port int) *sidecar {
	p.t.Helper()
	enter(p.t, p.sidecar)
	defer enter(p.t, p.app)
	s := &sidecar{t: p.t, got: make(chan accepted, 16384), done: make(chan struct{}, 2)}
	for _, addr := range []string{"127.0.0.1", "::1"} {
		l := listenTCP(p.t, net.JoinHostPort(addr, strconv.Itoa(port)))
		s.listeners = append(s.listeners, l)
		go s.serve(l)
	}
	p.t.Cleanup(s.close)
	return s
}

// listenTCP listens as the sidecar must: plain TCP, not MPTCP.
func listenTCP(t *testing.T, addr string) *net.TCPListener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l.(*net.TCPListener)
}

// sidecar accepts and tells what it learned of each connection.
type sidecar struct {
	t         *testing.T
	listeners []*net.TCPListener
	got       chan accepted
	done      chan struct{}
	closed    bool
}

type accepted struct {
	orig   netip.AddrPort
	err    error
	remote netip.AddrPort
	conn   *net.TCPConn
}

func (s *sidecar) serve(l *net.TCPListener) {
	defer func() { s.done <- struct{}{} }()
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		a := accepted{conn: c, remote: c.RemoteAddr().(*net.TCPAddr).AddrPort()}
		control(c, func(fd int) { a.orig, a.err = origdst.Lookup(fd) })
		s.got <- a
	}
}

func (s *sidecar) close() {
	if s.closed {
		return
	}
	s.closed = true
	for _, l := range s.listeners {
		l.Close()
	}
	for range s.listeners {
		<-s.done
	}
	close(s.got)
	for a := range s.got {
		a.conn.Close()
	}
}

// next waits for the next accepted connection.
func (s *sidecar) next() accepted {
	s.t.Helper()
	select {
	case a := <-s.got:
		s.t.Cleanup(func() { a.conn.Close() })
		return a
	case <-time.After(15 * time.Second):
		s.t.Fatal("the sidecar got no connection within 15 s")
		return accepted{}
	}
}

// none asserts that the sidecar got nothing. Connections are accepted within microseconds of
// connect's return, so the pause is generous.
func (s *sidecar) none(why string) {
	s.t.Helper()
	select {
	case a := <-s.got:
		a.conn.Close()
		s.t.Errorf("%s: the sidecar got a connection from %v meant for %v (%v)", why, a.remote, a.orig, a.err)
	case <-time.After(50 * time.Millisecond):
	}
}

func control(c syscall.Conn, f func(fd int)) {
	rc, err := c.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil {
		panic(err)
	}
}

// dial connects as the app does.
func dial(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func mustDial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := dial(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func service4() netip.AddrPort { return netip.AddrPortFrom(clusterIP4, servicePort) }
func service6() netip.AddrPort { return netip.AddrPortFrom(clusterIP6, servicePort) }

// proof is what a process of the pod learns.
func (p *pod) proof() origdst.Info {
	p.t.Helper()
	info, err := origdst.ProofOfProcess()
	if err != nil {
		p.t.Fatal(err)
	}
	return info
}

// directs are the counts of direct connections by destination.
func (p *pod) directs() map[netip.AddrPort]origdst.Direct {
	p.t.Helper()
	fd := rawSocket(p.t, unix.AF_INET, unix.SOCK_STREAM, 0)
	list, err := origdst.Directs(fd, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[netip.AddrPort]origdst.Direct{}
	for _, d := range list {
		all[d.Destination] = d
	}
	return all
}
