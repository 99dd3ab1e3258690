// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package rollout

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Kind of a workload that rolls out.
type Kind string

// The kinds, as the injector spells them.
const (
	Deployment  Kind = "deployment"
	StatefulSet Kind = "statefulset"
	DaemonSet   Kind = "daemonset"
)

// spellings are what kubectl takes, too.
var spellings = map[string]Kind{
	"deploy": Deployment, "deployment": Deployment, "deployments": Deployment, "deployment.apps": Deployment, "deployments.apps": Deployment,
	"sts": StatefulSet, "statefulset": StatefulSet, "statefulsets": StatefulSet, "statefulset.apps": StatefulSet, "statefulsets.apps": StatefulSet,
	"ds": DaemonSet, "daemonset": DaemonSet, "daemonsets": DaemonSet, "daemonset.apps": DaemonSet, "daemonsets.apps": DaemonSet,
}

// Workload is what pods belong to across rollouts.
type Workload struct {
	Kind Kind
	Name string
}

// String is the form in which the control plane knows it.
func (w Workload) String() string { return string(w.Kind) + "/" + w.Name }

// ParseWorkload reads KIND/NAME as kubectl does, or KIND and NAME.
func ParseWorkload(args ...string) (Workload, error) {
	if len(args) == 2 {
		args = []string{args[0] + "/" + args[1]}
	}
	if len(args) != 1 {
		return Workload{}, fmt.Errorf("want one workload, such as deploy/pricing; got %q", args)
	}
	kind, name, ok := strings.Cut(args[0], "/")
	if !ok {
		return Workload{}, fmt.Errorf("%q: want KIND/NAME, such as deploy/%s", args[0], args[0])
	}
	k, ok := spellings[strings.ToLower(kind)]
	if !ok {
		return Workload{}, fmt.Errorf("%q: kind %q is none that rolls out (deployment, statefulset, daemonset)", args[0], kind)
	}
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return Workload{}, fmt.Errorf("%q: %q is no name: %s", args[0], name, errs[0])
	}
	return Workload{Kind: k, Name: name}, nil
}
