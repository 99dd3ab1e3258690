// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"evenkeel.dev/cmd/internal/sandbox"
)

// mesh says whether a run has Evenkeel.
type mesh uint8

const (
	without mesh = iota
	with
)

func (m mesh) String() string {
	if m == with {
		return "with Evenkeel"
	}
	return "without Evenkeel"
}

// clusterIP is the Service's address; servers are at 10.244.1.1 and up. Inside the demo's network namespace nothing else is there.
var clusterIP = netip.MustParseAddrPort("10.96.0.10:50051")

func serverAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)}), clusterIP.Port())
}

// target is what the clients dial, the Service's ordinary name.
const target = "pricing.shop:50051"

// clientTimeout bounds the start and the end of the clients: some hundred milliseconds, unless the machine is very busy.
const clientTimeout = 30 * time.Second

// world is one run of the incident: the service, its clients, and what stands between them.
type world struct {
	plan     Plan
	logger   *slog.Logger
	progress func(format string, args ...any)
	scope    *sandbox.Scope

	zero         time.Time
	dir          string                // manifests and hosts
	controlPlane *sandbox.ControlPlane // nil without Evenkeel
	servers      []*server             // those of the first incident, then those that take their places
	mu           sync.Mutex            // guards state, and the file that is made of it
	state        clusterState
	readyAt      []time.Duration // per server
	proxy        *kubeProxy
	clients      []*client
}

// client is a running client process.
type client struct {
	cmd   *exec.Cmd
	stdin *os.File
	lines chan string // what it says; closed at the end of its stdout
}

// say returns the next line of the client.
func (c *client) say(ctx context.Context) (string, error) {
	select {
	case line, ok := <-c.lines:
		if !ok {
			return "", errors.New("it ended")
		}
		return line, nil
	case <-ctx.Done():
		return "", fmt.Errorf("it says nothing: %w", context.Cause(ctx))
	}
}

// play plays the incident once.
func (d *Demo) play(ctx context.Context, m mesh) (outcome *Outcome, err error) {
	scope, err := sandbox.NewScope(sandbox.ScopeConfig{Logger: d.Logger, Log: d.Log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, scope.Close()) }()
	w := &world{
		plan: d.Plan, logger: d.Logger, scope: scope, zero: time.Now(), dir: scope.Dir(),
		progress: func(format string, args ...any) { d.progress("%s: %s", m, fmt.Sprintf(format, args...)) },
		readyAt:  make([]time.Duration, 2*d.Plan.Servers),
	}
	defer w.stop()
	return w.run(ctx, m)
}

