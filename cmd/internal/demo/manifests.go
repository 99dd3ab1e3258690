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

// manifests are the Service and the EndpointSlice as the API server would hold them.
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
{{- range .Servers}}
- addresses: [{{.Addr.Addr}}]
  conditions: {ready: {{.Ready}}, serving: {{.Ready}}, terminating: false}
  targetRef: {kind: Pod, namespace: shop, name: {{.Name}}}
{{- end}}
`))

// clusterState is what the manifests are made of.
type clusterState struct {
	ClusterIP netip.AddrPort
	Servers   []serverState
}

type serverState struct {
	Name  string
	Addr  netip.AddrPort
	Ready bool
}

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
