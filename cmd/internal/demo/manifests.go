// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package demo

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"
)

// manifests are the Service, the EndpointSlice and the Pods as the API server would hold them.
var manifests = template.Must(template.New("pricing").Parse(`apiVersion: v1
kind: Service
metadata: {name: pricing, namespace: shop}
spec:
  clusterIP: {{.ClusterIP.Addr}}
  selector: {app: pricing}
  ports:
  - {name: grpc, port: {{.ClusterIP.Port}}, targetPort: {{.ClusterIP.Port}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: pricing-1
  namespace: shop
  labels: {kubernetes.io/service-name: pricing}
addressType: IPv4
ports:
- {name: grpc, port: {{.ClusterIP.Port}}, protocol: TCP}
endpoints:
{{- range .Servers}}{{if .Listed}}
- addresses: [{{.Addr.Addr}}]
  conditions: {ready: {{.Ready}}, serving: {{.Serving}}, terminating: {{.Deleted}}}
  targetRef: {kind: Pod, namespace: shop, name: {{.Name}}, uid: {{.UID}}}
{{- end}}{{end}}
{{range .Servers}}{{if .Listed}}---
apiVersion: v1
kind: Pod
metadata:
  name: {{.Name}}
  namespace: shop
  uid: {{.UID}}
  labels: {app: pricing}
{{- if .Deleted}}
  deletionTimestamp: "2026-01-01T00:00:00Z"
  deletionGracePeriodSeconds: 60
{{- end}}
spec:
  containers: [{name: app}]
status:
  phase: Running
  podIPs: [{ip: {{.Addr.Addr}}}]
  conditions: [{type: Ready, status: "{{if .Serving}}True{{else}}False{{end}}"}]
  containerStatuses: [{name: app, ready: true}]
{{end}}{{end}}`))

// phase is where a server's pod stands in its life.
type phase uint8

const (
	absent   phase = iota // not there yet, or no more
	running               // the application is ready, the pod is not
	ready                 // the pod is
	deleting              // it has been deleted, the application runs
)

// clusterState is what the manifests are made of.
type clusterState struct {
	ClusterIP netip.AddrPort
	Servers   []serverState
}

type serverState struct {
	Name  string
	UID   string
	Addr  netip.AddrPort
	phase phase
}

// Listed, Ready, Serving and Deleted are what the EndpointSlice and the Pod say.
func (s serverState) Listed() bool  { return s.phase != absent }
func (s serverState) Ready() bool   { return s.phase == ready }
func (s serverState) Serving() bool { return s.phase >= ready }
func (s serverState) Deleted() bool { return s.phase == deleting }

// write replaces the file in dir as a whole: a reader sees the old or the new one.
func (c *clusterState) write(dir string) error {
	var b bytes.Buffer
	if err := manifests.Execute(&b, c); err != nil {
		return err
	}
	path := filepath.Join(dir, "pricing.yaml")
	if err := os.WriteFile(path+".new", b.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
