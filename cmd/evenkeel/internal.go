// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

package main

import (
	"context"
	"os"

	"evenkeel.dev/cmd/internal/demo"
	"evenkeel.dev/cmd/internal/run"
	"evenkeel.dev/cmd/internal/sandbox"
	"evenkeel.dev/cmd/internal/sidecarcmd"
	"evenkeel.dev/cmd/internal/xdscmd"
)

// internal runs the hidden commands: the other processes of a sandbox and of the demo are this same binary, so that one file is all
// that a user needs. They are not cobra commands: some of them become another program at once, and none is for people.
func internal(argv []string) (status int, ok bool) {
	if len(argv) < 2 {
		return 0, false
	}
	args := argv[2:]
	switch argv[1] {
	case sandbox.JanitorCommand:
		return sandbox.JanitorMain(args, os.Stderr), true
	case sandbox.EnterCommand:
		return sandbox.EnterMain(args, os.Stderr), true
	case sandbox.SidecarCommand:
		// It deals with signals itself.
		return sidecarcmd.Main(context.Background(), args, os.Stdout, os.Stderr), true
	case sandbox.ControlPlaneCommand:
		ctx, stop := run.Signals(context.Background())
		defer stop()
		return xdscmd.Main(ctx, args, os.Stdout, os.Stderr), true
	case demo.ClientCommand:
		return demo.ClientMain(context.Background(), args, os.Stdin, os.Stdout, os.Stderr), true
	case demo.InsideCommand:
		return execute(context.Background(), append([]string{demo.InsideCommand}, args...)), true
	}
	return 0, false
}
