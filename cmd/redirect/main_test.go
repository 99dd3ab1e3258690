// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/redirect"
)

// asContainer makes the test binary a container of a pod: with the capabilities that the
// variable's value lists and no others, it becomes the command of its arguments.
const asContainer = "EVENKEEL_TEST_CAPABILITIES"

func TestMain(m *testing.M) {
	if caps, ok := os.LookupEnv(asContainer); ok {
		if err := become(caps); err != nil {
			fmt.Fprintln(os.Stderr, "container:", err)
			os.Exit(99)
		}
	}
	if len(os.Args) > 1 && os.Args[1] == "be-redirect" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		main()
	}
	goleak.VerifyTestMain(m)
}

// become drops all capabilities but those listed, as a container runtime does, and starts this
// binary again as the command: exec gives uid 0 what its bounding set holds.
func become(caps string) error {
	runtime.LockOSThread()
	keep := map[int]bool{}
	for name := range strings.SplitSeq(caps, ",") {
		switch name {
		case "BPF":
			keep[unix.CAP_BPF] = true
		case "NET_ADMIN":
			keep[unix.CAP_NET_ADMIN] = true
		}
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// lo is brought up by the pod's runtime, before.
	if err := os.Unsetenv(asContainer); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", append([]string{"redirect", "be-redirect"}, os.Args[1:]...), os.Environ())
}

// pod is a cgroup as the kubelet makes it, with one container in it, and a network namespace.
type pod struct {
	root, dir, container, netns string
}

const podUID = "0c8b2a54-7f3e-4d2b-9a51-6f0c2d9e1b77"

func newPod(t *testing.T) pod {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: attaches eBPF programs and makes cgroups and network namespaces")
	}
	p := pod{}
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			p.root = dir
		}
	}
	if p.root == "" {
		t.Fatal("no cgroup2 mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	}
	p.dir = filepath.Join(p.root, fmt.Sprintf("evenkeel-test-%d-%s-pod%s", os.Getpid(), t.Name(), podUID))
	p.container = filepath.Join(p.dir, "evenkeel-init")
	for _, dir := range []string{p.dir, p.container} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			deadline := time.Now().Add(5 * time.Second)
			for os.Remove(dir) != nil {
				if time.Now().After(deadline) {
					t.Errorf("cgroup left behind: %s", dir)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	p.netns = fmt.Sprintf("evenkeel-%d-%d", os.Getpid(), time.Now().UnixNano())
	ip(t, "netns", "add", p.netns)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", p.netns).CombinedOutput(); err != nil {
			t.Errorf("ip netns del: %v\n%s", err, out)
		}
	})
	ip(t, "-n", p.netns, "link", "set", "lo", "up")
	return p
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// run is one run of a container with this command.
func (p pod) run(t *testing.T, caps string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cgroup, err := os.Open(p.container)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	var out, errs bytes.Buffer
	// nsenter, of util-linux, changes nothing but the network namespace; ip netns exec would mount.
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=/run/netns/" + p.netns, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), asContainer+"="+caps)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd()), Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (p pod) status(t *testing.T) redirect.Status {
	t.Helper()
	st, err := redirect.Query(t.Context(), p.dir)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// The init container as it runs in a cluster: two capabilities, twice.
func TestInitWithTwoCapabilities(t *testing.T) {
	p := newPod(t)
	args := []string{"init", "--cgroup-root=" + p.root, "--pod-uid=" + podUID, "--outbound-ports=50051,9090", "--listener-port=15951", "--log-format=text"}
	_, stderr, status := p.run(t, "BPF,NET_ADMIN", args...)
	if status != run.OK || !strings.Contains(stderr, "effective in this pod") || !strings.Contains(stderr, "outcome=attached") {
		t.Fatalf("exit status %d\n%s", status, stderr)
	}
	first := p.status(t)
	if !first.Acting || len(first.Programs) != 8 || fmt.Sprint(first.OutboundPorts) != "[9090 50051]" {
		t.Errorf("attached: %+v", first)
	}

	_, stderr, status = p.run(t, "BPF,NET_ADMIN", args...)
	if status != run.OK || !strings.Contains(stderr, "outcome=kept") {
		t.Errorf("second run: exit status %d\n%s", status, stderr)
	}
	if second := p.status(t); fmt.Sprint(second.Programs) != fmt.Sprint(first.Programs) {
		t.Errorf("after the second run: %v, want the same one copy %v", second.Programs, first.Programs)
	}

	// Without CAP_SYS_ADMIN a copy cannot be told to do other things: an error, not a second copy.
	_, stderr, status = p.run(t, "BPF,NET_ADMIN", "init", "--cgroup-root="+p.root, "--pod-uid="+podUID, "--outbound-ports=50051")
	if status != run.Failed || !strings.Contains(stderr, "other settings") || !strings.Contains(stderr, "recreate the pod") {
		t.Errorf("other settings: exit status %d\n%s", status, stderr)
	}
	if third := p.status(t); len(third.Programs) != 8 {
		t.Errorf("after the refusal: %v", third.Programs)
	}

	// Anybody in the pod may ask.
	stdout, stderr, status := p.run(t, "", "status", "-o", "json")
	if status != run.OK || !strings.Contains(stdout, `"acting":true`) || !strings.Contains(stdout, `"outboundPorts":[9090,50051]`) {
		t.Errorf("status without capabilities: exit status %d\n%s\n%s", status, stdout, stderr)
	}
	if stdout, _, _ = p.run(t, "", "status"); !strings.Contains(stdout, "no sidecar has bound its listener yet") {
		t.Errorf("status: %s", stdout)
	}
}

// Programs of others, which the init step may not read, on the pod and above it.
func TestInitBesideForeignPrograms(t *testing.T) {
	p := newPod(t)
	attach := func(dir string, flags uint32) (detach func()) {
		t.Helper()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "foreign", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		opts := link.RawAttachProgramOptions{Target: int(f.Fd()), Program: prog, Attach: ebpf.AttachCGroupInet4Connect, Flags: flags}
		if err := link.RawAttachProgram(opts); err != nil {
			t.Fatal(err)
		}
		return func() {
			opts.Flags = 0
			if err := link.RawDetachProgram(link.RawDetachProgramOptions(opts)); err != nil {
				t.Error(err)
			}
			prog.Close()
			f.Close()
		}
	}
	args := []string{"init", "--cgroup-root=" + p.root, "--pod-uid=" + podUID, "--log-format=text"}

	detach := attach(p.dir, 0)
	_, stderr, status := p.run(t, "BPF,NET_ADMIN", args...)
	if status != run.Failed || !strings.Contains(stderr, "is attached to "+p.dir+" as exclusive") || !strings.Contains(stderr, "bpftool prog show id ") {
		t.Errorf("an exclusive program: exit status %d\n%s", status, stderr)
	}
	detach()

	const multi = 2
	detach = attach(p.dir, multi)
	defer detach()
	for _, outcome := range []string{"attached", "kept"} {
		_, stderr, status = p.run(t, "BPF,NET_ADMIN", args...)
		if status != run.OK || !strings.Contains(stderr, "outcome="+outcome) {
			t.Errorf("beside another: exit status %d, want %s\n%s", status, outcome, stderr)
		}
	}
	if st := p.status(t); len(st.Programs) != 8 {
		t.Errorf("got %v, want one copy", st.Programs)
	}
}

// What an init container tells at 3 a.m., and that it leaves nothing behind then.
func TestInitErrors(t *testing.T) {
	p := newPod(t)
	outside := filepath.Join(p.root, fmt.Sprintf("evenkeel-test-%d-elsewhere", os.Getpid()))
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(outside) })
	for name, c := range map[string]struct {
		caps   string
		args   []string
		status int
		want   []string
	}{
		"no capabilities":   {"", []string{"init", "--cgroup-root=" + p.root, "--pod-uid=" + podUID}, run.Failed, []string{"CAP_NET_ADMIN is not effective", "runAsUser: 0"}},
		"no CAP_BPF":        {"NET_ADMIN", []string{"init", "--cgroup-root=" + p.root, "--pod-uid=" + podUID}, run.Failed, []string{"CAP_BPF is not effective"}},
		"no hostPath":       {"BPF,NET_ADMIN", []string{"init", "--pod-uid=" + podUID, "--cgroup-root=/nonexistent"}, run.Failed, []string{"/nonexistent", "hostPath"}},
		"another pod":       {"BPF,NET_ADMIN", []string{"init", "--cgroup-root=" + p.root, "--pod-uid=11111111-7f3e-4d2b-9a51-6f0c2d9e1b77"}, run.Failed, []string{"no cgroup of pod 11111111-"}},
		"not its cgroup":    {"BPF,NET_ADMIN", []string{"init", "--cgroup=" + outside}, run.Failed, []string{"without effect on this process", outside}},
		"root":              {"BPF,NET_ADMIN", []string{"init", "--cgroup=" + p.root}, run.Failed, []string{"root of the hierarchy"}},
		"no UID":            {"BPF,NET_ADMIN", []string{"init", "--cgroup-root=" + p.root}, run.Misused, []string{"--pod-uid is required"}},
		"port 0":            {"", []string{"init", "--outbound-ports=50051,0"}, run.Misused, []string{"outbound-ports", `"0" is not a port`}},
		"port of 6 digits":  {"", []string{"init", "--listener-port=100000"}, run.Misused, []string{"listener-port", `"100000" is not a port`}},
		"the same port":     {"", []string{"init", "--cgroup-root=" + p.root, "--pod-uid=" + podUID, "--outbound-ports=15951"}, run.Failed, []string{"15951 is also ListenerPort"}},
		"unknown flag":      {"", []string{"init", "--outbound-port=1"}, run.Misused, []string{"outbound-port", "--help"}},
		"no flag":           {"", []string{"init", "50051"}, run.Misused, []string{`"50051" is no flag`}},
		"unknown command":   {"", []string{"attach"}, run.Misused, []string{`unknown command "attach"`, "redirect init"}},
		"no command":        {"", nil, run.Misused, []string{"redirect init"}},
		"status, no rights": {"NET_ADMIN", []string{"status", "--cgroup=" + outside}, run.OK, nil},
		"detach of nothing": {"", []string{"detach"}, run.Misused, []string{"--cgroup is required"}},
		"unknown format":    {"", []string{"status", "-o", "yaml"}, run.Misused, []string{`"yaml" is not a format`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, status := p.run(t, c.caps, c.args...)
			if status != c.status {
				t.Errorf("exit status %d, want %d\n%s", status, c.status, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error lacks %q:\n%s", want, stderr)
				}
			}
			for _, dir := range []string{p.dir, outside} {
				if st, err := redirect.Query(t.Context(), dir); err != nil || len(st.Programs) != 0 {
					t.Errorf("left on %s: %+v, %v", dir, st.Programs, err)
				}
			}
		})
	}
}

