// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"evenkeel.dev/xds"
)

// program is the helper, built as it is shipped.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "evenkeel-hold-")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "hold")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	status := 1
	if err := build.Run(); err == nil {
		status = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(status)
}

const secret = "0123456789abcdef0123456789abcdef"

// sidecar answers /hold.
func sidecar(t *testing.T, h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func listener(t *testing.T) (net.Listener, string) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
}

type result struct {
	stdout, stderr string
	status         int
	signal         syscall.Signal
	took           time.Duration
}

func hold(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, exec.Command(program, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	begin := time.Now()
	err := cmd.Run()
	r := result{stdout: out.String(), stderr: errOut.String(), took: time.Since(begin)}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		ws := exit.Sys().(syscall.WaitStatus)
		r.status, r.signal = ws.ExitStatus(), ws.Signal()
	} else if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSmallAndStatic(t *testing.T) {
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() >= 3<<20 {
		t.Errorf("%d bytes, want less than 3 MiB", info.Size())
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if dep == "net" || dep == "net/http" || dep == "fmt" || strings.Contains(dep, ".") && dep != "evenkeel.dev/cmd/hold" {
			t.Errorf("links %s", dep)
		}
	}
}

func TestNamesAreThoseOfTheSidecar(t *testing.T) {
	// They are spelt out in the program, which links nothing of ours.
	var path, header string
	port := sidecar(t, func(_ http.ResponseWriter, r *http.Request) {
		path, header = r.URL.Path, r.Header.Get(xds.HeaderHold)
	})
	if r := hold(t, "--port="+port, "--secret="+secret, "--", "true"); r.stderr != "" || r.status != 0 {
		t.Errorf("%+v", r)
	}
	if path != xds.PathHold || header != secret {
		t.Errorf("path %q, header %q", path, header)
	}
	cfg, _, err := parse([]string{"--secret=x"})
	if err != nil || cfg.port != xds.PortPod {
		t.Errorf("default port %d (%v)", cfg.port, err)
	}
}

func TestCommandWaitsForTheAnswer(t *testing.T) {
	const late = 400 * time.Millisecond
	port := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(late)
		_, _ = io.WriteString(w, "drain: over\n")
	})
	r := hold(t, "--port="+port, "--secret="+secret, "--timeout=20s", "--", "echo", "bye")
	if r.stdout != "bye\n" || r.stderr != "" || r.status != 0 || r.took < late {
		t.Errorf("%+v", r)
	}
}

func TestCommandRunsWhateverTheSidecarSays(t *testing.T) {
	closed, refused := listener(t)
	closed.Close()
	for name, tc := range map[string]struct {
		port string
		want string
	}{
		"403":        {sidecar(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not this\npod's", http.StatusForbidden) }), "403 Forbidden: not this pod's"},
		"500":        {sidecar(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }), "500 Internal Server Error: broken"},
		"refused":    {refused, "connection refused"},
		"no sidecar": {talker(t, "220 smtp.example.com\r\n\r\n"), "not the sidecar"},
		"endless":    {talker(t, strings.Repeat("x", 1<<20)), "not the sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			r := hold(t, "--port="+tc.port, "--secret="+secret, "--timeout=20s", "--", "echo", "bye")
			if r.stdout != "bye\n" || r.status != 0 || r.took > 10*time.Second {
				t.Errorf("%+v", r)
			}
			if !strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("stderr %q, want one line with %q", r.stderr, tc.want)
			}
			if strings.Contains(r.stderr, secret) {
				t.Error("the secret is told")
			}
		})
	}
}

// talker says something to whoever connects.
func talker(t *testing.T, what string) (port string) {
	t.Helper()
	ln, port := listener(t)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, what)
			conn.Close()
		}
	}()
	return port
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	port := sidecar(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	r := hold(t, "--port="+port, "--secret="+secret, "--timeout=300ms", "--", "echo", "bye")
	if r.stdout != "bye\n" || r.took < 300*time.Millisecond || r.took > 10*time.Second || !strings.Contains(r.stderr, "did not answer in time") {
		t.Errorf("%+v", r)
	}
}

func TestAnswerThatIsCutOffIsAskedForAgain(t *testing.T) {
	var calls atomic.Int32
	port := sidecar(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			// With a reset, as of a process that is killed.
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	})
	r := hold(t, "--port="+port, "--secret="+secret, "--timeout=20s", "--", "echo", "bye")
	if r.stdout != "bye\n" || r.stderr != "" || calls.Load() != 3 {
		t.Errorf("%d calls, %+v", calls.Load(), r)
	}
	calls.Store(-1000)
	r = hold(t, "--port="+port, "--secret="+secret, "--timeout=500ms", "--", "echo", "bye")
	if r.stdout != "bye\n" || !strings.Contains(r.stderr, "cut off") {
		t.Errorf("%+v", r)
	}
}

