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
//	TestRollout     another cluster: rollouts lose nothing (DESIGN §8, §10)
//	  rollout_test.go            what runs alone and what at the same time
//	  rollout_traffic_test.go    the constant load, its outcome, what happened to the pods
//	  rollout_collector_test.go  what hooks and ending clients tell
//	  rollout_restart_test.go    rolling restarts with and without Evenkeel; strategies
//	  rollout_scale_test.go      2 → 10 → 2, StatefulSet, evictions
//	  rollout_sudden_test.go     streams that outlive, sudden deaths, stuck clients
//	  rollout_control_test.go    the control plane goes; one replica at each phase
//	  rollout_jobs_test.go       Job and CronJob
//	  rollout_hooks_test.go      the user's own hooks, calls while shutting down
//	  rollout_cost_test.go       what the holds add
//
// Each test of TestRollout logs a line that begins with RESULT and can be quoted. One
// alone: go test ./e2e/suite -run TestRollout/RollingRestart/Go$ -v
//
// Servers exit at once at SIGTERM (e2e/testapp: Go's has no handler, those of Python
// and Node have one that only exits, since a PID 1 without one would not get the
// signal). Clients retry nothing. A stream lasts 1 to 10 s, so a drain may, too.
//
// EVENKEEL_E2E_REPEAT=20 does each rollout that often in a row (`make e2e-long`).
// EVENKEEL_E2E_KEEP=1 leaves the cluster running for a look (`make cluster-down`
// does not end it: its name is "suite" or "rollout").
package suite
