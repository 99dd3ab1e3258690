// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package rollout is `evenkeel rollout status`: where each pod of a workload stands, who is waited for, and how long each
// hold took.
//
// # Tour
//
//		API server ─▶ workload, its pods ─────────────────┐
//		           └─▶ pod proxy ─▶ /debug/rollout of each ─┴─▶ merge ─▶ Status ─▶ table or JSON
//		               control-plane replica
//
//	  - workload.go: what the user names. cluster.go: what is asked of the API server.
//	  - status.go: the answers made into one Status. Pure.
//	  - table.go: for people. follow.go: again and again, until the rollout is done.
//
// # One picture of several replicas
//
// Every replica of the control plane has the whole picture, once it has been up for a while (settled). For each pod the
// settled replica that knows of most clients is believed. A replica that does not answer is named; the others suffice.
//
// # Failures
//
//	no kubeconfig, no cluster            an error that says what to give
//	no control plane in the namespace    an error that names the namespace and the flag
//	may not use pods/proxy               an error that names the permission
//	workload does not exist              the API server's words
//	no replica answers                   an error with each one's reason
//	pods without a sidecar               shown as such
//
// # Limitations
//
// Pods that ended more than ten minutes ago, or before every replica was replaced, are not shown.
package rollout
