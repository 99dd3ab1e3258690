// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package node

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed templates
var templates embed.FS

// writeConfigs renders the daemons' files.
func writeConfigs(s *Spec) error {
	t, err := template.New("").Option("missingkey=error").ParseFS(templates, "templates/*")
	if err != nil {
		return err
	}
	for name, file := range map[string]string{
		"containerd.toml": "etc/containerd.toml",
		"cni.conflist":    "etc/cni/10-pods.conflist",
		"kubelet.yaml":    "etc/kubelet.yaml",
		"kube-proxy.yaml": "etc/kube-proxy.yaml",
		"audit.yaml":      "etc/audit.yaml",
	} {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name, s); err != nil {
			return fmt.Errorf("render %s: %w", name, err)
		}
		path := s.path(file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	// Pods with dnsPolicy Default get this: no resolver outside is reachable.
	return os.WriteFile(s.path("etc/resolv.conf"), nil, 0o644)
}

func (s *Spec) program(name string) string { return s.Programs[name] }

func (s *Spec) pki(file string) string { return filepath.Join(s.PKI, file) }

// Names of the daemons; also of their log files.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Containerd        = "containerd"
	Kubelet           = "kubelet"
	KubeProxy         = "kube-proxy"
)

func (s *Spec) etcd() []string {
	return []string{
		s.program(Etcd),
		"--name=e0",
		"--data-dir=" + s.path("etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=e0=http://127.0.0.1:2380",
		// The state of a test cluster need not survive a power cut.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (s *Spec) apiServer() []string {
	return []string{
		s.program(APIServer),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=0.0.0.0",
		fmt.Sprintf("--secure-port=%d", s.Network.APIServer.Port()),
		"--advertise-address=" + s.IP.String(),
		"--service-cluster-ip-range=" + s.Network.Services.String(),
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// Node names do not resolve.
		"--kubelet-preferred-address-types=InternalIP",
		"--client-ca-file=" + s.pki("ca.crt"),
		"--tls-cert-file=" + s.pki("apiserver.crt"),
		"--tls-private-key-file=" + s.pki("apiserver.key"),
		"--kubelet-certificate-authority=" + s.pki("ca.crt"),
		"--kubelet-client-certificate=" + s.pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + s.pki("apiserver-kubelet-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + s.pki("sa.pub"),
		"--service-account-signing-key-file=" + s.pki("sa.key"),
		"--requestheader-client-ca-file=" + s.pki("ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + s.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + s.pki("front-proxy-client.key"),
		"--profiling=false",
		"--audit-policy-file=" + s.path("etc/audit.yaml"),
		"--audit-log-path=" + s.path("log/audit.log"),
		"--audit-log-maxsize=100",
		"--audit-log-maxbackup=2",
		// Pods leave a lost node after 5 s, not 5 minutes.
		"--default-not-ready-toleration-seconds=5",
		"--default-unreachable-toleration-seconds=5",
	}
}

func (s *Spec) controllerManager() []string {
	config := s.pki("controller-manager.kubeconfig")
	return []string{
		s.program(ControllerManager),
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		// At the default of 20 requests/s the controllers need 6 s to start.
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + s.pki("sa.key"),
		"--root-ca-file=" + s.pki("ca.crt"),
		"--cluster-signing-cert-file=" + s.pki("ca.crt"),
		"--cluster-signing-key-file=" + s.pki("ca.key"),
		"--allocate-node-cidrs=false",
		// A lost node is NotReady after 8 s, not 50 s.
		"--node-monitor-period=1s",
		"--node-monitor-grace-period=8s",
	}
}

func (s *Spec) scheduler() []string {
	config := s.pki("scheduler.kubeconfig")
	return []string{
		s.program(Scheduler),
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	}
}

func (s *Spec) containerd() []string {
	return []string{s.program(Containerd), "--config", s.path("etc/containerd.toml")}
}

func (s *Spec) kubelet() []string {
	return []string{
		s.program(Kubelet),
		"--config=" + s.path("etc/kubelet.yaml"),
		"--kubeconfig=" + s.pki("kubelet-"+s.Name+".kubeconfig"),
		"--hostname-override=" + s.Name,
		"--node-ip=" + s.IP.String(),
	}
}

func (s *Spec) kubeProxy() []string {
	return []string{s.program(KubeProxy), "--config=" + s.path("etc/kube-proxy.yaml")}
}
