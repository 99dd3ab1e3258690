// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package run is what the daemons' mains share: signals to a context, a logger
// from flags, the version, and an HTTP server for the admin port.
//
//	func main() { run.Main(sidecarcmd.Main) }
//
// A command is a function of its context, arguments and outputs that returns an
// exit status. It is therefore callable from a test, and from `evenkeel
// sandbox`, as well as from main; [Main] is the only place that exits.
//
// # Exit statuses
//
//	0  done, or stopped by a signal
//	1  failed while running
//	2  the command line was wrong; nothing was started
//
// # Limitations
//
// The admin server speaks HTTP/1.1 without TLS: it is for loopback, or for a
// port that tells nothing secret.
package run
