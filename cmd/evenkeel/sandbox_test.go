// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"evenkeel.dev/cmd/internal/sandbox"
)

func TestSandboxIsTransparent(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	p := start(t, func(cmd *exec.Cmd) {
		cmd.Stdin = strings.NewReader("one\ntwo\n")
		cmd.Env = append(os.Environ(), "GREETING=hello")
	}, "sandbox", "-f", manifests(t), "--", "sh", "-c", `cat; echo "$GREETING $0 $1" >&2; exit 7`, "a b", "c")
	if got := p.wait(); got != 7 {
		t.Errorf("exit status %d, want the command's, 7", got)
	}
	if got := p.stdout.String(); got != "one\ntwo\n" {
		t.Errorf("stdout %q: it is the command's alone", got)
	}
	if got := p.stderr.String(); got != "hello a b c\n" {
		t.Errorf("stderr %q: without a terminal nothing is added", got)
	}
}

func TestSandboxExitStatus(t *testing.T) {
	needRoot(t)
	dir := manifests(t)
	text := filepath.Join(t.TempDir(), "text")
	write(t, text, "not a program")
	bad := manifests(t)
	write(t, filepath.Join(bad, "bad.yaml"), "kind: Service\napiVersion: v1\nmetadata: {name: x}\nspec: {ports: 7}\n")
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		stderr string // one line with this
	}{
		{"success", []string{"-f", dir, "--", "true"}, 0, ""},
		{"killed by a signal", []string{"-f", dir, "--", "sh", "-c", "kill -TERM $$"}, 143, ""},
		{"not found", []string{"-f", dir, "--", "no-such-command"}, 127, "evenkeel: no-such-command: command not found"},
		{"not executable", []string{"-f", dir, "--", text}, 126, "permission denied"},
		{"flags of the command are its own", []string{"-f", dir, "sh", "-c", "exit 3"}, 3, ""},
		{"no command", []string{"-f", dir}, 125, "no command to run"},
		{"no directory", []string{"--", "true"}, 125, "-f is missing"},
		{"wrong directory", []string{"-f", "/nonexistent", "--", "true"}, 125, "/nonexistent"},
		{
			"several mistakes at once",
			[]string{"-f", dir, "-o", "xml", "--outbound-ports", "0", "--redirect", "iptables", "--", "true"},
			125,
			`--redirect: "iptables" is neither ebpf nor none; --outbound-ports: "0" is not a port (1 to 65535); -o: "xml" is none of text, json and none`,
		},
		{"a namespace that is none", []string{"-f", dir, "-n", "Bad Name!", "--", "true"}, 125, `-n: "Bad Name!" is not a namespace`},
		{"an empty namespace", []string{"-f", dir, "-n", "", "--", "true"}, 125, `-n: "" is not a namespace`},
		{"no outbound port", []string{"-f", dir, "--outbound-ports=", "--", "true"}, 125, "--outbound-ports: no port is given"},
		{"unknown flag", []string{"--frobnicate"}, 125, "frobnicate"},
		{"manifest with a mistake", []string{"-f", bad, "--", "true"}, 125, "bad.yaml"},
		{"report to nowhere", []string{"-f", dir, "--report", "/nonexistent/r", "--", "true"}, 125, "--report"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leavesNothing(t)
			status, stdout, stderr := runCLI(t, append([]string{"sandbox"}, tc.args...)...)
			if status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			if stdout != "" {
				t.Errorf("stdout %q", stdout)
			}
			if !strings.Contains(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("stderr %q, want %q in it", stderr, tc.stderr)
			}
			// Where our processes had something to say, the second line names their log, which stays.
			if _, log, ok := strings.Cut(stderr, "the log of its processes is in "); ok {
				if err := os.Remove(strings.TrimSpace(log)); err != nil {
					t.Errorf("the log that was named: %v", err)
				}
			} else if strings.Count(stderr, "\n") > 1 {
				t.Errorf("stderr has more than a line:\n%s", stderr)
			}
		})
	}
}

func TestSandboxGivesNamesAndAProvenRedirect(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	// Reaching this command at all proves the redirect: the step before it refuses otherwise.
	status, stdout, stderr := runCLI(t, "sandbox", "-f", manifests(t), "-n", "shop", "--", "sh", "-c",
		"for n in pricing pricing.shop pricing.shop.svc pricing.shop.svc.cluster.local; do getent ahostsv4 $n | head -1 | cut -d' ' -f1; done; getent hosts localhost >/dev/null && echo localhost")
	if want := strings.Repeat("10.96.3.4\n", 4) + "localhost\n"; status != 0 || stdout != want {
		t.Errorf("status %d, stdout %q, want %q; stderr %q", status, stdout, want, stderr)
	}
}

func TestSandboxWarnsOfPortsThatAreNotRedirected(t *testing.T) {
	needRoot(t)
	status, _, stderr := runCLI(t, "sandbox", "-f", manifests(t), "--outbound-ports", "8080", "--", "true")
	if want := "evenkeel: not redirected, for want of --outbound-ports: shop/pricing:50051\n"; status != 0 || stderr != want {
		t.Errorf("status %d, stderr %q, want %q", status, stderr, want)
	}
}

func TestSandboxEndsWhatTheCommandLeavesBehind(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	for _, redirect := range []string{"ebpf", "none"} {
		status, stdout, _ := runCLI(t, "sandbox", "-f", manifests(t), "--redirect", redirect, "--", "sh", "-c",
			"setsid sh -c 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $!'")
		pid, err := strconv.Atoi(strings.TrimSpace(stdout))
		if status != 0 || err != nil {
			t.Fatalf("%s: status %d, stdout %q", redirect, status, stdout)
		}
		if !gone(pid) {
			t.Errorf("%s: the daemon %d still runs", redirect, pid)
		}
	}
}

