// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package netns runs things in another process's network namespace: code of
// this process, child processes, and connections.
//
// A namespace is a property of the thread (setns(2)), so each use takes an
// operating-system thread of its own for its length. A socket and a child stay
// in the namespace in which they were made.
package netns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread that is in the network namespace of process pid. What
// f does on other goroutines happens outside.
func Do(pid int, f func() error) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return fmt.Errorf("netns: %w", err)
	}
	defer ns.Close()
	done := make(chan error, 1)
	go onOwnThread(func() {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("netns: enter the network namespace of process %d: %w", pid, err)
			return
		}
		done <- f()
	})
	return <-done
}

// onOwnThread calls f on a thread that ends with it, so that no other goroutine
// can land in a foreign namespace.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		// Never unlocked: the runtime ends the thread with the goroutine.
		f()
		return
	}
	// The process's first thread: the runtime parks it instead of ending it
	// (runtime.mexit), and it would pin the namespace for the process's life.
	// While this goroutine holds it, another one gets another thread.
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// Start starts cmd in the network namespace of process pid; its other
// namespaces are ours. cmd must not use Pdeathsig, which would fire at once:
// the thread that forked is gone after this.
func Start(pid int, cmd *exec.Cmd) error {
	// os/exec forks on the calling thread, and a child is born into its
	// parent thread's namespaces.
	return Do(pid, cmd.Start)
}

// Dial connects from the network namespace of process pid. addr must be an
// address, not a name: the resolver would look it up outside.
func Dial(ctx context.Context, pid int, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("netns: dial %s: %w", addr, err)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("netns: dial %s: %q is not an IP address", addr, host)
	}
	var conn net.Conn
	err = Do(pid, func() error {
		// With one address net.Dialer makes the socket on this goroutine.
		d := net.Dialer{FallbackDelay: -1}
		var err error
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen listens in the network namespace of process pid.
func Listen(ctx context.Context, pid int, network, addr string) (net.Listener, error) {
	var ln net.Listener
	err := Do(pid, func() error {
		var lc net.ListenConfig
		var err error
		ln, err = lc.Listen(ctx, network, addr)
		return err
	})
	return ln, err
}
