// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Command sidecar is the proxy in the client's pod. `sidecar --help` says more;
// package sidecarcmd has the tour.
package main

import (
	"context"
	"os"

	"evenkeel.dev/cmd/internal/sidecarcmd"
)

func main() {
	// Not run.Main: SIGTERM does not end the sidecar while the app needs it.
	os.Exit(sidecarcmd.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
