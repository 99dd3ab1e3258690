// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package sidecarcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"evenkeel.dev/redirect/origdst"
	"evenkeel.dev/xds/api"
)

var quiet = slog.New(slog.DiscardHandler)

func TestBeatFollowsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var turns atomic.Uint64
		ended := make(chan error, 1)
		go func() { ended <- beat(t.Context(), w, turns.Load) }()
		beats := func() int {
			if err := r.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			n, _ := r.Read(buf)
			return n
		}
		time.Sleep(time.Minute)
		if n := beats(); n != 0 {
			t.Errorf("%d beats of a loop that never turned", n)
		}
		turns.Add(1)
		time.Sleep(2 * firstLook)
		if n := beats(); n != 1 {
			t.Errorf("%d beats at the first turn, want 1", n)
		}
		for range 4 {
			turns.Add(100)
			time.Sleep(tick)
		}
		if n := beats(); n < 3 || n > 5 {
			t.Errorf("%d beats in 4 ticks", n)
		}
		time.Sleep(time.Hour)
		if n := beats(); n > 1 {
			t.Errorf("%d beats of a loop that is stuck", n)
		}
		r.Close()
		turns.Add(1)
		time.Sleep(tick)
		if err := <-ended; !errors.Is(err, errNoSupervisor) {
			t.Errorf("beat = %v", err)
		}
	})
}

// ended runs a shell command as if it were a worker and says how it ended.
func ended(t *testing.T, script string, oom bool, verdict string) end {
	t.Helper()
	w := &worker{cmd: exec.Command("sh", "-c", script), verdict: verdict}
	return w.ending(w.cmd.Run(), oom)
}

func TestWhyAWorkerEnded(t *testing.T) {
	for _, tc := range []struct {
		script  string
		oom     bool
		verdict string
		want    end
	}{
		{"exit 0", false, "", end{causeExit, "exit status 0"}},
		{"exit 2", true, "", end{causeExit, "exit status 2"}},
		{"kill -SEGV $$", false, "", end{causeSignal, "signal: segmentation fault"}},
		{"kill -KILL $$", false, "", end{causeSignal, "signal: killed"}},
		{"kill -KILL $$", true, "", end{causeOOM, "killed by the kernel: out of memory"}},
		{"kill -SEGV $$", true, "", end{causeSignal, "signal: segmentation fault"}},
		{"kill -KILL $$", false, causeHang, end{causeHang, "killed by the supervisor"}},
		{"exit 2", false, causeHang, end{causeHang, "killed by the supervisor"}}, // the runtime's stack dump
		{"kill -KILL $$", true, causeMemory, end{causeMemory, "killed by the supervisor"}},
	} {
		if got := ended(t, tc.script, tc.oom, tc.verdict); got != tc.want {
			t.Errorf("%s (oom %t, verdict %q): %+v, want %+v", tc.script, tc.oom, tc.verdict, got, tc.want)
		}
	}
}

func TestWorkerNearTheMemoryLimitIsReplaced(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := startWorker(t.Context(), []string{"sleep", "100"}, []*os.File{w}, r, io.Discard, io.Discard, time.Now())
	closeFile(w)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process has memory", func() bool { return anonymous(child.pid()) > 0 })
	used := anonymous(child.pid())
	s := &supervisor{log: quiet, worker: child, limit: used * 100}
	s.watch()
	if child.verdict != "" {
		t.Errorf("verdict %q at a hundredth of the limit", child.verdict)
	}
	s.limit = used
	s.watch()
	if child.verdict != causeMemory {
		t.Errorf("verdict %q at the limit", child.verdict)
	}
	if got := child.ending(<-child.exited, false); got.cause != causeMemory {
		t.Errorf("ended by %+v", got)
	}
}

