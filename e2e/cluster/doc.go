// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package cluster starts and ends a real Kubernetes cluster of one to three
// nodes on this machine, and does to it what the tests need: kill a container,
// freeze a process, pull a node's plug. It is all built from Go modules and
// Debian packages and needs no registry, no container runtime of the machine and
// no virtual machines: only Linux and root.
//
// # Tour
//
//	c, err := cluster.Start(ctx, cluster.Config{Name: "suite"})   // ~5 s once built; 7 min the first time
//	defer c.Stop(context.WithoutCancel(ctx))
//	c.LoadImage(ctx, "bin/images/sidecar.tar")                    // into every node's containerd
//	c.Helm(ctx, "install", "evenkeel", "charts/evenkeel", …)
//	c.KubectlInput(ctx, manifest, "apply", "-f", "-")
//	pods, err := c.WaitPods(ctx, "shop", "app=client", 2, time.Minute)
//	conn, err := c.DialContext(ctx, "tcp", "client.shop.svc.cluster.local:8080")
//	c.KillContainer(ctx, "shop", pods[0].Name, "evenkeel-sidecar")
//	c.Processes(…)                                                // pids for kill, SIGSTOP, …
//	c.SignalContainer(ctx, "shop", pods[0].Name, "evenkeel-sidecar", unix.SIGSTOP)
//	c.CutOff(ctx, "shop", pods[0].Name, "tcp dport 6001")         // as a NetworkPolicy would
//	c.Evict(ctx, "shop", pods[0].Name); c.Events(ctx, "shop")
//	w, err := c.Watch(ctx, "shop"); w.Pods()                      // when each pod was created, ready, …
//	c.PowerOff(ctx, "node2"); c.PowerOn(ctx, "node2")
//	c.StopDaemon("node1", cluster.Kubelet); c.SignalDaemon("node1", cluster.APIServer, unix.SIGKILL)
//	c.Dump(ctx, dir)                                              // when a test has failed
//
// Kubeconfig is a file for any client on this machine (kubectl, helm, client-go):
// a port of the machine's loopback leads to the API server. Pods and Services are
// only reachable inside: dial with DialContext (http.Transport.DialContext;
// grpc.WithContextDialer with the passthrough resolver), or start a program with
// StartIn.
//
// By hand the same is done with ./cmd/cluster: `make cluster`, `make
// cluster-down`; `go run ./e2e/cluster/cmd/cluster` prints its commands.
//
// # What runs
//
//	machine's namespaces: this process, or nothing after Detach
//	  │ lifeline (a pipe) to each
//	  ├─ switch   net                    sw0 10.240.0.1; serves the machine's 127.0.0.1:PORT
//	  ├─ node1    net mnt pid uts ipc    10.240.0.11, pods 10.244.1.0/24: etcd, kube-apiserver,
//	  │                                  -controller-manager, -scheduler, containerd, kubelet, kube-proxy
//	  └─ node2    net mnt pid uts ipc    10.240.0.12, pods 10.244.2.0/24: containerd, kubelet, kube-proxy
//
// Services are 10.96.0.0/16, DNS 10.96.0.10 (CoreDNS on node1, domain
// cluster.local, IPv4 only). There is no default route: nothing leaves. The
// machine's network namespace, sysctls and mounts are not touched; its cgroups
// get one directory in each hierarchy, named as the cluster.
//
// Each node is one process that is PID 1 of its namespaces (internal/node); it
// supervises the daemons and restarts what exits. Programs come from
// internal/build and lie in the cache folder, keyed by version and flags.
//
// # States and who owns them
//
//	absent ──Start──▶ ours ──Stop──▶ absent        "ours" holds the lock file
//	                    └──Detach──▶ detached ──Open…Stop, or Down──▶ absent
//
// The run folder (CacheDir/run/evenkeel-NAME-HASH, HASH of the checkout's path)
// has state.json, pki/, NODE/log/DAEMON.log, NODE/log/audit.log. It is written by
// whoever holds the lock, or has opened a detached cluster.
//
// # Failures
//
//	what                         what happens
//	this process is killed       the lifelines end: each node kills its processes, removes its cgroups and
//	                             ends, within a second or two. Logs stay until the next Start or Down.
//	PID 1 of a node is killed    the kernel ends all of the node; its cgroups stay until PowerOn or Down
//	a daemon is killed           is started again after 0.5 s; its pods run on
//	the switch is killed         no node reaches another, nothing reaches the API: Down, Start
//	Start fails                  what it has started ends; the error says where the logs are
//	Down after any of these      finds processes by state.json and by cgroup; leaves nothing
//	a second Start or Down       while a process holds the cluster: refused, with its pid
//	a build fails                the error has the compiler's last lines; the cache has no half-built program
//
// # What differs from a production cluster
//
// A lost node is NotReady after about 9 s and its pods are replaced after 5 s
// more (50 s and 5 min by default); kube-proxy applies changes within 0.1 s;
// container images are never pulled or collected; etcd does not sync to disk;
// nodes share the kernel, its cgroup root and the clock; oom_score_adj is not
// lowered. A pod that asks for the capability SYS_RESOURCE by name does not start
// where root itself lacks it.
//
// # Limitations
//
// There is no NetworkPolicy: the network plugin is the simple bridge (CutOff does
// what one would do, in the pod itself). IPv4 only. Linux/amd64 and arm64 of the machine's own architecture. Tried with
// hybrid and v1 cgroups; on a machine with only cgroup2 the controllers are
// delegated by the rules of the kernel's documentation, but nobody has tried.
// Nodes cannot be added after Start.
package cluster
