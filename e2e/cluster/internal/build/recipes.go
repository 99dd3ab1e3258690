// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package build

// The versions of everything that the cluster is made of. Changing one rebuilds
// that program at the next start.
const (
	kubernetesVersion = "1.36.3"
	etcdVersion       = "3.6.8"
	containerdVersion = "2.2.1"
	runcVersion       = "1.4.1"
	cniVersion        = "1.9.1"
	corednsVersion    = "1.14.6"
	helmVersion       = "4.3.2"
)

// Names of the base images that every node has.
const (
	PauseImage   = "e2e.local/pause:1"
	CoreDNSImage = "e2e.local/coredns:1"
)

// goDirective is the language version of the generated modules.
const goDirective = "1.26.0"

// recipe tells how to build programs from one Go module. A recipe whose text
// changes is built anew: its cache key is made of all its fields.
type recipe struct {
	// name is the program, and its file; with several packages the name of
	// the folder that they are put into, each under its own name.
	name string
	// module and version are what the generated go.mod requires; empty: only
	// the standard library.
	module, version string
	// packages are the main packages to build. Empty: main below.
	packages []string
	// main is the source of a main package of the generated module.
	main string
	// ldflags are appended to "-s -w".
	ldflags string
	// trimpath passes -trimpath.
	trimpath bool
	// ownTree builds in a writable copy of the module's own tree, with cgo and
	// with tags: for runc, a cgo program that is the root of its module.
	ownTree bool
	tags    string
	// kubernetes adds the replacements for the staging modules.
	kubernetes bool
	// image, if set, is written from the built program.
	image, imageUser string
}

// recipes are in the order of the cold build: kube-apiserver first, because it
// compiles most of what the others share.
func recipes() []recipe {
	var rs []recipe
	for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl", "kubelet"} {
		rs = append(rs, recipe{
			name: c, module: "k8s.io/kubernetes", version: kubernetesVersion, kubernetes: true,
			packages: []string{"k8s.io/kubernetes/cmd/" + c},
			// Without these the version reads v0.0.0-master.
			ldflags: "-X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion +
				" -X k8s.io/component-base/version.gitMajor=" + field(kubernetesVersion, 0) +
				" -X k8s.io/component-base/version.gitMinor=" + field(kubernetesVersion, 1),
		})
	}
	for _, c := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		rs = append(rs, recipe{
			name: c, module: "github.com/containerd/containerd/v2", version: containerdVersion,
			packages: []string{"github.com/containerd/containerd/v2/cmd/" + c},
		})
	}
	return append(rs,
		// Without the seccomp tag the RuntimeDefault profile fails.
		recipe{name: "runc", module: "github.com/opencontainers/runc", version: runcVersion, ownTree: true, tags: "seccomp", trimpath: true, ldflags: "-X main.version=" + runcVersion},
		recipe{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: etcdVersion, trimpath: true, main: etcdMain},
		recipe{name: "cni", module: "github.com/containernetworking/plugins", version: cniVersion, trimpath: true, packages: []string{
			"github.com/containernetworking/plugins/plugins/main/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/meta/portmap",
		}},
		recipe{name: "coredns", module: "github.com/coredns/coredns", version: corednsVersion, trimpath: true, main: corednsMain, image: CoreDNSImage},
		recipe{name: "pause", trimpath: true, main: pauseMain, image: PauseImage, imageUser: "65532:65532"},
		recipe{name: "helm", module: "helm.sh/helm/v4", version: helmVersion, trimpath: true, packages: []string{"helm.sh/helm/v4/cmd/helm"}},
	)
}

const etcdMain = `package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
`

// corednsMain has only the plugins that the Corefile uses. The order of the
// directives is the order in which a query passes them.
const corednsMain = `package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "log", "cache", "loadbalance", "kubernetes"}
	coremain.Run()
}
`
