// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command cluster builds, starts and ends the real Kubernetes cluster of the
// tests on this machine. See package evenkeel.dev/e2e/cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster"
	"evenkeel.dev/e2e/cluster/internal/node"
)

const usage = `usage: cluster [flags] COMMAND [args]

  build                    build all programs and base images into the cache
  up                       start a cluster (ends one that runs) and leave it running
  down                     end it and remove all that is left of it, also after a crash
  status                   what runs, and where things are
  kubeconfig               print the path of a kubeconfig for this machine
  kubectl ARGS...          run kubectl
  helm ARGS...             run helm
  load ARCHIVE...          import OCI archives into every node
  exec NODE CMD...         run a command inside a node (all its namespaces)
  net NODE CMD...          run a command of this machine in a node's network
  poweroff|poweron NODE    pull the plug of a node; boot it again
  unplug|plug NODE         cut a node's network cable; connect it again
  daemon NODE DAEMON VERB  VERB: start, stop, kill (it comes back), pause, resume
  dump DIR                 write logs, events and objects into DIR

flags:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && strings.HasPrefix(args[0], "internal-") {
		// PID 1 of a node must not end at a terminal's Ctrl-C, nor by SIGTERM:
		// its life is its lifeline's.
		if err := runRole(context.Background(), args); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := command(ctx, args, stdout, stderr)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode() // kubectl and its like have said why
	default:
		fmt.Fprintln(stderr, err)
		return 1
	}
}

// runRole is what the harness starts inside new namespaces.
func runRole(ctx context.Context, args []string) error {
	switch {
	case args[0] == cluster.RoleNode && len(args) == 2:
		return node.Run(ctx, args[1])
	case args[0] == cluster.RoleSwitch && len(args) == 4:
		address, err := netip.ParsePrefix(args[2])
		if err != nil {
			return err
		}
		apiServer, err := netip.ParseAddrPort(args[3])
		if err != nil {
			return err
		}
		return node.RunSwitch(ctx, args[1], address, apiServer)
	}
	return fmt.Errorf("unknown role: %v", args)
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("cluster", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	cfg := cluster.Config{Progress: func(line string) { fmt.Fprintln(stderr, line) }}
	fs.StringVar(&cfg.Name, "name", "", "cluster's `name`, for several of one checkout (default \"default\")")
	fs.IntVar(&cfg.Nodes, "nodes", 0, "`number` of nodes, 1 to 3 (default 2)")
	fs.StringVar(&cfg.ProxyMode, "proxy-mode", "", "kube-proxy's `mode`: nftables or iptables (default nftables)")
	fs.StringVar(&cfg.CacheDir, "cache-dir", "", "`folder` of programs and state (default: evenkeel in the user's cache folder)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return flag.ErrHelp
	}
	name, rest := fs.Arg(0), fs.Args()[1:]
	switch name {
	case "build":
		return cluster.Build(ctx, cfg)
	case "up":
		return up(ctx, cfg, stdout)
	case "down":
		return cluster.Down(ctx, cfg)
	}
	c, err := cluster.Open(cfg)
	if err != nil {
		return err
	}
	o := operator{ctx: ctx, cluster: c, stdout: stdout, stderr: stderr}
	return o.run(name, rest)
}

func up(ctx context.Context, cfg cluster.Config, stdout io.Writer) error {
	var err error
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if err := c.Detach(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", c.Kubeconfig())
	return nil
}

// operator carries out commands on a running cluster.
type operator struct {
	ctx            context.Context
	cluster        *cluster.Cluster
	stdout, stderr io.Writer
}

func (o *operator) run(name string, args []string) error {
	need := map[string]int{"load": 1, "exec": 2, "net": 2, "poweroff": 1, "poweron": 1, "unplug": 1, "plug": 1, "daemon": 3, "dump": 1}
	if len(args) < need[name] {
		return fmt.Errorf("%s: want at least %d arguments", name, need[name])
	}
	switch name {
	case "status":
		return o.status()
	case "kubeconfig":
		fmt.Fprintln(o.stdout, o.cluster.Kubeconfig())
		return nil
	case "kubectl", "helm":
		return o.client(name, args)
	case "load":
		return o.cluster.LoadImage(o.ctx, args...)
	case "exec":
		return o.enter(args[0], "-a", args[1:])
	case "net":
		return o.enter(args[0], "-n", args[1:])
	case "poweroff":
		return o.cluster.PowerOff(o.ctx, args[0])
	case "poweron":
		return errors.Join(o.cluster.PowerOn(o.ctx, args[0]), o.cluster.WaitNode(o.ctx, args[0], cluster.NodeReady), o.cluster.Detach())
	case "unplug":
		return o.cluster.Unplug(o.ctx, args[0])
	case "plug":
		return o.cluster.Plug(o.ctx, args[0])
	case "daemon":
		return o.daemon(args[0], args[1], args[2])
	case "dump":
		return o.cluster.Dump(o.ctx, args[0])
	}
	return fmt.Errorf("unknown command %q; run without arguments for help", name)
}

func (o *operator) status() error {
	fmt.Fprintf(o.stdout, "kubeconfig %s\n", o.cluster.Kubeconfig())
	for _, n := range o.cluster.Nodes() {
		if pid, err := o.cluster.NodePID(n); err != nil {
			fmt.Fprintf(o.stdout, "%s off, state %s\n", n, o.cluster.NodeDir(n))
		} else {
			fmt.Fprintf(o.stdout, "%s pid %d, address %s, state %s\n", n, pid, o.cluster.NodeIP(n), o.cluster.NodeDir(n))
		}
	}
	return nil
}

func (o *operator) client(name string, args []string) error {
	cmd := exec.CommandContext(o.ctx, o.cluster.Program(name), args...)
	cmd.Env = o.cluster.ClientEnv()
	return o.foreground(cmd)
}

// enter runs a command by nsenter(1): it forks where a PID namespace needs it.
func (o *operator) enter(nodeName, which string, argv []string) error {
	pid, err := o.cluster.NodePID(nodeName)
	if err != nil {
		return err
	}
	args := append([]string{"-t", strconv.Itoa(pid), which, "--"}, argv...)
	return o.foreground(exec.CommandContext(o.ctx, "nsenter", args...))
}

func (o *operator) foreground(cmd *exec.Cmd) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, o.stdout, o.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}

func (o *operator) daemon(nodeName, daemon, verb string) error {
	switch verb {
	case "start":
		return o.cluster.StartDaemon(nodeName, daemon)
	case "stop":
		return o.cluster.StopDaemon(nodeName, daemon)
	case "kill":
		return o.cluster.SignalDaemon(nodeName, daemon, unix.SIGKILL)
	case "pause":
		return o.cluster.SignalDaemon(nodeName, daemon, unix.SIGSTOP)
	case "resume":
		return o.cluster.SignalDaemon(nodeName, daemon, unix.SIGCONT)
	}
	return fmt.Errorf("daemon: verb %q: want start, stop, kill, pause or resume", verb)
}
