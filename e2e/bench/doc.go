// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command bench measures what an RPC costs through Evenkeel's sidecar and through the proxies that people use
// instead of it: nghttpx, HAProxy and nginx.
//
//	load (h2load, or the generator in load.go) ──▶ proxy, one worker ──▶ three grpc-go backends in this process
//
// All proxies are started once and measured in turn, round after round, on the same backends, so that a change in the
// machine's speed hits every one of them; the table shows medians over the rounds and the ratio to nghttpx.
// The figure to trust is CPU time per RPC: the proxy processes' time on a CPU (/proc/PID/task/*/schedstat) divided by
// the RPCs that the backends counted. A proxy that answers errors by itself cannot win: a round whose count differs
// from the requests sent fails the run.
//
// Memory is read right after a load. The shape 100x10-10k is there for it alone: 10,000 RPC/s, if the machine has
// the time (the table tells what was reached), from 100 connections over 100 backends, before which each proxy is
// started once more. Of several processes, a supervisor and its worker, the largest is shown beside the sum, in
// which the pages that they share count twice.
//
// # Limitations
//
// Load, proxy and backends share the machine's cores, so latencies are those of a busy machine; compare them only with
// each other. Linkerd, Envoy and Istio are not measured: they cannot be had from a package of Debian or a Go module.
package main
