// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"evenkeel.dev/e2e/cluster/debian"
	"evenkeel.dev/e2e/cluster/internal/build"
	"evenkeel.dev/e2e/cluster/internal/cgroup"
	"evenkeel.dev/e2e/cluster/internal/pki"
)

// Cluster is a running cluster. Its methods may be called by several goroutines,
// but those which end and boot nodes only by one at a time per node.
type Cluster struct {
	cfg      Config
	programs map[string]string
	api      *apiClient

	// lock is held from Start to Stop or Detach; nil after Open.
	lock *os.File

	// mu guards what follows.
	mu    sync.Mutex
	state *state
	// lifelines are the writing ends, by the name of the node or "switch".
	// They are closed with this process, at the latest.
	lifelines map[string]*os.File
}

// Build makes what is missing of the cluster's programs and base images, and
// installs missing Debian packages. Start does it too.
func Build(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	_, err = buildAll(ctx, cfg)
	return err
}

func buildAll(ctx context.Context, cfg Config) (*build.Programs, error) {
	if err := debian.Ensure(ctx, debian.Cluster(), cfg.Progress); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	programs, err := build.Run(ctx, build.Config{Dir: cfg.CacheDir, Progress: cfg.Progress})
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return programs, nil
}

// Start builds what is missing, ends a cluster of the same name if there is one,
// and returns when all nodes and the cluster's DNS are ready.
//
// The cluster lives as long as this process, however that ends, unless Detach is
// called. If Start fails, what it started is ended, and the logs stay until the
// next Start or Down: the error says where.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := needRoot(); err != nil {
		return nil, err
	}
	programs, err := buildAll(ctx, cfg)
	if err != nil {
		return nil, err
	}
	lock, err := lockCluster(cfg)
	if err != nil {
		return nil, fmt.Errorf("cluster: start: %w", err)
	}
	if err := down(ctx, cfg); err != nil {
		lock.Close()
		return nil, fmt.Errorf("cluster: end the previous one: %w", err)
	}
	c := &Cluster{cfg: cfg, lock: lock, lifelines: map[string]*os.File{}, programs: map[string]string{}}
	if err := c.start(ctx, programs); err != nil {
		c.abandon()
		return nil, fmt.Errorf("cluster: start: %w (logs: %s/node*/log)", err, cfg.runDir())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, programs *build.Programs) error {
	begin := time.Now()
	progress := func(format string, args ...any) {
		c.cfg.Progress(fmt.Sprintf("%5.1fs ", time.Since(begin).Seconds()) + fmt.Sprintf(format, args...))
	}
	if err := os.MkdirAll(c.cfg.runDir(), 0o755); err != nil {
		return err
	}
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := cgroup.Create(hs, c.cfg.id()+"/"+initsCgroup); err != nil {
		return err
	}
	if err := installProgram(ctx, c.cfg); err != nil {
		return err
	}
	ln, port, err := listenHost(ctx)
	if err != nil {
		return err
	}
	defer ln.Close()
	p := pkiConfig(c.cfg, port)
	p.Now = time.Now()
	if err := pki.Create(p); err != nil {
		return err
	}
	for _, name := range []string{"kubectl", "helm", "ctr"} {
		c.programs[name] = programs.Path(name)
	}
	c.state = &state{Nodes: c.cfg.Nodes, ProxyMode: c.cfg.ProxyMode, HostPort: port, Running: map[string]process{}, Programs: c.programs}
	if err := c.startSwitch(ctx, ln); err != nil {
		return err
	}
	for i := 1; i <= c.cfg.Nodes; i++ {
		s := nodeSpec(c.cfg, programs, i)
		if err := os.MkdirAll(s.Dir, 0o755); err != nil {
			return err
		}
		if err := s.Write(filepath.Join(s.Dir, "spec.json")); err != nil {
			return err
		}
		if err := c.boot(ctx, s.Name); err != nil {
			return err
		}
	}
	if c.api, err = newAPIClient(c.cfg, port); err != nil {
		return err
	}
	if err := c.waitForAPI(ctx); err != nil {
		return err
	}
	progress("API server is ready")
	if err := c.deployDNS(ctx); err != nil {
		return err
	}
	for i := 1; i <= c.cfg.Nodes; i++ {
		if err := c.WaitNode(ctx, nodeName(i), NodeReady); err != nil {
			return err
		}
		progress("%s is ready", nodeName(i))
	}
	if err := c.waitForDNS(ctx); err != nil {
		return err
	}
	progress("DNS is ready")
	return nil
}

// Open connects to a cluster that another process has started and detached.
func Open(cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	st, err := readState(cfg)
	if err != nil {
		return nil, fmt.Errorf("cluster: open: %w", err)
	}
	if st == nil || !st.Switch.alive() {
		return nil, fmt.Errorf("cluster: %s is not running: start it with: make cluster", cfg.Name)
	}
	cfg.Nodes, cfg.ProxyMode = st.Nodes, st.ProxyMode
	c := &Cluster{cfg: cfg, state: st, programs: st.Programs, lifelines: map[string]*os.File{}}
	if c.api, err = newAPIClient(cfg, st.HostPort); err != nil {
		return nil, fmt.Errorf("cluster: open: %w", err)
	}
	return c, nil
}

// Stop ends the cluster and removes all that is left of it.
func (c *Cluster) Stop(ctx context.Context) error {
	c.api.close()
	if c.lock == nil {
		return Down(ctx, c.cfg)
	}
	err := down(ctx, c.cfg)
	c.closeLifelines()
	err = errors.Join(err, os.Remove(c.cfg.lockFile()), c.lock.Close())
	c.lock = nil
	if err != nil {
		return fmt.Errorf("cluster: stop: %w", err)
	}
	return nil
}

// Detach lets the cluster live on when this process ends. c stays usable.
func (c *Cluster) Detach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for name, f := range c.lifelines {
		if _, err := f.Write([]byte{detach}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		errs = append(errs, f.Close())
		delete(c.lifelines, name)
	}
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
		c.lock = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cluster: detach: %w", err)
	}
	return nil
}

// abandon ends what a failed Start has started, but keeps the logs.
func (c *Cluster) abandon() {
	c.closeLifelines() // each then cleans up after itself
	if c.state != nil {
		for deadline := time.Now().Add(killTimeout); c.anyAlive() && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	c.lock.Close()
}

func (c *Cluster) anyAlive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.state.Running {
		if p.alive() {
			return true
		}
	}
	return c.state.Switch.alive()
}

func (c *Cluster) closeLifelines() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, f := range c.lifelines {
		f.Close() // it has nothing to flush
		delete(c.lifelines, name)
	}
}
