// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package node carries the @grpc/grpc-js server of the tests.
package node

import _ "embed"

// Server is the server, which exits at once at SIGTERM.
//
//go:embed server.js
var Server string
