// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package xds

import (
	"fmt"
	"strings"
)

// Node is what a sidecar says of itself in the first request of a stream, and
// what the control plane knows it by.
type Node struct {
	Namespace string
	Pod       string
	UID       string // of the Pod
	Workload  string // the Deployment, StatefulSet, … it belongs to; may be empty
	Node      string // the Kubernetes node; may be empty
	Zone      string // may be empty
}

// ID is Node.id: "namespace/pod".
func (n Node) ID() string { return n.Namespace + "/" + n.Pod }

// Metadata is the content of Node.metadata, without what is empty.
func (n Node) Metadata() map[string]string {
	m := map[string]string{}
	for k, v := range map[string]string{
		NodeNamespace: n.Namespace, NodePod: n.Pod, NodeUID: n.UID,
		NodeWorkload: n.Workload, NodeNode: n.Node, NodeZone: n.Zone,
	} {
		if v != "" {
			m[k] = v
		}
	}
	return m
}

// NodeFrom is the inverse of ID and Metadata. The id rules; metadata that
// contradicts it is an error.
func NodeFrom(id string, metadata map[string]string) (Node, error) {
	ns, pod, ok := strings.Cut(id, "/")
	if !ok || checkLabel(ns) != nil || checkHost(pod) != nil {
		return Node{}, fmt.Errorf("node.id %s: want <namespace>/<pod>", quoteShort(id))
	}
	n := Node{
		Namespace: ns, Pod: pod, UID: metadata[NodeUID],
		Workload: metadata[NodeWorkload], Node: metadata[NodeNode], Zone: metadata[NodeZone],
	}
	for k, want := range map[string]string{NodeNamespace: ns, NodePod: pod} {
		if got := metadata[k]; got != "" && got != want {
			return Node{}, fmt.Errorf("node.metadata.%s is %s, but node.id is %q", k, quoteShort(got), id)
		}
	}
	return n, nil
}
