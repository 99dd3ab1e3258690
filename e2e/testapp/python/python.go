// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package python carries the grpcio programs of the tests; they need Python 3.11
// and grpcio.
package python

import _ "embed"

// Client is the client.
//
//go:embed client.py
var Client string

// Server is the server, which exits at once at SIGTERM.
//
//go:embed server.py
var Server string
