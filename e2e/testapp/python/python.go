// SPDX-License-Identifier: Apache-2.0
// Copyright Authors of Evenkeel

// Package python carries the grpcio client of the tests.
package python

import _ "embed"

// Client is the program; it needs Python 3.11 and grpcio.
//
//go:embed client.py
var Client string