func TestCgroupMemory(t *testing.T) {
	put := func(root, name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const events = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"
	const control = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
	for name, tc := range map[string]struct {
		self  string
		files map[string]string
		kills uint64
		limit uint64
	}{
		"v2": {"0::/kubepods/pod1/c\n", map[string]string{
			"kubepods/pod1/c/memory.events": events, "kubepods/pod1/c/memory.max": "67108864\n",
		}, 2, 67108864},
		"v2 in a cgroup namespace": {"0::/\n", map[string]string{"memory.events": events, "memory.max": "max\n"}, 2, 0},
		"v2, the host's path, the container's mount": {"0::/kubepods/pod1/c\n", map[string]string{
			"memory.events": events, "memory.max": "4096\n",
		}, 2, 4096},
		"hybrid, memory in v1": {"4:cpu,memory:/pod1/c\n0::/pod1/c\n", map[string]string{
			"memory/pod1/c/memory.oom_control": control, "memory/pod1/c/memory.limit_in_bytes": "1048576\n", "unified/pod1/c/cgroup.procs": "",
		}, 5, 1048576},
		"v1, no limit": {"4:memory:/pod1/c\n", map[string]string{
			"memory/memory.oom_control": control, "memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 5, 0},
		"hybrid, memory in v2": {"4:cpu:/pod1/c\n0::/pod1/c\n", map[string]string{
			"unified/pod1/c/memory.events": events, "unified/pod1/c/memory.max": "1\n",
		}, 2, 1},
		"nothing":       {"0::/x\n", nil, 0, 0},
		"not even that": {"\n:\nx", nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range tc.files {
				put(root, file, text)
			}
			m := locateCgroupMemory(root, []byte(tc.self))
			if got := m.oomKills(); got != tc.kills {
				t.Errorf("%d kills, want %d", got, tc.kills)
			}
			if got := m.limit(); got != tc.limit {
				t.Errorf("limit %d, want %d", got, tc.limit)
			}
		})
	}
}

func TestRedirectMetrics(t *testing.T) {
	var lines strings.Builder
	info, failed := origdst.Info{Ports: []uint16{50051}, SidecarCgroup: 7, CallerCgroup: 7, Redirected: 12, Lost: 1}, error(nil)
	r := &redirect{
		log:   slog.New(slog.NewTextHandler(&lines, nil)),
		prove: func() (origdst.Info, error) { return info, failed },
		directs: func() ([]origdst.Direct, error) {
			return []origdst.Direct{
				{Destination: netip.MustParseAddrPort("10.96.3.4:50051"), Open: 2, Total: 5},
				{Open: 1, Total: 9},
			}, nil
		},
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r)
	gathered(t, reg, map[string]float64{
		"evenkeel_redirect_effective": 1, "evenkeel_redirected_connects_total": 12, "evenkeel_redirect_lost_total": 1,
		"evenkeel_direct_connections 10.96.3.4:50051": 2, "evenkeel_direct_connections other": 1,
		"evenkeel_direct_connections_total 10.96.3.4:50051": 5, "evenkeel_direct_connections_total other": 9,
	})
	for range 3 {
		r.check(t.Context())
	}
	info.CallerCgroup = 8
	r.check(t.Context())
	failed = fmt.Errorf("%w: nothing answered", origdst.ErrNotEffective)
	for range 3 {
		r.check(t.Context())
	}
	if n := strings.Count(lines.String(), "msg=redirect"); n != 3 {
		t.Errorf("%d lines for three states:\n%s", n, lines.String())
	}
	for _, want := range []string{"level=INFO", "level=ERROR", "level=WARN", "takes cgroup 7", "nothing answered"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	gathered(t, reg, map[string]float64{"evenkeel_redirect_effective": 0})
}

func TestDirectConnectionsAreReportedWhenTheyChange(t *testing.T) {
	server := netip.MustParseAddrPort("10.96.3.4:50051")
	var now []origdst.Direct
	var told []string
	r := &redirect{
		log: quiet, prove: func() (origdst.Info, error) { return origdst.Info{}, nil },
		directs: func() ([]origdst.Direct, error) { return now, nil },
		report:  func(d *api.DirectConnections) { told = append(told, fmt.Sprint(d.GetDestinations())) },
	}
	want := func(n int) {
		t.Helper()
		if len(told) != n {
			t.Errorf("told %d times, want %d: %v", len(told), n, told)
		}
	}
	now = []origdst.Direct{{Destination: server, Open: 2}}
	r.count() // the redirect does not act: there is nothing to count
	want(0)
	r.check(t.Context())
	now = []origdst.Direct{{Destination: server, Total: 7}}
	r.count()
	want(0)
	now = []origdst.Direct{{Open: 1}, {Destination: server, Open: 2, Total: 9}}
	r.count()
	slices.Reverse(now)
	r.count()
	want(1)
	if got := told[0]; !strings.Contains(got, "10.96.3.4:50051") || !strings.Contains(got, "other") {
		t.Errorf("told %s", got)
	}
	now = nil
	r.count()
	r.count()
	want(2)
	if told[1] != "[]" {
		t.Errorf("told %s", told[1])
	}
}

func gathered(t *testing.T, reg *prometheus.Registry, want map[string]float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

func TestOrphansAreReapedByPID1(t *testing.T) {
	for _, tool := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	port, _ := startBackends(t, 1)
	p := prepare(t, controlPlane(t, port, 1))
	p.cmd = exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child"}, p.cmd.Args...)...)
	p.launch()
	p.worker(1)
	kids := children(t, p.cmd.Process.Pid)
	if len(kids) != 1 {
		t.Fatalf("unshare has the children %v", kids)
	}
	init := kids[0]
	for i := range 5 {
		// The shell ends at once and leaves its children to PID 1.
		out, err := exec.Command("nsenter", "--target", fmt.Sprint(init), "--pid", "--mount", "sh", "-c", "for i in 1 2 3; do sleep 0.1 & done").CombinedOutput()
		if err != nil {
			t.Fatalf("nsenter: %v: %s", err, out)
		}
		if i == 2 {
			// Among them, the worker's own end must reach the supervisor.
			worker := 0
			for _, pid := range children(t, init) {
				if cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(cmdline, []byte("\x00worker\x00")) {
					worker = pid
				}
			}
			if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if got := p.waitFor(saidEnded, 1).Cause; got != causeSignal {
				t.Errorf("cause %q", got)
			}
		}
	}
	time.Sleep(300 * time.Millisecond)
	eventually(t, "only the worker is left", func() bool { return len(children(t, init)) == 1 && alive(children(t, init)[0]) })
}

func children(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that ended
		}
		for f := range strings.FieldsSeq(string(text)) {
			var pid int
			if _, err := fmt.Sscan(f, &pid); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKernelOutOfMemory has the kernel kill the worker in a memory cgroup (v1,
// or v2 where it has the controller) and expects the cause to be told.
func TestKernelOutOfMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a cgroup needs root")
	}
	dir, limitFile := memoryCgroup(t)
	port, _ := startBackends(t, 1)
	p := prepare(t, controlPlane(t, port, 1))
	p.cmd = exec.Command("sh", append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs")}, p.cmd.Args...)...)
	p.launch()
	eventually(t, "ready", func() bool { code, _ := get(t, "http://"+p.pod+"/ready"); return code == 200 })

	// The limit comes down to what is in use; then the worker is given work that
	// needs more.
	limit := anonymous(p.cmd.Process.Pid) + anonymous(p.worker(1))
	eventually(t, "the kernel takes a limit", func() bool {
		limit += 512 << 10 // v1 refuses one below what it cannot reclaim
		return os.WriteFile(filepath.Join(dir, limitFile), []byte(fmt.Sprint(limit)), 0o644) == nil
	})
	for range 4000 {
		if p.count(saidEnded) > 0 {
			break
		}
		conn, err := net.Dial("tcp4", p.outbound())
		if err != nil {
			continue
		}
		defer conn.Close()
		// A session, which costs memory: RFC 9113 section 3.4, and empty SETTINGS.
		_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	}
	if got := p.waitFor(saidEnded, 1).Cause; got != causeOOM {
		t.Errorf("cause %q, want %q", got, causeOOM)
	}
	if err := os.WriteFile(filepath.Join(dir, limitFile), []byte("1073741824"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, _ := client(t, p)
	eventually(t, "served again", func() bool { return check(t, c) == nil })
}

func memoryCgroup(t *testing.T) (dir, limitFile string) {
	t.Helper()
	parent, limitFile := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if !exists(filepath.Join(parent, limitFile)) {
		parent, limitFile = "/sys/fs/cgroup", "memory.max"
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0o644); err != nil {
			t.Skipf("no memory controller to use: %v", err)
		}
	}
	dir = filepath.Join(parent, fmt.Sprintf("evenkeel-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no memory cgroup can be made: %v", err)
	}
	t.Cleanup(func() {
		eventually(t, "the cgroup is empty", func() bool { return syscall.Rmdir(dir) == nil })
	})
	return dir, limitFile
}
