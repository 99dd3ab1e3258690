// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package netns

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// namespace starts a process in a network namespace of its own, whose loopback
// is up, and returns its pid.
func namespace(t *testing.T) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "ip link set lo up && echo up && exec sleep 60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // both fail only if it has ended
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestListenAndDialMeetInside(t *testing.T) {
	pid := namespace(t)
	ln, err := Listen(t.Context(), pid, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if conn, err := ln.Accept(); err == nil {
			_, _ = conn.Write([]byte("inside")) // the reader sees what is missing
			conn.Close()
		}
	}()
	addr := ln.Addr().String()
	var d net.Dialer
	if conn, err := d.DialContext(t.Context(), "tcp", addr); err == nil {
		conn.Close()
		t.Fatal("the listener is reachable from outside: it was made there")
	}
	conn, err := Dial(t.Context(), pid, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 16)
	n, err := conn.Read(b)
	if err != nil || string(b[:n]) != "inside" {
		t.Errorf("read %q, %v", b[:n], err)
	}
}

// After many uses no goroutine may find itself in the foreign namespace.
func TestOwnNamespaceStays(t *testing.T) {
	pid := namespace(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var inside string
		err := Do(pid, func() error {
			var err error
			inside, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if inside == own {
			t.Fatal("Do did not enter the namespace")
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	// A thread that has just been given up may still be ending.
	deadline := time.Now().Add(5 * time.Second)
	for _, task := range tasks {
		for {
			at, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
			if err != nil || at == own {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("thread %s stays in namespace %s", task.Name(), at)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestStart(t *testing.T) {
	pid := namespace(t)
	want, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "readlink", "/proc/self/ns/net")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := Start(pid, cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != want {
		t.Errorf("the child is in %s, want %s", got, want)
	}
}

func TestDialRefusesNames(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Dial(ctx, os.Getpid(), "tcp", "localhost:1"); err == nil || !strings.Contains(err.Error(), `"localhost" is not an IP address`) {
		t.Errorf("got error %v, want one that says that it is not an address", err)
	}
	if _, err := Dial(ctx, os.Getpid(), "tcp", "127.0.0.1"); err == nil {
		t.Error("an address without a port was dialled")
	}
	if err := Do(1<<30, func() error { return nil }); err == nil {
		t.Error("the namespace of a process that does not exist was entered")
	}
}
