// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"evenkeel.dev/e2e/cluster/internal/cgroup"
)

// bootTimeout bounds each wait of a boot.
const bootTimeout = 2 * time.Minute

// Run is PID 1 of the node that specFile describes. It returns only when the
// node could not be set up, or when the harness is gone and all is cleaned up.
func Run(ctx context.Context, specFile string) error {
	s, err := ReadSpec(specFile)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("node %s: not PID 1 of a PID namespace: only the harness starts nodes", s.Name)
	}
	if err := os.MkdirAll(s.LogDir(), 0o755); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	n := &nodeProcess{spec: s, log: log, ps: newProcesses(), registry: registry{daemons: map[string]*daemon{}}}
	gone := make(chan struct{})
	watchLifeline(func() { close(gone) })
	booted := make(chan error, 1)
	go func() { booted <- n.boot(ctx) }()
	select {
	case err := <-booted:
		if err != nil {
			n.cleanUp()
			return fmt.Errorf("node %s: %w", s.Name, err)
		}
		log.Info("boot finished")
		<-gone
	case <-gone:
	}
	log.Warn("the harness is gone: ending the node")
	n.cleanUp()
	return nil
}

type nodeProcess struct {
	spec     *Spec
	log      *slog.Logger
	ps       *processes
	registry registry
	cgroup   *os.File
}

func (n *nodeProcess) boot(ctx context.Context) error {
	s := n.spec
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := mountPrivate(s); err != nil {
		return err
	}
	if err := cgroup.Create(hs, s.Cgroup()); err != nil {
		return err
	}
	unified, err := cgroup.Unified(hs)
	if err != nil {
		return err
	}
	system := filepath.Join(unified.Mount, s.SystemCgroup())
	if err := os.MkdirAll(system, 0o755); err != nil {
		return err
	}
	if n.cgroup, err = os.Open(system); err != nil {
		return err
	}
	if err := writeConfigs(s); err != nil {
		return err
	}
	// The daemons find programs in PATH: kubelet mount, containerd runc,
	// kube-proxy nft.
	if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	if err := setUpNetwork(n.ps, s); err != nil {
		return err
	}
	if err := serveControl(ControlSocket, &n.registry, n.log); err != nil {
		return err
	}
	return n.startDaemons(ctx)
}

func (n *nodeProcess) startDaemons(ctx context.Context) error {
	s := n.spec
	if s.ControlPlane {
		n.start(Etcd, s.etcd())
		n.start(APIServer, s.apiServer())
	}
	n.start(Containerd, s.containerd())

	// What follows exits, or backs off for long, when it finds no API or no
	// runtime.
	var wg sync.WaitGroup
	var imported, ready error
	wg.Go(func() { imported = n.importImages() })
	wg.Go(func() { ready = n.waitForAPI(ctx) })
	wg.Wait()
	if err := errors.Join(imported, ready); err != nil {
		return err
	}
	if s.ControlPlane {
		n.start(ControllerManager, s.controllerManager())
		n.start(Scheduler, s.scheduler())
	}
	n.start(Kubelet, s.kubelet())
	n.start(KubeProxy, s.kubeProxy())
	return nil
}

func (n *nodeProcess) start(name string, argv []string) {
	d := &daemon{
		name: name, argv: argv, log: n.log, ps: n.ps, cgroup: n.cgroup,
		output: filepath.Join(n.spec.LogDir(), name+".log"),
		orders: make(chan order),
	}
	n.registry.add(d)
	go d.run()
}

// sysProcAttr starts a daemon as the leader of a session, in the cgroup by
// which the harness finds all that belongs to the cluster.
func sysProcAttr(cgroup *os.File) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
}

// importImages loads the base images. They are there already after a reboot;
// importing again is quick.
func (n *nodeProcess) importImages() error {
	if err := n.waitForRuntime(); err != nil {
		return err
	}
	for _, archive := range n.spec.Images {
		if _, err := n.ps.run("", n.spec.program("ctr"), "-n", "k8s.io", "images", "import", archive); err != nil {
			return fmt.Errorf("import image: %w", err)
		}
	}
	return nil
}

// waitForRuntime waits until containerd serves the kubelet. A containerd whose
// CRI plugin did not load (the usual cause: no inotify instance was left) runs on
// without it for ever; so start it again.
func (n *nodeProcess) waitForRuntime() error {
	ctr := n.spec.program("ctr")
	deadline := time.Now().Add(bootTimeout)
	for {
		out, err := n.ps.run("", ctr, "plugins", "ls")
		switch {
		case err != nil:
			err = fmt.Errorf("containerd does not answer: %w", err)
		case criLoaded(out):
			return nil
		default:
			err = fmt.Errorf("containerd runs without its CRI plugin; see %s/containerd.log (often: too many open files, then raise fs.inotify.max_user_instances)", n.spec.LogDir())
			n.registry.carryOut(Request{Daemon: Containerd, Verb: "signal", Signal: int(unix.SIGTERM)})
			time.Sleep(restartDelay)
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// criLoaded reads the output of `ctr plugins ls`: type, id, platforms, status.
func criLoaded(plugins string) bool {
	for line := range strings.Lines(plugins) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] == "io.containerd.grpc.v1" && f[1] == "cri" {
			return f[3] == "ok"
		}
	}
	return false
}

func (n *nodeProcess) waitForAPI(ctx context.Context) error {
	ca, err := os.ReadFile(n.spec.pki("ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{
		Timeout:   2 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	defer client.CloseIdleConnections()
	url := fmt.Sprintf("https://%s/readyz", n.spec.Network.APIServer)
	deadline := time.Now().Add(bootTimeout)
	for {
		err := get(ctx, client, url)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server is not ready after %s: %w", bootTimeout, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, b)
	}
	return nil
}

// cleanUp ends every process of the node and removes its cgroups. Its
// interfaces and mounts end with the namespaces; its state stays, for reading
// the logs, until the next start.
func (n *nodeProcess) cleanUp() {
	n.ps.killAll()
	hs, err := cgroup.Hierarchies()
	if err == nil {
		err = cgroup.Remove(hs, n.spec.Cgroup(), 5*time.Second)
	}
	if err == nil {
		err = leaveCgroup(hs, n.spec.Cluster)
	}
	if err != nil {
		n.log.Error("cannot clean up", "error", err)
	}
}

// leaveCgroup moves this process out of the cluster's cgroup and removes that if
// it was the last: until then the kernel refuses.
func leaveCgroup(hs []cgroup.Hierarchy, cluster string) error {
	unified, err := cgroup.Unified(hs)
	if err != nil {
		return err
	}
	if err := cgroup.Join(unified, "", os.Getpid()); err != nil {
		return err
	}
	for _, h := range hs {
		cgroup.RemoveEmpty(filepath.Join(h.Mount, cluster))
	}
	return nil
}
