// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

// The peers' configurations: one listener on loopback, the backends, one worker, no access log.
//
//go:embed peers
var peerFiles embed.FS

// proxy is one running proxy: its processes' CPU time is what is measured.
type proxy struct {
	name      string
	addr      string // where load connects
	authority string // what load sends as :authority
	cmds      []*exec.Cmd
	log       string
	measured  *exec.Cmd // the proxy itself; its children count too
}

type proxySet []*proxy

type proxyEnv struct {
	dir      string // scratch
	bin      string // of Evenkeel's daemons
	backends []string
}

func startProxies(ctx context.Context, names []string, env proxyEnv) (proxySet, error) {
	var set proxySet
	for _, n := range names {
		p, err := startProxy(ctx, strings.TrimSpace(n), env)
		if err == nil {
			set = append(set, p)
			err = p.wait(ctx)
		}
		if err != nil {
			set.stop()
			return nil, fmt.Errorf("start %s: %w", n, err)
		}
	}
	return set, nil
}

func startProxy(ctx context.Context, name string, env proxyEnv) (*proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &proxy{name: name, addr: "127.0.0.1:" + port, authority: "127.0.0.1:" + port, log: filepath.Join(env.dir, name+".log")}
	dir := filepath.Join(env.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	render := func(file string) (string, error) {
		t, err := template.New(file).ParseFS(peerFiles, "peers/"+file)
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, strings.TrimSuffix(file, ".tmpl"))
		f, err := os.Create(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return path, t.Execute(f, map[string]any{"Port": port, "Backends": env.backends, "Dir": dir})
	}
	switch name {
	case "evenkeel":
		return p, p.startEvenkeel(ctx, dir, env, port)
	case "nghttpx":
		args := []string{"-f127.0.0.1," + port + ";no-tls", "-n1", "--no-via", "--accesslog-file=/dev/null", "--errorlog-file=/dev/stderr", "--conf=/dev/null"}
		for _, b := range env.backends {
			host, port, _ := net.SplitHostPort(b)
			args = append(args, "-b"+host+","+port+";;proto=h2")
		}
		p.measured, err = p.start(ctx, "nghttpx", args...)
	case "haproxy":
		var conf string
		if conf, err = render("haproxy.cfg.tmpl"); err == nil {
			p.measured, err = p.start(ctx, "haproxy", "-f", conf)
		}
	case "nginx":
		var conf string
		if conf, err = render("nginx.conf.tmpl"); err == nil {
			p.measured, err = p.start(ctx, "nginx", "-p", dir+"/", "-c", conf, "-g", "daemon off;")
		}
	default:
		err = errors.New("known are evenkeel, nghttpx, haproxy, nginx")
	}
	return p, err
}

// startEvenkeel runs the real control plane on a folder of manifests and the real sidecar.
func (p *proxy) startEvenkeel(ctx context.Context, dir string, env proxyEnv, port string) error {
	manifests := filepath.Join(dir, "manifests")
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return err
	}
	t, err := template.ParseFS(peerFiles, "peers/evenkeel.yaml.tmpl")
	if err != nil {
		return err
	}
	type backend struct{ Host, Port string }
	var bs []backend
	for _, b := range env.backends {
		h, port, err := net.SplitHostPort(b)
		if err != nil {
			return err
		}
		bs = append(bs, backend{h, port})
	}
	f, err := os.Create(filepath.Join(manifests, "echo.yaml"))
	if err != nil {
		return err
	}
	if err := errors.Join(t.Execute(f, map[string]any{"Backends": bs}), f.Close()); err != nil {
		return err
	}
	ports := make([]string, 3)
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return err
		}
	}
	sock := "unix://" + filepath.Join(dir, "xds.sock")
	if _, err := p.start(ctx, filepath.Join(env.bin, "xds"), "run", "--files="+manifests, "--listen="+sock, "--admin-listen=127.0.0.1:"+ports[0]); err != nil {
		return err
	}
	p.authority = "echo.bench:50051"
	p.measured, err = p.start(ctx, filepath.Join(env.bin, "sidecar"), "run", "--listen-port="+port, "--pod-listen=127.0.0.1:"+ports[1],
		"--debug-listen=127.0.0.1:"+ports[2], "--xds="+sock, "--namespace=bench", "--pod=bench", "--state-dir="+dir, "--log-level=warn")
	return err
}

func (p *proxy) start(ctx context.Context, path string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.cmds = append(p.cmds, cmd)
	return cmd, nil
}

// wait until one RPC comes through, so that no round pays for start-up.
func (p *proxy) wait(ctx context.Context) error {
	var err error
	for range 100 {
		if _, err = generate(ctx, p.addr, p.authority, shape{conns: 1, streams: 1, requests: 1, body: 14}); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	log, _ := os.ReadFile(p.log)
	return fmt.Errorf("no RPC came through within 10 s: %w\n%s", err, log)
}

func (s proxySet) stop() {
	for _, p := range s {
		for _, cmd := range slices.Backward(p.cmds) {
			cmd.Process.Signal(syscall.SIGTERM)                                  //nolint:errcheck // ended already is fine
			kill := time.AfterFunc(3*time.Second, func() { cmd.Process.Kill() }) //nolint:errcheck // ended already is fine
			cmd.Wait()                                                           //nolint:errcheck // its exit status says nothing here
			kill.Stop()
		}
	}
}

// pids of the measured process and its descendants.
func (p *proxy) pids() []int {
	all := []int{p.measured.Process.Pid}
	for i := 0; i < len(all); i++ {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			for c := range strings.FieldsSeq(string(b)) {
				if n, err := strconv.Atoi(c); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// cpu time of all the proxy's threads. schedstat counts nanoseconds; /proc/PID/stat has ticks of 10 ms.
func (p *proxy) cpu() (time.Duration, error) {
	var sum time.Duration
	for _, pid := range p.pids() {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if len(files) == 0 {
			return 0, fmt.Errorf("process %d is gone or the kernel has no schedstat", pid)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return 0, err
			}
			first, _, _ := strings.Cut(string(b), " ")
			ns, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", f, err)
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}

// rss of all the proxy's processes, and of the largest, KiB.
func (p *proxy) rss() (sum, largest uint64) {
	for _, pid := range p.pids() {
		f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		b, _ := io.ReadAll(f)
		f.Close()
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kib, _ := strconv.ParseUint(strings.Fields(v)[0], 10, 64)
				sum += kib
				largest = max(largest, kib)
			}
		}
	}
	return sum, largest
}

func freePort() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
