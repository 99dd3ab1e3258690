// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package suite

import (
	"fmt"
	"strings"
)

// Namespaces: pods in shop are injected, those in plain are not.
const (
	shop  = "shop"
	plain = "plain"
)

const namespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {evenkeel.dev/inject: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
`

const goImage, pythonImage, nodeImage = "e2e.local/testapp:1", "e2e.local/testapp-python:1", "e2e.local/testapp-node:1"

// workload describes a Deployment or StatefulSet of one container.
type workload struct {
	kind     string // zero: Deployment
	name     string
	image    string // zero: the Go test program
	replicas int    // zero: 1
	args     []string
	labels   string // of the pods, besides app: "k: v"
	probe    string // zero: /ready at port 8080
	ports    string // of the container
	node     string // zero: any

	annotations string // of the pods: "k: v"
	grace       int    // terminationGracePeriodSeconds; zero: 2
	spec        string // more of the Deployment's or StatefulSet's: "strategy: {…}"
	lifecycle   string // of the container: "preStop: {…}"
}

func (w workload) String() string {
	kind, extra := w.kind, ""
	switch kind {
	case "":
		kind = "Deployment"
	case "StatefulSet":
		extra = "\n  serviceName: " + w.name
		if w.spec == "" {
			extra += "\n  podManagementPolicy: Parallel"
		}
	}
	if w.spec != "" {
		extra += "\n  " + w.spec
	}
	lifecycle := ""
	if w.lifecycle != "" {
		lifecycle = "\n        lifecycle: {" + w.lifecycle + "}"
	}
	grace := w.grace
	if grace == 0 {
		grace = 2
	}
	image := w.image
	if image == "" {
		image = goImage
	}
	labels := "app: " + w.name
	if w.labels != "" {
		labels += ", " + w.labels
	}
	probe := w.probe
	if probe == "" {
		probe = "httpGet: {path: /ready, port: 8080}"
	}
	node := ""
	if w.node != "" {
		node = "\n      nodeName: " + w.node
	}
	ports := ""
	if w.ports != "" {
		ports = "\n        ports: [" + w.ports + "]"
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: %s}
spec:%s
  replicas: %d
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {%s}, annotations: {%s}}
    spec:
      terminationGracePeriodSeconds: %d%s
      containers:
      - name: app
        image: %s
        imagePullPolicy: Never
        args: ["%s"]%s%s
        readinessProbe: {%s, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true, runAsNonRoot: true}
---`, kind, w.name, extra, max(1, w.replicas), w.name, labels, w.annotations, grace, node, image, strings.Join(w.args, `", "`), ports, lifecycle, probe)
}

// service of the pods of an app. spec is what is special, "clusterIP: None".
func service(name, app, port, spec string) string {
	if spec != "" {
		spec = "\n  " + spec
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:%s
  selector: {app: %s}
  ports: [%s]
---`, name, spec, app, port)
}

// pricing is the usual server: its Service's port 50051 is another port, by name,
// at its pods.
func pricing(replicas int) string {
	return workload{
		name: "pricing", replicas: replicas, args: []string{"server", "--listen=:6001"},
		ports: "{name: grpc-main, containerPort: 6001}",
	}.String() + service("pricing", "pricing", "{name: grpc, port: 50051, targetPort: grpc-main}", "")
}

// goClient and pythonClient have an ordinary target and no special configuration.
func goClient(name, target string, args ...string) string {
	return workload{name: name, args: append([]string{"client", "--target=" + target}, args...)}.String()
}

func pythonClient(name, target string, args ...string) string {
	return workload{name: name, image: pythonImage, args: append([]string{"client", "--target=" + target}, args...)}.String()
}
