// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
	"evenkeel.dev/e2e/cluster/internal/netns"
	"evenkeel.dev/e2e/cluster/internal/node"
)

const (
	detach     = node.Detach
	switchName = "switch"

	// plugTimeout bounds the wait for the switch's bridge.
	plugTimeout = 10 * time.Second
)

// Subcommands of the cluster command that only the harness calls.
const (
	RoleNode   = "internal-node"
	RoleSwitch = "internal-switch"
)

// installProgram puts the cluster command into the run folder: it must stay as
// it is while nodes run and reboot, whatever happens to the checkout.
func installProgram(ctx context.Context, cfg Config) error {
	target := cfg.installedProgram()
	if cfg.Program == "" {
		cmd := exec.CommandContext(ctx, "go", "build", "-o", target, module+"/e2e/cluster/cmd/cluster")
		cmd.Dir = cfg.Checkout
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the cluster command: %w\n%s", err, out)
		}
		return nil
	}
	in, err := os.Open(cfg.Program)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func (c Config) installedProgram() string { return filepath.Join(c.runDir(), "cluster") }

// listenHost makes the listener by which programs on the machine reach the API
// server.
func listenHost(ctx context.Context) (*os.File, uint16, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	defer ln.Close()
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return nil, 0, fmt.Errorf("listener is a %T", ln)
	}
	addr, err := netip.ParseAddrPort(tcp.Addr().String())
	if err != nil {
		return nil, 0, err
	}
	f, err := tcp.File()
	return f, addr.Port(), err
}

func (c *Cluster) startSwitch(ctx context.Context, ln *os.File) error {
	p, err := c.spawn(switchName, syscall.CLONE_NEWNET, ln, RoleSwitch, c.cfg.id(), switchAddress.String(), network.APIServer.String())
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.state.Switch = p
	err = c.state.write(c.cfg)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(plugTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := netns.Do(p.PID, func() error {
			_, err := net.InterfaceByName(node.SwitchBridge)
			return err
		})
		if err == nil {
			return nil
		}
		if !p.alive() || time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("the switch did not start: %w (log: %s)", err, c.logOf(switchName)), ctx.Err())
		}
	}
}

// boot starts a node from its spec.json and plugs it in. It does not wait until
// the node is ready.
func (c *Cluster) boot(ctx context.Context, name string) error {
	const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	p, err := c.spawn(name, namespaces, nil, RoleNode, filepath.Join(c.cfg.runDir(), name, "spec.json"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.state.Running[name] = p
	sw := c.state.Switch.PID
	err = c.state.write(c.cfg)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	// All in the switch's namespace: the machine's sees no interface.
	port := portOf(name)
	if err := runIn(ctx, sw, "ip", "link", "add", port, "type", "veth", "peer", "name", node.Uplink, "netns", strconv.Itoa(p.PID)); err != nil {
		return fmt.Errorf("plug %s in: %w", name, err)
	}
	if err := runIn(ctx, sw, "ip", "link", "set", port, "master", node.SwitchBridge, "up"); err != nil {
		return fmt.Errorf("plug %s in: %w", name, err)
	}
	return nil
}

// portOf names a node's port of the switch.
func portOf(name string) string { return "to-" + name }

func (c *Cluster) logOf(name string) string { return filepath.Join(c.cfg.runDir(), name+".log") }

// spawn starts the cluster command in new namespaces, inside the cluster's
// cgroup, with a lifeline.
func (c *Cluster) spawn(name string, namespaces uintptr, extra *os.File, args ...string) (process, error) {
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return process{}, err
	}
	unified, err := cgroup.Unified(hs)
	if err != nil {
		return process{}, err
	}
	group, err := os.Open(filepath.Join(unified.Mount, c.cfg.id(), initsCgroup))
	if err != nil {
		return process{}, err
	}
	defer group.Close()
	log, err := os.OpenFile(c.logOf(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return process{}, err
	}
	defer r.Close()
	// Not with a context: the process lives until it is killed or the lifeline
	// ends.
	cmd := exec.Command(c.cfg.installedProgram(), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{r}
	if extra != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, extra)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: namespaces, UseCgroupFD: true, CgroupFD: int(group.Fd()),
	}
	if err := cmd.Start(); err != nil {
		w.Close()
		return process{}, fmt.Errorf("start %s: %w", name, err)
	}
	p, err := processOf(cmd.Process.Pid)
	// Reap it; how it ended is in its log.
	go func() { _ = cmd.Wait() }()
	if err != nil {
		w.Close()
		return process{}, fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	c.lifelines[name] = w
	c.mu.Unlock()
	return p, nil
}

// runIn runs a short command in the network namespace of process pid.
func runIn(ctx context.Context, pid int, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	out := &tail{limit: 4096}
	cmd.Stdout, cmd.Stderr = out, out
	if err := netns.Start(pid, cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// tail keeps the last bytes that were written to it.
type tail struct {
	limit int
	buf   []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.buf) }
