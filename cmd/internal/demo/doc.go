// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package demo plays two real incidents, without and with Evenkeel: eight client pods start while two of six servers are ready, then
// the other four become ready; and a rolling restart replaces all servers, which exit at once on SIGTERM.
//
// # Tour
//
//	client ×8 ──TCP──▶ kubeProxy (ClusterIP) ──▶ server ×6            without
//	client ×8 ──TCP──▶ sidecar ×8 ──HTTP/2, per RPC──▶ server ×6      with
//	                      ▲ xds ◀── pricing.yaml (EndpointSlice, Pods)
//	                         └────▶ sidecar ×6 of the servers ──▶ kubelet, played here
//
// The arrows are connections; the clients are the same processes in both runs, dialling the Service's name.
//
//   - network.go: the demo's own network namespace, in which the ClusterIP and the pods' addresses exist.
//   - rollout.go: how servers become ready and end, which a kubelet and controllers would do.
//   - incident.go: one run, in order; server.go, client.go, kubeproxy.go, manifests.go: who takes part.
//   - measure.go: what is made of the arrivals at the servers. Pure.
//   - table.go: the result for people.
//
// Clients are processes in pods of package sandbox: cgroup, redirect, sidecar and control plane are the real ones. Servers and the
// stand-in for kube-proxy are goroutines here. RPCs are counted where they arrive.
//
// # Failures
//
//	not root, no cgroup2, old kernel       an error before anything is shown
//	the redirect misses a connection       an error: the run with Evenkeel would show something else
//	the machine is too busy for 500 RPC/s  the bar is not met, and that is said
//	Ctrl-C                                 both the namespace and the scope go; nothing is left
//
// # Limitations
//
// The stand-in relays bytes where kube-proxy rewrites packets: pinning is the same, its cost is not, so no latencies are shown.
package demo
