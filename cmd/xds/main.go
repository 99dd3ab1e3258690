// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command xds is Evenkeel's control plane: it watches Services, EndpointSlices
// and Pods and streams them to the sidecars. See cmd/internal/xdscmd.
package main

import (
	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/cmd/internal/xdscmd"
)

func main() { run.Main(xdscmd.Main) }