// What only root may: the state of any cgroup, and detaching.
func TestStatusAndDetach(t *testing.T) {
	p := newPod(t)
	if _, stderr, status := p.run(t, "BPF,NET_ADMIN", "init", "--cgroup-root="+p.root, "--pod-uid="+podUID); status != run.OK {
		t.Fatal(stderr)
	}
	_, stderr, status := p.run(t, "BPF,NET_ADMIN", "status", "--cgroup="+p.dir)
	if status != run.Failed || !strings.Contains(stderr, "CAP_SYS_ADMIN") {
		t.Errorf("status without CAP_SYS_ADMIN: %d %s", status, stderr)
	}
	var out, errs bytes.Buffer
	if status := command(t.Context(), []string{"status", "--cgroup=" + p.dir}, &out, &errs); status != run.OK || !strings.Contains(out.String(), "redirect on "+p.dir) {
		t.Errorf("status: %d %s %s", status, &out, &errs)
	}
	if status := command(t.Context(), []string{"detach", "--cgroup=" + p.dir}, &out, &errs); status != run.OK || !strings.Contains(errs.String(), `"programs":8`) {
		t.Errorf("detach: %d %s", status, &errs)
	}
	if st := p.status(t); len(st.Programs) != 0 {
		t.Errorf("after detach: %v", st.Programs)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"init", "--help"}, {"version"}} {
		var out, errs bytes.Buffer
		if status := command(t.Context(), args, &out, &errs); status != run.OK || out.Len()+errs.Len() == 0 {
			t.Errorf("%v: %d %s %s", args, status, &out, &errs)
		}
	}
}