// run is the incident, in order.
func (w *world) run(ctx context.Context, m mesh) (*Outcome, error) {
	if err := w.startService(ctx, m); err != nil {
		return nil, err
	}
	launch, err := w.pods(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := w.startClients(ctx, launch); err != nil {
		return nil, err
	}
	w.progress("%d clients started while %d of %d servers are ready", w.plan.Clients, w.plan.Early, w.plan.Servers)
	if err := sleep(ctx, w.plan.Before); err != nil {
		return nil, err
	}
	late := make([]int, 0, w.plan.Servers)
	for i := w.plan.Early; i < w.plan.Servers; i++ {
		late = append(late, i)
	}
	if err := w.becomeReady(ctx, late...); err != nil {
		return nil, err
	}
	w.progress("the other %d servers are ready; measuring for %s", len(late), w.plan.After)
	if err := sleep(ctx, w.plan.After); err != nil {
		return nil, err
	}
	end := time.Since(w.zero)
	if err := w.restart(ctx); err != nil {
		return nil, err
	}
	failed, firstError, err := w.stopClients(ctx)
	if err != nil {
		return nil, err
	}
	got := make(arrivals, w.plan.Servers)
	for i := range got {
		got[i] = w.servers[i].arrivals()
	}
	outcome := judge(got, w.readyAt[:w.plan.Servers], late, end)
	outcome.Failed, outcome.firstError = failed, firstError
	if n := w.proxy.connections(); m == with && n > 0 {
		return nil, fmt.Errorf("%d connections went to the ClusterIP itself: the redirect did not take them", n)
	}
	return outcome, nil
}

// startService starts the early servers and what stands for kube-proxy and the API server.
func (w *world) startService(ctx context.Context, m mesh) error {
	w.state.ClusterIP = clusterIP
	early := make([]int, 0, w.plan.Early)
	for i := range 2 * w.plan.Servers {
		s := newServer("pricing-"+strconv.Itoa(i), serverAddr(i), w.zero)
		w.servers = append(w.servers, s)
		w.state.Servers = append(w.state.Servers, serverState{Name: s.name, UID: "uid-" + s.name, Addr: s.addr})
		if i < w.plan.Early {
			early = append(early, i)
		}
	}
	var err error
	if w.proxy, err = startKubeProxy(ctx, clusterIP, w.logger); err != nil {
		return fmt.Errorf("listen on the ClusterIP: %w", err)
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n%s\tpricing.shop.svc.cluster.local pricing.shop.svc pricing.shop\n", clusterIP.Addr())
	if err := os.WriteFile(w.hosts(), []byte(hosts), 0o644); err != nil {
		return err
	}
	if err := os.Mkdir(w.manifests(), 0o700); err != nil {
		return err
	}
	if err := w.state.write(w.manifests()); err != nil {
		return err
	}
	if m == with {
		if w.controlPlane, err = w.scope.StartControlPlane(ctx, sandbox.ControlPlaneConfig{Dir: w.manifests()}); err != nil {
			return err
		}
	}
	return w.becomeReady(ctx, early...)
}

func (w *world) hosts() string     { return filepath.Join(w.dir, "hosts") }
func (w *world) manifests() string { return filepath.Join(w.dir, "manifests") }

// launcher starts the i-th client.
type launcher func(i int, c sandbox.Command) (*exec.Cmd, error)

// pods prepares where the clients run: each in a pod of its own with a sidecar, or each in a cgroup of its own.
func (w *world) pods(ctx context.Context, m mesh) (launcher, error) {
	name := func(i int) string { return "client-" + strconv.Itoa(i) }
	if m == without {
		return func(i int, c sandbox.Command) (*exec.Cmd, error) {
			return w.scope.StartCommand(name(i), w.hosts(), c)
		}, nil
	}
	pods := make([]*sandbox.Pod, w.plan.Clients)
	errs := make([]error, w.plan.Clients)
	var starts sync.WaitGroup
	for i := range pods {
		starts.Go(func() {
			pods[i], errs[i] = w.scope.StartPod(ctx, sandbox.PodConfig{
				Namespace:     "shop",
				Name:          name(i),
				ControlPlane:  w.controlPlane,
				OutboundPorts: []uint16{clusterIP.Port()},
				Hosts:         w.hosts(),
			})
		})
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return func(i int, c sandbox.Command) (*exec.Cmd, error) { return pods[i].Start(c) }, nil
}

// startClients starts the clients and waits until each has had an answer: from then on, without Evenkeel, it is pinned.
func (w *world) startClients(ctx context.Context, launch launcher) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	for i := range w.plan.Clients {
		c, err := startClient(i, w.plan.Rate, launch)
		if err != nil {
			return fmt.Errorf("start client %d: %w", i, err)
		}
		w.clients = append(w.clients, c)
	}
	for i, c := range w.clients {
		if line, err := c.say(ctx); err != nil {
			return fmt.Errorf("client %d: no first answer: %w", i, err)
		} else if line != connected {
			return fmt.Errorf("client %d: said %q, want %q", i, line, connected)
		}
	}
	return nil
}

func startClient(i, rate int, launch launcher) (*client, error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	stdout, out, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return nil, err
	}
	defer out.Close()
	c := &client{stdin: stdin, lines: make(chan string, 2)}
	c.cmd, err = launch(i, sandbox.Command{
		Path:  "/proc/self/exe",
		Argv:  []string{"evenkeel", ClientCommand, "-target=" + target, "-rate=" + strconv.Itoa(rate)},
		Stdin: in, Stdout: out, Stderr: os.Stderr,
	})
	if err != nil {
		stdin.Close()
		stdout.Close()
		return nil, err
	}
	go func() {
		defer stdout.Close()
		defer close(c.lines)
		// Two lines fit the channel: nobody needs to be there for this to end.
		for lines := bufio.NewScanner(io.LimitReader(stdout, 1<<16)); lines.Scan() && len(c.lines) < cap(c.lines); {
			c.lines <- lines.Text()
		}
	}()
	return c, nil
}

// stopClients ends the clients and adds up what they say.
func (w *world) stopClients(ctx context.Context) (failed int, firstError string, err error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	for _, c := range w.clients {
		c.stdin.Close()
	}
	clients := w.clients
	w.clients = nil
	for i, c := range clients {
		result, err := c.result(ctx)
		if err != nil {
			return 0, "", fmt.Errorf("client %d: %w", i, err)
		}
		failed += result.Failed
		if firstError == "" {
			firstError = result.FirstError
		}
	}
	return failed, firstError, nil
}

// result waits for the client's last word and its end.
func (c *client) result(ctx context.Context) (clientResult, error) {
	var result clientResult
	line, err := c.say(ctx)
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal([]byte(line), &result); err != nil {
		return result, fmt.Errorf("said %q: %w", line, err)
	}
	return result, c.cmd.Wait()
}

// stop ends what run started; the clients' processes end with the scope.
func (w *world) stop() {
	for _, c := range w.clients {
		c.stdin.Close()
	}
	if w.proxy != nil {
		w.proxy.stop()
	}
	for _, s := range w.servers {
		s.stop()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addresses are all that the demo's network needs.
func addresses(plan Plan) []netip.Addr {
	addrs := []netip.Addr{clusterIP.Addr()}
	for i := range 2 * plan.Servers {
		addrs = append(addrs, serverAddr(i).Addr())
	}
	return slices.Clip(addrs)
}
