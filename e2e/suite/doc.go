// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package suite holds the end-to-end tests: Evenkeel installed with Helm on a real
// two-node Kubernetes, and ordinary gRPC programs that know nothing of it. It is
// black box: no package of the product is imported; what is checked is what the
// clients saw, and what a user sees with kubectl.
//
//	TestEvenkeel    one cluster; its subtests run in order, each on its own workloads
//	  setup_test.go        cluster, images, chart, namespaces
//	  manifests_test.go    the workloads
//	  clients_test.go      asking the test clients what they saw
//	  balance_test.go      with and without the label; scaling out
//	  names_test.go        headless, StatefulSet names, a pod's own Service
//	  passthrough_test.go  what is not ours: other pods, TLS, HTTP/1
//	  failures_test.go     worker, container and control plane go away
//
// EVENKEEL_E2E_KEEP=1 leaves the cluster running for a look (`make cluster-down`
// does not end it: its name is "suite").
package suite