func TestItBecomesTheCommand(t *testing.T) {
	port := sidecar(t, func(http.ResponseWriter, *http.Request) {})
	cmd := exec.Command(program, "--port="+port, "--secret="+secret, "--",
		"sh", "-c", `echo $$; cat; echo "$X $0 $1" >&2; ulimit -n; exit 7`, "zero", "--secret=kept")
	cmd.Env = append(os.Environ(), "X=y")
	cmd.Stdin = strings.NewReader("in\n")
	r := finish(t, cmd)
	lines := strings.Split(r.stdout, "\n")
	if lines[0] != strconv.Itoa(cmd.Process.Pid) || lines[1] != "in" || r.stderr != "y zero --secret=kept\n" || r.status != 7 {
		t.Errorf("pid %d: %+v", cmd.Process.Pid, r)
	}
	// The runtime of Go raises the limit for itself; the command has its own back.
	out, err := exec.Command("sh", "-c", "ulimit -n").Output()
	if err != nil || lines[2] != strings.TrimSpace(string(out)) {
		t.Errorf("ulimit -n %s, want %s (%v)", lines[2], out, err)
	}
}

func TestPath(t *testing.T) {
	port := sidecar(t, func(http.ResponseWriter, *http.Request) {})
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("a/tool", "#!/bin/sh\necho a", 0o644) // not executable: the search goes on
	write("b/tool", "#!/bin/sh\necho b", 0o755)
	write("b/locked", "x", 0o644)
	junk := write("b/junk", "neither a script nor a program", 0o755)
	for _, tc := range []struct {
		path, name string
		stdout     string
		status     int
		stderr     string
	}{
		{dir + "/none:" + dir + "/a:" + dir + "/b", "tool", "b\n", 0, ""},
		{dir + "/b", "locked", "", statusNoExec, "permission denied"},
		{dir + "/a", "nothing", "", statusNotFound, "nothing: no such file or directory"},
		{dir + "/b", "/no/such", "", statusNotFound, "no such file"},
		{"", junk, "", statusNoExec, "exec format error"},
		{"", dir + "/b/tool/x", "", statusNotFound, "no such file"}, // ENOTDIR
		{dir + "/b", "", "", statusNotFound, "no such file"},
	} {
		cmd := exec.Command(program, "--port="+port, "--secret="+secret, "--", tc.name)
		cmd.Env = []string{"PATH=" + tc.path}
		r := finish(t, cmd)
		if r.stdout != tc.stdout || r.status != tc.status || !strings.Contains(r.stderr, tc.stderr) || (tc.stderr == "") != (r.stderr == "") {
			t.Errorf("%q in %q: %+v", tc.name, tc.path, r)
		}
	}
	// Without PATH, and with an empty element, which is the current directory.
	bare := exec.Command(program, "--port="+port, "--secret="+secret, "--", "echo", "bare")
	bare.Env = []string{}
	if r := finish(t, bare); r.stdout != "bare\n" {
		t.Errorf("without PATH: %+v", r)
	}
	here := exec.Command(program, "--port="+port, "--secret="+secret, "--", "tool")
	here.Env, here.Dir = []string{"PATH=/none:"}, dir+"/b"
	if r := finish(t, here); r.stdout != "b\n" {
		t.Errorf("in the current directory: %+v", r)
	}
}

func TestMisuse(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		status int
		stdout string
		want   []string
	}{
		{nil, statusMisused, "", []string{"--secret is missing", "no command after --"}},
		{[]string{"--secret=x", "--"}, statusMisused, "", []string{"no command after --"}},
		// Wrong as it is, the container's command runs.
		{[]string{"--port=0", "--timeout=x", "--what", "--", "echo", "bye"}, 0, "bye\n", []string{`--port "0"`, `--timeout "x"`, `"--what"`, "--secret is missing"}},
	} {
		r := hold(t, tc.args...)
		if r.status != tc.status || r.stdout != tc.stdout {
			t.Errorf("%q: %+v", tc.args, r)
		}
		for _, want := range tc.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%q: stderr %q lacks %q", tc.args, r.stderr, want)
			}
		}
	}
}

func TestSignals(t *testing.T) {
	asked := make(chan struct{}, 1)
	release := make(chan struct{})
	port := sidecar(t, func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release })
	t.Cleanup(func() { close(release) })
	cmd := exec.Command(program, "--port="+port, "--secret="+secret, "--timeout=20s", "--", "echo", "bye")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM || out.Len() > 0 {
		t.Errorf("%v, stdout %q", err, out.String())
	}
	// The command has the default actions again, and nothing blocked.
	open := sidecar(t, func(http.ResponseWriter, *http.Request) {})
	r := hold(t, "--port="+open, "--secret="+secret, "--", "sh", "-c", "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; kill -TERM $$; echo survived")
	if r.signal != syscall.SIGTERM || strings.Contains(r.stdout, "survived") || !strings.Contains(r.stdout, "SigBlk:\t0000000000000000") {
		t.Errorf("%+v", r)
	}
}