func TestSandboxesRunSideBySide(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	dir := manifests(t)
	var all []*process
	for range 3 {
		p := start(t, func(cmd *exec.Cmd) { cmd.Stdin = nil }, "sandbox", "-f", dir, "--", "sh", "-c", "echo up; trap 'exit 9' TERM; while :; do sleep 0.05; done")
		all = append(all, p)
	}
	for _, p := range all {
		p.says("up")
	}
	for _, p := range all {
		p.signal(syscall.SIGTERM)
	}
	for _, p := range all {
		if got := p.wait(); got != 9 {
			t.Errorf("exit status %d, want 9", got)
		}
	}
}

func TestSandboxReport(t *testing.T) {
	needRoot(t)
	file := filepath.Join(t.TempDir(), "report.json")
	status, _, stderr := runCLI(t, "sandbox", "-f", manifests(t), "--report", file, "--", "sh", "-c", "exit 4")
	if status != 4 || stderr != "" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report sandbox.Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if report.ExitStatus != 4 || report.Redirect != "ebpf" || len(report.Command) != 3 || report.Seconds <= 0 || report.Connections == nil || report.Services == nil {
		t.Errorf("report: %s", text)
	}

	_, _, stderr = runCLI(t, "sandbox", "-f", manifests(t), "-o", "text", "--", "true")
	if want := "no connection was redirected"; !strings.HasPrefix(stderr, "evenkeel: 0 RPCs") || !strings.Contains(stderr, want) {
		t.Errorf("report in text: %q, want %q in it", stderr, want)
	}
}

func TestSandboxGoesOnWithoutItsControlPlane(t *testing.T) {
	needRoot(t)
	leavesNothing(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "sandbox", "-f", manifests(t), "--", "sh", "-c", "echo up; cat "+fifo+"; exit 5")
	p.says("up")
	killed := false
	for what := range remains() {
		if pid, ok := strings.CutPrefix(what, "/proc/"); ok && strings.Contains(what, "internal-xds") {
			n, err := strconv.Atoi(strings.Fields(pid)[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed = true
		}
	}
	if !killed {
		t.Fatal("no control plane found")
	}
	p.eventually("the user is told", func() bool { return strings.Contains(p.stderr.String(), "the control plane ended: signal: killed") })
	if err := os.WriteFile(fifo, []byte("done"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := p.wait(); got != 5 {
		t.Errorf("exit status %d, want the command's, 5", got)
	}
	_, log, _ := strings.Cut(p.stderr.String(), "the log of its processes is in ")
	if err := os.Remove(strings.TrimSpace(log)); err != nil {
		t.Errorf("the log that was named: %v", err)
	}
}

func TestUsersWithoutRoot(t *testing.T) {
	needRoot(t) // to become another user
	leavesNothing(t)
	nobody := func(cmd *exec.Cmd) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		cmd.Dir = "/"
	}
	t.Run("the redirect needs root, in one line", func(t *testing.T) {
		p := start(t, nobody, "sandbox", "-f", manifests(t), "--", "true")
		if got := p.wait(); got != 125 {
			t.Errorf("exit status %d, want 125", got)
		}
		if got := p.stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "root") || !strings.Contains(got, "--redirect=none") {
			t.Errorf("stderr %q", got)
		}
	})
	t.Run("the demo needs root, in one line", func(t *testing.T) {
		p := start(t, nobody, "demo")
		if got := p.wait(); got != 1 {
			t.Errorf("exit status %d, want 1", got)
		}
		if got := p.stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "redirect needs root") {
			t.Errorf("stderr %q", got)
		}
	})
	t.Run("without the redirect it works", func(t *testing.T) {
		p := start(t, nobody, "sandbox", "-f", manifests(t), "--redirect=none", "--", "sh", "-c",
			`setsid sh -c 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $!'; echo "$EVENKEEL_LISTENER"; exit 6`)
		if got := p.wait(); got != 6 {
			t.Errorf("exit status %d, want 6", got)
		}
		pid, listener, _ := strings.Cut(strings.TrimSpace(p.stdout.String()), "\n")
		if !strings.HasPrefix(listener, "127.0.0.1:") {
			t.Errorf("EVENKEEL_LISTENER=%q", listener)
		}
		if n, err := strconv.Atoi(pid); err != nil || !gone(n) {
			t.Errorf("the daemon %q still runs", pid)
		}
	})
}

func TestVersionAndUsage(t *testing.T) {
	if status, stdout, _ := runCLI(t, "version"); status != 0 || !strings.HasPrefix(stdout, "evenkeel ") {
		t.Errorf("version: status %d, %q", status, stdout)
	}
	if status, stdout, _ := runCLI(t, "--help"); status != 0 || !strings.Contains(stdout, "sandbox") || strings.Contains(stdout, "internal") {
		t.Errorf("--help: status %d, %q", status, stdout)
	}
	status, stdout, stderr := runCLI(t, "frobnicate")
	if status != 2 || stdout != "" || !strings.HasPrefix(stderr, `evenkeel: unknown command "frobnicate"`) {
		t.Errorf("an unknown command: status %d, %q, %q", status, stdout, stderr)
	}
	if status, _, stderr := runCLI(t, "demo", "-o", "xml"); status != 2 || !strings.Contains(stderr, `"xml" is neither text nor json`) {
		t.Errorf("demo -o xml: status %d, %q", status, stderr)
	}
}
