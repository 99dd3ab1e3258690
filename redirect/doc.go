// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package redirect turns connect(service:50051) into connect(sidecar), for one cgroup.
package redirect
